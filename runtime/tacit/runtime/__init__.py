"""How the agent acts: the LangGraph loop, policies, environments and diagnosis."""
