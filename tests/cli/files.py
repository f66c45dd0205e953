"""A small tool catalog and messages for it."""

from __future__ import annotations

import json
from typing import Any

LONG = "billing.invoices/create-and-send-" + "very-" * 20 + "quickly"
TOOLS = {
    "get_weather": "The weather forecast of a city.",
    "send_email": "Send an email message to a person.",
    "delete_branch": "Delete a branch of a git repository.",
    "users.list": "List the users of the workspace.",
    "größe_ändern": "Resize an image.",
    LONG: "Create an invoice for a customer and send it.",
}
QUERIES: list[dict[str, Any]] = [
    {"id": "w", "query": "weather forecast for Oslo", "gold": ["get_weather"], "kind": "plain"},
    {"id": "i", "query": "create an invoice for the customer", "gold": [LONG], "kind": "plain"},
    {"id": "g", "query": "resize the image", "gold": ["größe_ändern"], "kind": "odd"},
    {"id": "u", "query": "list all users", "gold": ["users.list"], "kind": "odd"},
    {"id": "none", "query": "thanks a lot!", "gold": []},
]


def definition(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function, "meta": {"server": "desk"}}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
