"""The `homeassistant` toolset: read and control the devices of a Home Assistant server.

Service calls operate devices in the physical world and need approval. Services that run programs or send
requests are refused unless the user has allowed their domain. Names and states are untrusted text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from toolfold.config.homeassistant_settings import HomeAssistantSettings
from toolfold.core.errors import CallError, shorten
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool

if TYPE_CHECKING:
    from toolfold.tools.internet.home_assistant import HomeAssistantClient

SOURCE = Source("builtin", "homeassistant")
MAX_LISTED = 200
MAX_ENTITIES = 50
MAX_STATE_CHARS = 8_000
MAX_NAME_CHARS = 100
MAX_DATA_CHARS = 10_000
OVERHEAD_TIMEOUT_S = 30.0
BLOCKED_DOMAINS = frozenset(
    {
        *("shell_command", "command_line", "python_script", "pyscript", "rest_command", "hassio", "backup"),
        *("appdaemon", "ffmpeg", "downloader", "recorder", "system_log", "supervisor"),
        *("script", "automation", "mqtt"),
    }
)
"""Domains whose services run programs, operate any device, send requests or delete records.

The setting `allowed_domains` lists exceptions."""

_NAME = {"type": "string", "pattern": "^[a-z0-9_]{1,64}$"}
_ENTITY = {"type": "string", "pattern": "^[a-z0-9_]{1,64}\\.[a-z0-9_]{1,190}$"}
_DOMAIN = {**_NAME, "description": "Such as light, switch, climate, sensor."}
_SCHEMAS: Mapping[str, Json] = {
    "ha_list_entities": {
        "description": "List the smart home devices and sensors of Home Assistant with their current states.",
        "parameters": {
            "type": "object",
            "properties": {
                "domain": _DOMAIN,
                "name": {
                    "type": "string",
                    "maxLength": MAX_NAME_CHARS,
                    "description": "Words of the name or id, such as kitchen.",
                },
            },
            "additionalProperties": False,
        },
    },
    "ha_get_state": {
        "description": "Read the state and attributes of one smart home device or sensor of Home Assistant.",
        "parameters": {
            "type": "object",
            "properties": {"entity_id": {**_ENTITY, "description": "Such as light.desk."}},
            "required": ["entity_id"],
            "additionalProperties": False,
        },
    },
    "ha_list_services": {
        "description": "List what Home Assistant can do with devices: services and their parameters.",
        "parameters": {
            "type": "object",
            "properties": {"domain": _DOMAIN},
            "additionalProperties": False,
        },
    },
    "ha_call_service": {
        "description": (
            "Control smart home devices with a service of Home Assistant: turn lights and switches on or off,"
            " set a temperature, open blinds, start a scene."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "domain": _DOMAIN,
                "service": {**_NAME, "description": "Such as turn_on."},
                "entity_id": {
                    "type": "array",
                    "maxItems": MAX_ENTITIES,
                    "items": _ENTITY,
                    "description": "Entities to control.",
                },
                "data": {
                    "type": "object",
                    "description": 'Parameters of the service, such as {"brightness_pct": 40}.',
                },
            },
            "required": ["domain", "service"],
            "additionalProperties": False,
        },
    },
}


class ServiceRefused(CallError):
    """Raised when a service of Home Assistant may not be called."""


def tools(services: Services) -> list[Tool]:
    """Return the tools for Home Assistant."""
    home = HomeTools(services.homeassistant, services.environment, services.outside_text)
    handlers = {
        "ha_list_entities": (home.list_entities, "🏠", (Effect.READ, Effect.NETWORK)),
        "ha_get_state": (home.get_state, "🌡️", (Effect.READ, Effect.NETWORK)),
        "ha_list_services": (home.list_services, "🎛️", (Effect.READ, Effect.NETWORK)),
        "ha_call_service": (home.call_service, "💡", (Effect.NETWORK, Effect.CONTROL)),
    }
    return [
        build_builtin_tool(
            name=name,
            toolset="homeassistant",
            schema=_SCHEMAS[name],
            handler=handler,
            check_fn=home.check,
            requires_env=(services.homeassistant.key_env,),
            emoji=emoji,
            effects=effects,
            judged_as={
                each: Meaning.DEVICES if each == "domain" else Meaning.NOTE
                for each in _SCHEMAS[name]["parameters"]["properties"]
            },
            precheck=home.check_service if name == "ha_call_service" else None,
            timeout=services.homeassistant.timeout_seconds + OVERHEAD_TIMEOUT_S,
            synonyms=("smart home", "lights", "lamp", "thermostat", "heating", "sensor", "blinds", "switch"),
            source=SOURCE,
        )
        for name, (handler, emoji, effects) in handlers.items()
    ]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class HomeTools:
    """Handlers and availability check of the tools for Home Assistant."""

    settings: HomeAssistantSettings
    environment: Mapping[str, str]
    outside_text: OutsideText

    def check(self) -> bool:
        """Return True if the server is configured. Raises an error with the reason otherwise."""
        if not self._token():
            raise CallError(
                f"The access token of Home Assistant is missing: set {self.settings.key_env}, and"
                " homeassistant.url to the URL of your server."
            )
        if self.settings.interface == "websocket" and find_spec("websockets") is None:
            raise CallError(
                "The package websockets is missing. Install it: pip install 'toolfold[homeassistant]',"
                " or set homeassistant.interface to rest."
            )
        return True

    async def list_entities(self, args: Json, _: CallContext) -> Json:
        """Return the ids, names and states of the Home Assistant entities that match the arguments."""
        domain, words = args.get("domain"), args.get("name", "").casefold().split()
        found = []
        for state in await self._client().list_states():
            entity, name = state["entity_id"], _read_name(state)
            text = f"{entity} {name}".casefold()
            if (not domain or entity.startswith(f"{domain}.")) and all(word in text for word in words):
                found.append({"entity_id": entity, "name": name, "state": _shorten(state.get("state"))})
        return await self._page("entities", sorted(found, key=lambda each: each["entity_id"]))

    async def get_state(self, args: Json, _: CallContext) -> Json:
        """Return the state and attributes of one entity."""
        state = await self._client().get_state(args["entity_id"])
        shown = {key: state.get(key) for key in ("entity_id", "state", "attributes", "last_changed")}
        return {"state": await self._mark(shown)}

    async def list_services(self, args: Json, _: CallContext) -> Json:
        """Return the services of one domain with their parameters, or the names of all services."""
        services = await self._client().list_services()
        domain = args.get("domain")
        if not domain:
            names = [f"{each}.{name}" for each in sorted(services) for name in sorted(services[each])]
            return await self._page("services", names)
        if domain not in services:
            known = ", ".join(sorted(services)[:100])
            raise CallError(f"There is no service domain {domain!r}. Known domains: {known}.")
        listed = [
            {
                "service": f"{domain}.{name}",
                "description": _shorten(each.get("description")),
                "fields": sorted(each.get("fields") or {}),
            }
            for name, each in sorted(services[domain].items())
            if isinstance(each, dict)
        ]
        return await self._page("services", listed)

    async def call_service(self, args: Json, _: CallContext) -> Json:
        """Call a service and return the changed entities."""
        domain, service, data = args["domain"], args["service"], self.check_service(args, _)
        client = self._client()
        services = await client.list_services()
        if service not in services.get(domain, {}):
            known = ", ".join(sorted(services.get(domain, {}))[:50]) or f"none in {domain!r}"
            raise ServiceRefused(f"There is no service {domain}.{service}. Known services: {known}.")
        changed = await client.call_service(domain, service, data)
        return {"called": f"{domain}.{service}", "changed": changed[:MAX_LISTED]}

    def check_service(self, args: Json, _: CallContext) -> Json:
        """Return the data for a service call. Raises an error if the call is not allowed."""
        self._require_allowed(args["domain"])
        data = {**args.get("data", {})}
        if "entity_id" in args:
            data["entity_id"] = args["entity_id"]
        if len(json.dumps(data)) > MAX_DATA_CHARS:
            raise ServiceRefused(
                f"The data for the service call has more than {MAX_DATA_CHARS:,} characters."
            )
        self.outside_text.require_no_secret(json.dumps(data, ensure_ascii=False), "The data")
        return data

    def _require_allowed(self, domain: str) -> None:
        if domain in BLOCKED_DOMAINS and domain not in self.settings.allowed_domains:
            raise ServiceRefused(
                f"Services of the domain {domain!r} can run programs, operate any device or delete records,"
                " so they are not called. Only the user can allow them, in the setting"
                " homeassistant.allowed_domains."
            )

    async def _page(self, key: str, found: list[Any]) -> Json:
        """Return the first MAX_LISTED items as text, with suspected injected instructions marked."""
        rest = {"total": len(found), "note": f"Only the first {MAX_LISTED} are shown. Narrow the search."}
        lines = [each if isinstance(each, str) else _to_text(each) for each in found[:MAX_LISTED]]
        text = await self.outside_text.mark("\n".join(lines))
        return {key: text or "none", **(rest if len(found) > MAX_LISTED else {})}

    async def _mark(self, value: Json) -> str:
        return await self.outside_text.mark(shorten(_to_text(value), MAX_STATE_CHARS))

    def _client(self) -> HomeAssistantClient:
        from toolfold.tools.internet.home_assistant import open_client

        self.check()
        return open_client(
            self.settings.url,
            self._token(),
            interface=self.settings.interface,
            timeout_s=self.settings.timeout_seconds,
            mark=self.outside_text.mark,
        )

    def _token(self) -> str:
        return self.environment.get(self.settings.key_env, "").strip()


def _read_name(state: Json) -> str:
    attributes = state.get("attributes")
    return _shorten(attributes.get("friendly_name", "")) if isinstance(attributes, dict) else ""


def _shorten(value: object) -> str:
    return shorten(str(value or ""), MAX_NAME_CHARS * 2)


def _to_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
