"""Types that the loop shares with environments, policies and guidance."""
