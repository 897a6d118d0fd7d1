"""Run tools, local or of an MCP server, as an environment."""
