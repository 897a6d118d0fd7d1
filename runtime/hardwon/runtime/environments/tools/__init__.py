"""Environments whose actions are calls of local tools or of an MCP server's tools."""
