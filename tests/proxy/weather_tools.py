"""Tools that tests of the proxy send: one for the weather among many others, and calls of it by a model."""

from __future__ import annotations

from toolfold.core.types import Json


def define(name: str, description: str, **parameters: str) -> Json:
    """Return the definition of a function tool."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"name": name, "description": description, "parameters": schema}


FORECAST = define("get_forecast", "Weather forecast for a city.", city="string", days="integer")
INVOICE = define("send_invoice", "Send an invoice to a customer.", customer="string")
TOOLS = [
    FORECAST,
    INVOICE,
    *(
        define(f"ledger_operation_{n}", f"Book entry type {n} in the ledger.", amount="number")
        for n in range(40)
    ),
]
SEARCH: tuple[str, Json] = ("tool_search", {"query": "weather forecast"})
FORECAST_CALL: tuple[str, Json] = (
    "tool_call",
    {"name": "get_forecast", "arguments": {"city": "Porto", "days": 2}},
)


def names_of(request: Json) -> list[str]:
    """Return the names of the tools of a request."""
    return [tool.get("name") or tool["function"]["name"] for tool in request["tools"]]
