"""One MCP server in front of all: for every MCP client, over stdio and Streamable HTTP."""
