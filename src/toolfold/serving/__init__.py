"""Servers for other programs: the gateway for MCP clients, the model proxy, the dashboard, and logins."""
