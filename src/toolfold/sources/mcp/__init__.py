"""Tools from MCP servers: connections, their supervision, and trust in what they bring."""
