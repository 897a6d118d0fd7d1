"""Front ends of the runtime and the library: command line, HTTP API, dashboard, MCP server and importers."""
