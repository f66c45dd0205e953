"""Tools from MCP servers: connections, supervision, and the policy which tools are trusted."""
