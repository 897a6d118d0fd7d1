"""Select the items that an actor sees in an episode."""
