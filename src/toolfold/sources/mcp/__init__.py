"""Tools from MCP servers: connections, supervision, and the trust policy for their tools."""
