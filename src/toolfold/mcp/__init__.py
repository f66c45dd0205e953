"""Tools from MCP servers: connections, supervision, and a trust policy for the tools."""
