"""The runtime's own tools, added to the requests of clients and run inside the proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S
from tests.proxy.clients import APIS, Seen, ask, make_tools
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST, FORECAST_CALL, INVOICE, TOOLS
from toolfold.core.types import ApprovalRequest, Approver, Json
from toolfold.models.wire import WIRES
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.proxy.runtime_tools import MAX_CLIENT_SESSIONS, RuntimeTools

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)
each_api = pytest.mark.parametrize("api", APIS)
with_and_without_streaming = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
QUESTION: Json = {"role": "user", "content": "Take a note."}
NOTE: tuple[str, Json] = ("take_note", {"text": "milk"})
SEARCH: tuple[str, Json] = ("tool_search", {"query": "send an invoice"})
PLUGIN = """
from toolfold import CallContext, tool

@tool(toolset="notes")
def take_note(text: str) -> str:
    "Take a note."
    return f"noted {text}"

@tool(toolset="notes", effects=["destructive"])
def burn_notes(text: str) -> str:
    "Destroy all notes."
    return f"burnt {text}"

@tool(toolset="letters")
def send_letter(text: str) -> str:
    "Send a letter."
    return f"sent {text}"

@tool(toolset="notes")
async def delegate_to(name: str, context: CallContext) -> str:
    "Call another tool."
    result = await context.nested(name, {"text": "inside"})
    return f"{context.caller.name} in {context.session_id}: {result.text}"

def register(plugin):
    for each in (take_note, burn_notes, send_letter, delegate_to):
        plugin.add(each)
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


def serve(home: Path, upstream: Upstream, **settings: Any) -> Any:
    approver: Approver | None = settings.pop("approver", None)
    plugins = home / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "notes.py").write_text(PLUGIN)
    defaults: dict[str, Any] = {
        "proxy.toolsets": ["notes"],
        "proxy.native": "off",
        "tools.rag_embed_model": "light",
        "tools.tool_search.enabled": "off",
    }
    return serve_proxy(home, upstream.url, {**defaults, **settings}, approver=approver)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    with serve(tmp_path_factory.mktemp("runtime_tools"), upstream) as made:
        yield made


def converse(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool, *script: Say, **options: Any
) -> tuple[Seen, list[Json]]:
    """Ask the model with this script; return what the client sees and the provider gets."""
    model = ScriptedModel(list(script))
    upstream.answer = model
    options = {"tools": make_tools(api, [FORECAST, INVOICE]), "messages": [QUESTION], **options}
    messages = options.pop("messages")
    return ask(api, served.url, messages, stream=stream, **options), model.requests


def names_of(request: Json) -> set[str]:
    return {str(each.get("name") or each.get("function", {}).get("name")) for each in request["tools"]}


