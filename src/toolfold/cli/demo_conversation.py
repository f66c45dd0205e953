"""The conversations of the demo: a scripted model that answers sample messages with real tool calls.

Each reply depends only on the messages of the request, so that messages can be sent in any order, taken back
and repeated. Uses what the calls have returned; knows nothing of how the conversation is shown.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolfold.core.types import Json, ToolCall
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

PARCEL = "Where is the parcel I sent to Lisbon? Write to Ines Moreira when it will arrive."
INVOICE = "Create an invoice for Halden Ltd over 1,200 euros, due in 30 days"
CLEAN_UP = "Delete the folder old-exports"
MESSAGES = (PARCEL, INVOICE, CLEAN_UP)
OLD_FOLDER = "old-exports"

_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    PARCEL: ("parcel", "lisbon", "shipment"),
    INVOICE: ("invoice", "halden"),
    CLEAN_UP: ("delete", "folder", OLD_FOLDER),
}
# Parts of the messages that models receive about calls without approval.
_DECLINED = "the request was declined"
_NOT_ANSWERED = "was not run:"
_EXPLANATION = (
    "I am a script, not a model, and know only these messages:\n\n"
    + "\n".join(f"- {message}" for message in MESSAGES)
    + "\n\nThe tools are real, with simulated services behind them. `/help` lists what else you can try."
)

Step = Callable[[Sequence[Json]], ScriptedReply | str]
"""Function that returns the scripted model's next reply, given the results of its tool calls so far."""


def build_demo_model(*, delta_delay_s: float = 0.0) -> ScriptedProvider:
    """Return the scripted model of the demo, which makes no network requests."""
    return ScriptedProvider(itertools.repeat(_answer), model="demo", delta_delay_s=delta_delay_s)


def _answer(request: ModelRequest) -> ScriptedReply | str:
    """Return the scripted model's next reply to the user's latest message."""
    messages = list(request.messages)
    start = max((number for number, each in enumerate(messages) if each["role"] == "user"), default=0)
    topic = _find_topic(str(messages[start].get("content", "")))
    if not topic:
        return _EXPLANATION
    results = [_read_result(each) for each in messages[start:] if each["role"] == "tool"]
    if results and "error" in results[-1]:
        return _explain_failure(topic, str(results[-1]["error"]))
    done = sum(each["role"] == "assistant" for each in messages[start:])
    steps = _STEPS[topic]
    step: Step = steps[min(done, len(steps) - 1)]
    return step(results)


def _explain_failure(topic: str, error: str) -> str:
    """Return the reply of the demo's scripted model to a failed tool call."""
    if topic == CLEAN_UP and _DECLINED in error:
        return f"You declined, so the folder `{OLD_FOLDER}` stays."
    if topic == CLEAN_UP and _NOT_ANSWERED in error:
        return f"Deleting needs an approval that nobody gave, so the folder `{OLD_FOLDER}` stays."
    return f"That did not work, so I stop here: {error}"


def _find_topic(text: str) -> str:
    """Return the sample message that shares the most keywords with a message; empty if none shares any."""
    first_line = text.partition("\n")[0].casefold()
    matches = {topic: sum(word in first_line for word in words) for topic, words in _KEYWORDS.items()}
    best = max(matches, key=lambda topic: matches[topic])
    return best if matches[best] else ""


def _read_result(message: Mapping[str, Any]) -> Json:
    result = json.loads(message["content"])
    return result if isinstance(result, dict) else {"result": result}


def _call(text: str, tool: str, arguments: Json) -> ScriptedReply:
    return ScriptedReply(text, [ToolCall(tool, arguments)])


def _list_parcels(_: Sequence[Json]) -> ScriptedReply:
    return _call("I look for the parcel.", "ferrywell_list-shipments", {"state": "in_transit"})


def _track_parcel(results: Sequence[Json]) -> ScriptedReply:
    number = results[0]["shipments"][0]["tracking-number"]
    return _call("", "ferrywell_track-consignment", {"tracking-number": number})


def _write_message(results: Sequence[Json]) -> ScriptedReply:
    parcel = results[1]["consignment"]
    message = {
        "to": [{"email": "ines.moreira@halden.example", "name": "Ines Moreira"}],
        "subject": "Your parcel",
        "body": f"Your parcel {parcel['id']} is due on {parcel['expected']}.",
    }
    return _call("", "larkpost_send_message", message)


def _report_parcel(results: Sequence[Json]) -> str:
    parcel = results[1]["consignment"]
    last = parcel["events"][-1]
    return (
        f"The parcel **{parcel['id']}** {last['what']} in {last['where']} and is due on"
        f" **{parcel['expected']}**. I wrote that to Ines Moreira."
    )


def _draft_invoice(_: Sequence[Json]) -> ScriptedReply:
    line = {"description": "Services", "unit_price": 1200}
    terms = {"debtor_id": "deb-halden", "currency": "EUR", "payment_terms_days": 30}
    return _call("I prepare a draft.", "tallyhouse_draft_invoice", {**terms, "lines": [line]})


def _report_invoice(results: Sequence[Json]) -> str:
    invoice = results[0]["created"]
    return (
        f"The draft **{invoice['id']}** is ready and was not sent.\n\n"
        "| customer | amount | due |\n|---|---|---|\n"
        f"| Halden Ltd | {invoice['lines'][0]['unit_price']:,} {invoice['currency']} |"
        f" in {invoice['payment_terms_days']} days |"
    )


def _delete_folder(_: Sequence[Json]) -> ScriptedReply:
    return _call("", "terminal", {"command": f"rm -rf {OLD_FOLDER}"})


_STEPS: Mapping[str, Sequence[Step]] = {
    PARCEL: (_list_parcels, _track_parcel, _write_message, _report_parcel),
    INVOICE: (_draft_invoice, _report_invoice),
    CLEAN_UP: (_delete_folder, lambda _: f"The folder `{OLD_FOLDER}` is deleted."),
}
