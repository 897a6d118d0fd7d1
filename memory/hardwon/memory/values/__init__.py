"""Value estimates of actions and items, computed from past steps."""
