"""Select the items that an actor sees in an episode, and judge the actions that it proposes."""
