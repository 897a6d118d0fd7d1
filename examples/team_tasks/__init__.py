"""Sample tasks for `hardwon team`."""
