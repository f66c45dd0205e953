"""Built-in tools, what they stand on, and sources of tools other than MCP servers."""
