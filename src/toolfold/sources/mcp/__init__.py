"""Tools from MCP servers: connections, supervision, and the decision which tools to trust."""
