"""How the agent's parts learn together: not built yet; see CHANGELOG.md for what stands."""
