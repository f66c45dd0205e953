"""The gateway for one client that started us: over standard input and output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from toolfold.gateway.server import Gateway
from toolfold.gateway.tokens import Client

if TYPE_CHECKING:
    from toolfold.runtime import Runtime


async def serve(runtime: Runtime, *, toolsets: tuple[str, ...] | None = None) -> None:
    """Serve until the client closes its end."""
    from mcp.server.lowlevel import NotificationOptions
    from mcp.server.stdio import stdio_server

    gateway = Gateway(runtime, everybody=Client("stdio", toolsets))
    server = gateway.server()
    changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options(changes))
    finally:
        gateway.close()
        await asyncio.sleep(0)