@each_api
@with_and_without_streaming
def test_tool_added_by_the_proxy_runs_in_the_proxy_and_the_client_gets_only_the_answer(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    seen, (first, second) = converse(served, upstream, api, stream, Say("", [NOTE]), Say("Done."))
    assert (seen.text, seen.calls) == ("Done.", [])
    assert names_of(first) == {"get_forecast", "send_invoice", "take_note", "burn_notes", "delegate_to"}
    assert "noted milk" in json.dumps(second)
    assert seen.usage == {"input": 200, "output": 20}
    if not stream:
        assert seen.headers["x-toolfold-folding"].endswith("ran=1")


@each_api
def test_proxy_tool_call_that_needs_approval_is_refused_without_asking_a_person(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    burn: tuple[str, Json] = ("burn_notes", {"text": "all"})
    seen, (_, second) = converse(served, upstream, api, True, Say("", [burn]), Say("Refused."))
    assert seen.text == "Refused."
    assert "was not run" in json.dumps(second)
    assert "burnt" not in json.dumps(second)


@each_api
@with_and_without_streaming
def test_client_gets_only_the_client_tool_calls_of_a_reply_that_also_calls_proxy_tools(
    served: RunningProxy, upstream: Upstream, api: str, stream: bool
) -> None:
    forecast: tuple[str, Json] = ("get_forecast", {"city": "Porto", "days": 2})
    invoice: tuple[str, Json] = ("send_invoice", {"customer": "Ada"})
    seen, requests = converse(served, upstream, api, stream, Say("Both.", [forecast, NOTE, invoice]))
    assert seen.calls == [forecast, invoice]
    assert len(requests) == 1
    assert "ran=" not in seen.headers["x-toolfold-folding"]


@each_api
def test_next_request_to_the_provider_repeats_proxy_tool_calls_that_were_hidden_from_the_client(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    seen, before = converse(served, upstream, api, True, Say("", [NOTE]), Say("Noted it."))
    messages = [QUESTION, {"role": "assistant", "content": seen.text}, {"role": "user", "content": "More."}]
    _, (after,) = converse(served, upstream, api, True, Say("Yes."), messages=messages)
    key = "input" if api == "responses" else "messages"
    assert after[key][: len(before[1][key])] == before[1][key]
    assert after["tools"] == before[1]["tools"]


@each_api
def test_results_of_proxy_tools_are_not_added_to_another_conversation_with_the_same_reply_text(
    served: RunningProxy, upstream: Upstream, api: str
) -> None:
    secret: tuple[str, Json] = ("take_note", {"text": "the secret"})
    converse(served, upstream, api, True, Say("", [secret]), Say("It is done."))
    other: list[Json] = [
        {"role": "user", "content": "Something else."},
        {"role": "assistant", "content": "It is done."},
        {"role": "user", "content": "Thanks."},
    ]
    _, (request,) = converse(served, upstream, api, True, Say("You are welcome."), messages=other)
    assert "the secret" not in json.dumps(request)


@each_api
def test_hidden_results_of_one_user_are_not_restored_in_the_same_history_sent_by_another_user(
    tmp_path: Path, upstream: Upstream, api: str
) -> None:
    secret: tuple[str, Json] = ("take_note", {"text": "the secret"})
    forecast: tuple[str, Json] = ("get_forecast", {"city": "Porto", "days": 2})
    with serve(tmp_path, upstream) as served:
        users = {name: served.tokens.users.add_user(name).id for name in ("ann", "bob")}
        headers = {
            name: {"x-toolfold-token": served.tokens.add(f"{name}-laptop", user_id=user_id)}
            for name, user_id in users.items()
        }
        script = Say("", [secret]), Say("It is done.", [forecast])
        seen, _ = converse(served, upstream, api, True, *script, extra_headers=headers["ann"])
        found = {}
        for name in ("bob", "ann"):
            history = [QUESTION, *render_call(api, seen.text, seen.call_ids[0], *forecast)]
            _, (request, *_) = converse(
                served, upstream, api, True, Say("Yes."), messages=history, extra_headers=headers[name]
            )
            found[name] = "the secret" in json.dumps(request)
    assert found == {"ann": True, "bob": False}


def render_call(api: str, text: str, call_id: str, name: str, arguments: Json) -> list[Json]:
    """Return a reply with a call, and the call's result, as a client of the API sends them."""
    written = json.dumps(arguments)
    if api == "responses":
        call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": written}
        result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
        return [{"role": "assistant", "content": text}, call, result]
    if api == "messages":
        use = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        block = {"type": "tool_result", "tool_use_id": call_id, "content": "sunny"}
        content = [{"type": "text", "text": text}, use]
        return [{"role": "assistant", "content": content}, {"role": "user", "content": [block]}]
    chat_call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}
    return [
        {"role": "assistant", "content": text, "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": call_id, "content": "sunny"},
    ]


def test_results_of_proxy_tools_are_restored_even_if_the_client_moved_a_cache_marker(
    served: RunningProxy, upstream: Upstream
) -> None:
    block = {"type": "text", "text": "Mark this.", "cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [block]}
    script = (Say("", [NOTE]), Say("Marked."))
    converse(served, upstream, "messages", True, *script, messages=[marked])
    history: list[Json] = [
        {"role": "user", "content": "Mark this."},
        {"role": "assistant", "content": "Marked."},
        {"role": "user", "content": "More."},
    ]
    _, (request,) = converse(served, upstream, "messages", True, Say("Yes."), messages=history)
    assert "noted milk" in json.dumps(request)


@each_api
def test_proxy_tools_and_client_tools_can_be_found_by_tool_search_and_called_by_tool_call(
    tmp_path: Path, upstream: Upstream, api: str
) -> None:
    through: tuple[str, Json] = ("tool_call", {"name": NOTE[0], "arguments": NOTE[1]})
    with serve(tmp_path, upstream, **{"proxy.folding": "on"}) as served:
        script = (
            Say("", [("tool_search", {"query": "take a note"})]),
            Say("", [through]),
            Say("", [FORECAST_CALL]),
        )
        seen, requests = converse(served, upstream, api, True, *script, tools=make_tools(api, TOOLS))
    assert seen.calls == [("get_forecast", {"city": "Porto", "days": 2})]
    assert "take_note" in json.dumps(requests[1])
    assert "noted milk" in json.dumps(requests[2])


def test_last_request_allowed_by_max_tool_rounds_forbids_further_tool_calls(
    tmp_path: Path, upstream: Upstream
) -> None:
    settings = {"proxy.max_tool_rounds": 2, "proxy.max_search_rounds": 1}
    with serve(tmp_path, upstream, **settings) as served:
        script = (Say("", [NOTE]), Say("", [NOTE]), Say("Enough."))
        seen, requests = converse(served, upstream, "messages", False, *script)
    assert seen.text == "Enough."
    assert [each.get("tool_choice") for each in requests] == [None, None, {"type": "none"}]
    assert json.dumps(requests[2]).count("noted milk") == 2


def ask_with_token(
    served: RunningProxy, token: str, model: ScriptedModel, upstream: Upstream, **options: Any
) -> httpx2.Response:
    """Send a chat request with a token to this model."""
    upstream.answer = model
    body = {"model": "gpt-4.1", "messages": [QUESTION], "tools": make_tools("chat", [FORECAST]), **options}
    headers = {"x-toolfold-token": token}
    return httpx2.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=TIMEOUT_S)


def test_proxy_adds_only_tools_from_the_toolsets_of_the_client_token(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve(tmp_path, upstream, **{"proxy.toolsets": ["notes", "letters"]}) as served:
        tokens = {
            "letters": served.tokens.add("letters", ["letters"], may_use_keys=True),
            "web": served.tokens.add("web", ["web"]),
        }
        listed, ran = {}, {}
        for name, token in tokens.items():
            model = ScriptedModel([Say("", [NOTE]), Say("x"), Say("x")])
            answer = ask_with_token(served, token, model, upstream)
            listed[name] = names_of(model.requests[0])
            ran[name] = answer.json()["choices"][0]["message"].get("tool_calls") is None
    assert listed == {"letters": {"get_forecast", "send_letter"}, "web": {"get_forecast"}}
    assert ran == {"letters": False, "web": False}  # a call of another tool is left to the client


def test_access_rules_of_a_user_determine_which_tools_the_proxy_adds_and_runs(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve(tmp_path, upstream, **{"proxy.toolsets": ["notes", "letters"]}) as served:
        users = served.tokens.users
        user = users.add_user("ann")
        users.add_team("red")
        users.join_team("red", "ann")
        token = served.tokens.add("laptop", user_id=user.id)
        users.change_user("ann", lambda each: replace(each, allowed=("notes", "tool:send_letter")))
        users.change_team("red", lambda each: replace(each, denied=("tool:burn_notes",)))

        said = iter([Say("", [NOTE]), Say("Done."), Say("", [NOTE]), Say("No.")])

        def reply(_: Json) -> Say:
            if len(model.requests) == 3:  # a tool is denied while the model writes a call of it
                users.change_team("red", lambda each: replace(each, denied=("tool:take_note",)))
            return next(said)

        model = ScriptedModel(reply)
        answers = [ask_with_token(served, token, model, upstream) for _ in range(2)]
        nested: list[tuple[str, Json]] = [("delegate_to", {"name": "take_note"})]
        last = ScriptedModel([Say("", nested), Say("No.")])
        ask_with_token(served, token, last, upstream)
    assert names_of(model.requests[0]) == {"get_forecast", "take_note", "delegate_to", "send_letter"}
    assert "noted milk" in json.dumps(model.requests[1])
    assert [each.json()["choices"][0]["message"]["content"] for each in answers] == ["Done.", "No."]
    assert "noted milk" not in json.dumps(model.requests[3]["messages"])
    assert names_of(last.requests[0]) == {"get_forecast", "burn_notes", "delegate_to", "send_letter"}
    assert "noted inside" not in json.dumps(last.requests[1])


def test_proxy_tool_cannot_call_tools_outside_the_setting_proxy_toolsets(
    tmp_path: Path, upstream: Upstream
) -> None:
    with serve(tmp_path, upstream) as served:
        token = served.tokens.add("writer", ["notes", "letters"])
        calls: list[tuple[str, Json]] = [
            ("delegate_to", {"name": each}) for each in ("send_letter", "take_note")
        ]
        model = ScriptedModel([Say("", calls), Say("Done.")])
        ask_with_token(served, token, model, upstream)
    results = [each["content"] for each in model.requests[1]["messages"] if each["role"] == "tool"]
    assert "sent inside" not in results[0]
    assert "noted inside" in results[1]
    assert "writer in " in results[1]


def test_proxy_tools_run_in_a_separate_session_for_each_conversation_of_a_client(
    served: RunningProxy, upstream: Upstream
) -> None:
    call: tuple[str, Json] = ("delegate_to", {"name": "take_note"})
    first = [{"role": "user", "content": "First."}]
    more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
    sessions = []
    for messages, answer in ((first, "Done."), (first, "Other."), ([*first, *more], "Again.")):
        script = Say("", [call]), Say(answer)
        _, (_, after) = converse(served, upstream, "chat", False, *script, messages=messages)
        results = [each["content"] for each in after["messages"] if each["role"] == "tool"]
        sessions.append(results[-1])
    assert sessions[0] == sessions[2] != sessions[1]


def test_session_of_an_idle_conversation_is_closed_unless_a_tool_call_is_running(
    served: RunningProxy,
) -> None:
    client, wire = GatewayClient("editor"), WIRES["messages"]
    with closing(RuntimeTools(served.runtime, ("notes",), idle_timeout=0.0)) as tools:
        idle, busy = (tools.find(client, wire, each, ()).conversation for each in (b"idle", b"busy"))
        with busy.mark_running():
            tools.find(client, wire, b"another", ())
            found = [tools.find(client, wire, each, ()).conversation for each in (b"idle", b"busy")]
    assert found[0] is not idle
    assert found[1] is busy


def test_opening_a_session_above_the_client_limit_closes_only_the_oldest_session_of_the_client(
    served: RunningProxy,
) -> None:
    wire = WIRES["messages"]
    with closing(RuntimeTools(served.runtime, ("notes",))) as tools:
        quiet = tools.find(GatewayClient("quiet"), wire, b"start", ()).conversation
        first = tools.find(GatewayClient("busy"), wire, b"start", ()).conversation
        for number in range(MAX_CLIENT_SESSIONS):
            tools.find(GatewayClient("busy"), wire, str(number).encode(), ())
        assert tools.find(GatewayClient("quiet"), wire, b"start", ()).conversation is quiet
        assert tools.find(GatewayClient("busy"), wire, b"start", ()).conversation is not first


def test_risky_proxy_tool_call_is_refused_without_asking_the_approver_of_the_runtime(
    tmp_path: Path, upstream: Upstream
) -> None:
    asked: list[ApprovalRequest] = []

    def allow(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    burn: tuple[str, Json] = ("burn_notes", {"text": "all"})
    with serve(tmp_path, upstream, approver=allow) as served:
        _, (_, after) = converse(served, upstream, "chat", False, Say("", [burn]), Say("Refused."))
    assert not asked
    assert "during a model request" in json.dumps(after)


@pytest.mark.parametrize(
    ("stream", "text", "status"), [(False, "", 401), (True, "", 401), (True, "Let me see.", 200)]
)
def test_proxy_tool_does_not_run_if_the_client_token_is_revoked_while_the_model_replies(
    tmp_path: Path, upstream: Upstream, stream: bool, text: str, status: int
) -> None:
    ran: list[str] = []
    with serve(tmp_path, upstream) as served:
        token = served.tokens.add("writer", ["notes"])
        served.runtime.hooks.add_pre_hook(lambda tool, _args, _context: ran.append(tool.name))

        def revoke(_request: Json) -> Say:
            served.tokens.revoke("writer")
            return Say(text, [NOTE])

        model = ScriptedModel(revoke)
        answer = ask_with_token(served, token, model, upstream, stream=stream)
    assert (ran, len(model.requests)) == ([], 1)
    assert answer.status_code == status
    assert "[DONE]" not in answer.text
    assert status == 200 or "revoked" in answer.json()["error"]["message"]


def test_max_search_rounds_limits_provider_requests_if_the_token_allows_no_proxy_tools(
    tmp_path: Path, upstream: Upstream
) -> None:
    settings = {"proxy.folding": "on", "proxy.max_tool_rounds": 5, "proxy.max_search_rounds": 1}
    with serve(tmp_path, upstream, **settings) as served:
        token = served.tokens.add("web", ["web"])
        model = ScriptedModel(
            lambda request: Say("Enough.") if "tool_search" not in names_of(request) else Say("", [SEARCH])
        )
        ask_with_token(served, token, model, upstream, tools=make_tools("chat", TOOLS))
    assert len(model.requests) == 2


def test_client_tool_is_called_if_a_proxy_tool_has_the_same_name(
    served: RunningProxy, upstream: Upstream
) -> None:
    own = {**FORECAST, "name": "take_note"}
    seen, requests = converse(
        served, upstream, "chat", False, Say("", [NOTE]), tools=make_tools("chat", [own])
    )
    assert seen.calls == [NOTE]
    assert [each["function"]["name"] for each in requests[0]["tools"]].count("take_note") == 1
