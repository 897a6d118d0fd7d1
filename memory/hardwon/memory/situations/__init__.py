"""Keys, patterns and descriptions of states and actions."""
