"""Run the core of Home Assistant with its HTTP interface and a few simulated devices.

Started by tests with the Python of `.venv/test_tools/homeassistant`. Arguments: a directory, and a port.
Prints an access token as JSON when the server is ready, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def make_config(port: int) -> dict[str, Any]:
    return {
        "http": {"server_host": "127.0.0.1", "server_port": port},
        "api": {},
        "websocket_api": {},
        "input_boolean": {"lamp": {"name": "Desk lamp"}, "fan": {"name": "Kitchen fan"}},
        "input_number": {"heat": {"name": "Heating", "min": 5, "max": 30, "initial": 20}},
    }


async def main(directory: str, port: int) -> None:
    from homeassistant import auth, bootstrap, config_entries, core, loader
    from homeassistant.setup import async_setup_component

    config = make_config(port)
    hass = core.HomeAssistant(directory)
    hass.config.skip_pip = True
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, config)
    await bootstrap.async_load_base_functionality(hass)
    hass.auth = await auth.auth_manager_from_config(hass, [], [])
    for component in ("homeassistant", *config):
        assert await async_setup_component(hass, component, config), component
    user = await hass.auth.async_create_system_user("test", group_ids=["system-admin"])
    refresh = await hass.auth.async_create_refresh_token(user)
    await hass.async_start()
    print(json.dumps({"token": hass.auth.async_create_access_token(refresh)}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await hass.async_stop(force=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
