"""Make plans of actions, and follow them."""
