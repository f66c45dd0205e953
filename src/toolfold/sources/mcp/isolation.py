"""Which servers keep a state that one client must not share with another.

A browser has a page open, a memory remembers, a shell stands in a folder. A server does not say so; its
name, what it is started with and what its tools are called do. Wrongly taken for stateful, a server costs
another process; wrongly shared, one client reads what another did.
"""

from __future__ import annotations

import re

from toolfold.config.servers import McpServer
from toolfold.sources.mcp.offers import Listing

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


def is_per_client(name: str, settings: McpServer, listing: Listing | None) -> bool:
    """Whether each client has a server of its own."""
    if settings.isolation != "auto":
        return settings.isolation == "per-client"
    if settings.way != "stdio":
        return False  # it serves many by itself, and tells them apart by their sessions
    started = " ".join((name, settings.command.rpartition("/")[2], *settings.args))
    tools = listing.offers if listing else ()
    return bool(_NAMES.search(started)) or any(_TOOLS.search(offer.name) for offer in tools)
