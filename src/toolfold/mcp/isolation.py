"""Detect MCP servers whose state must not be shared between clients.

A browser has an open page, a memory server stores notes, a shell has a working directory. Servers do not
declare this; it is inferred from the server's name, its command line and its tool names. A server wrongly
taken for stateful costs another process; one wrongly shared exposes one client's data to another.
"""

from __future__ import annotations

import re

from toolfold.config.servers_settings import McpServerSettings
from toolfold.mcp.tool_listing import Listing

_NAMES = re.compile(
    r"browser|playwright|puppeteer|chrome|chromium|selenium|devtools|webdriver|memory|memento|remember|shell"
    r"|terminal|bash|tmux|\bpty\b|sequential|think|repl|jupyter|notebook|python-exec|code-exec|sandbox|desktop"
    r"|session|scratch|blender|ssh",
    re.IGNORECASE,
)
_TOOLS = re.compile(
    r"(?:^|[_-])(?:navigate|click|screenshot|tab_new|new_page|open_page|create_entities|add_observations"
    r"|remember|recall|start_process|send_keys|run_cell|execute_cell|change_directory|cd|set_cwd"
    r"|set_working_dir|begin_transaction|start_session|open_session)(?:$|[_-])",
    re.IGNORECASE,
)


def is_per_client(name: str, settings: McpServerSettings, listing: Listing | None) -> bool:
    """Return True if each client must get a separate process of this MCP server."""
    if settings.credentials == "per-user":
        return True
    if settings.isolation != "auto":
        return settings.isolation == "per-client"
    if settings.effective_transport != "stdio":
        return False  # HTTP servers separate clients by session
    command_line = " ".join((name, settings.command.rpartition("/")[2], *settings.args))
    tools = listing.tools if listing else ()
    return bool(_NAMES.search(command_line)) or any(_TOOLS.search(tool.name) for tool in tools)
