"""Replies that were cut, empty, malformed or useless, and requests that are too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import check_cases
from tests.conftest import RuntimeOpener, recording_tool
from toolfold import Agent, CallError, Runtime, ToolCall, tool
from toolfold.agent import AgentLimits
from toolfold.agent.compression import REQUEST_OPENING, SUMMARY_OPENING, find_cut
from toolfold.core.types import Json
from toolfold.models import DIALECTS, get_dialect
from toolfold.models.client import ModelClient
from toolfold.models.dialect import NOTICE_OPENING
from toolfold.models.model_table import default_output_tokens
from toolfold.models.provider_errors import ProviderError, classify_status
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.selection.turn.tokens import TokenCounter, tokenizer_for
from toolfold.state.store import MessageRecord, SqliteSessionStore

WHOLE = '{"path": "a.txt", "content": "one"}'
CUT = '{"path": "b.txt", "content": "two and'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def open_agent(runtime: Runtime, store: SqliteSessionStore, *steps: Step, **options: object) -> Agent:
    return Agent(ScriptedProvider(steps), runtime=runtime, store=store, **options)  # type: ignore[arg-type]


def sent_requests(agent: Agent) -> list[ModelRequest]:
    client: ModelClient = agent._deps.client
    assert isinstance(client, ScriptedProvider)
    return client.requests


def cut_reply(text: str = "", *calls: ToolCall) -> ScriptedReply:
    return ScriptedReply(text, calls, {"prompt_tokens": 10, "completion_tokens": 8_192}, "length")


@tool(toolset="harbour")
def open_gate(bolt: int = 0) -> str:
    """Open the gate."""
    raise CallError(f"the bolt {bolt} is stuck")


def chat_reply(calls: list[str], finish: str) -> Json:
    listed = [
        {"id": f"c{at}", "type": "function", "function": {"name": "write_file", "arguments": text}}
        for at, text in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "Writing", "tool_calls": listed}
    return {"choices": [{"message": message, "finish_reason": finish}]}


async def test_cut_text_is_continued_once_and_joined(runtime: Runtime, store: SqliteSessionStore) -> None:
    agent = open_agent(runtime, store, cut_reply("The boats are "), "in the harbour.")
    result = await agent.run("Where are the boats?")
    assert (result.text, result.reason) == ("The boats are in the harbour.", "completed")
    notice = agent.history.messages[2]["content"]
    assert notice.startswith(NOTICE_OPENING)
    assert "cut at 8,192 output tokens" in notice
    assert [entry.role for entry in agent.history.entries] == ["user", "assistant", "notice", "assistant"]


async def test_text_that_is_cut_twice_ends_the_turn_with_the_text_and_the_reason(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent = open_agent(runtime, store, cut_reply("one "), cut_reply("two "), "never asked for")
    result = await agent.run("Count")
    assert (result.text, result.reason) == ("one two ", "output_limit")
    assert "8,192 output tokens" in result.error
    assert not result.ok


async def test_cut_call_is_not_run_and_the_model_is_told_to_write_in_parts(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    calls = [ToolCall("write_file", WHOLE, "c1"), ToolCall("write_file", CUT, "c2")]
    agent = open_agent(runtime, store, cut_reply("", *calls), "Done.")
    assert (await agent.run("Write both files")).ok
    results = {
        each["tool_call_id"]: each["content"] for each in agent.history.messages if each["role"] == "tool"
    }
    assert "error" not in json.loads(results["c1"])
    problem = json.loads(results["c2"])["error"]
    assert "cut at 8,192 output tokens" in problem
    assert "append=true" in problem
    assert "JSON" not in problem


async def test_complete_call_of_a_cut_reply_runs(runtime: Runtime, store: SqliteSessionStore) -> None:
    ran: list[str] = []
    runtime.registry.add(recording_tool("count_boats", "harbour", ran))
    reply = cut_reply("", ToolCall("count_boats", '{"pier": 1}', "c1"))
    await open_agent(runtime, store, reply, "Three.").run("How many boats?")
    assert ran == ["count_boats"]


async def test_call_that_is_cut_again_and_again_ends_the_turn(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    steps = [cut_reply("", ToolCall("write_file", CUT + "x" * at, f"c{at}")) for at in range(9)]
    agent = open_agent(runtime, store, *steps)
    result = await agent.run("Write the file")
    assert result.reason == "repeated_failure"
    assert len(sent_requests(agent)) == 4


async def test_empty_reply_is_asked_for_once_more_and_then_reported(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent = open_agent(runtime, store, "", "Three boats.", "", " \n", "never asked for")
    assert (await agent.run("How many boats?")).text == "Three boats."
    result = await agent.run("And at night?")
    assert (result.text.strip(), result.reason) == ("", "empty_reply")
    assert "empty" in result.error


async def test_identical_failures_are_pointed_out_and_then_end_the_turn(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    runtime.registry.add(open_gate)
    steps = [ScriptedReply(calls=[ToolCall("open_gate", '{"bolt": 2}', f"c{at}")]) for at in range(9)]
    agent = open_agent(runtime, store, *steps)
    result = await agent.run("Open the gate")
    texts = [json.loads(each["content"]) for each in agent.history.messages if each["role"] == "tool"]
    assert (result.reason, len(texts)) == ("repeated_failure", 4)
    assert "open_gate" in result.error
    assert "the bolt 2 is stuck" in result.error
    assert "repeated" not in texts[0]
    assert "failed 2 times" in texts[1]["repeated"]
    assert "your turn ends" in texts[2]["repeated"]


async def test_failures_with_other_arguments_do_not_end_the_turn(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    runtime.registry.add(open_gate)
    steps = [ScriptedReply(calls=[ToolCall("open_gate", {"bolt": at}, f"c{at}")]) for at in range(6)]
    result = await open_agent(runtime, store, *steps, "It is stuck.").run("Open the gate")
    assert result.text == "It is stuck."


async def test_limit_of_repeated_failures_can_be_set(runtime: Runtime, store: SqliteSessionStore) -> None:
    runtime.registry.add(open_gate)
    steps = [ScriptedReply(calls=[ToolCall("open_gate", {}, f"c{at}")]) for at in range(9)]
    agent = open_agent(runtime, store, *steps, limits=AgentLimits(max_repeated_failures=2))
    assert (await agent.run("Open the gate")).reason == "repeated_failure"
    assert len(sent_requests(agent)) == 2


@check_cases("name", [*DIALECTS])
def test_cut_reply_is_recognised_in_each_dialect(name: str) -> None:
    call = {"type": "tool_use", "id": "c", "name": "write_file", "input": {}}
    item = {"type": "function_call", "call_id": "c", "name": "write_file", "arguments": CUT}
    bodies: dict[str, Json] = {
        "openai": chat_reply([CUT], "length"),
        "anthropic": {"content": [call], "stop_reason": "max_tokens"},
        "responses": {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [item],
        },
    }
    reply = get_dialect(name).read_reply(bodies[name])
    assert reply.is_cut
    assert [each.name for each in reply.calls] == ["write_file"]


@check_cases(
    ("arguments", "sent"),
    [
        (WHOLE, json.loads(WHOLE)),
        (CUT, {}),
        ("", {}),
        ("[1]", {}),
        ("null", {}),
        (json.dumps(WHOLE), json.loads(WHOLE)),
    ],
)
def test_malformed_arguments_are_never_sent_back_in_any_dialect(arguments: str, sent: Json) -> None:
    for name in DIALECTS:
        dialect = get_dialect(name)
        history = [
            dialect.user_message("Write"),
            *dialect.render_calls("Writing", [ToolCall("write_file", arguments, "c1")]),
        ]
        body = json.dumps(dialect.build_body(ModelRequest(model="m", messages=history)))
        data = json.loads(body)
        items = data.get("messages") or data["input"]
        found = [
            json.loads(call["function"]["arguments"]) for each in items for call in each.get("tool_calls", ())
        ]
        found += [json.loads(each["arguments"]) for each in items if each.get("type") == "function_call"]
        found += [
            block["input"]
            for each in items
            if isinstance(each.get("content"), list)
            for block in each["content"]
            if block["type"] == "tool_use"
        ]
        assert found == [sent], name


async def test_malformed_arguments_stay_in_the_stored_session(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    steps: list[Step] = [ScriptedReply(calls=[ToolCall("write_file", "{oops", "c1")]), "Sorry."]
    agent = open_agent(runtime, store, *steps)
    await agent.run("Write")
    (call,) = agent.history.messages[1]["tool_calls"]
    assert call["function"]["arguments"] == "{oops"


@check_cases(
    ("status", "message"),
    [
        (
            400,
            "This model's maximum context length is 128000 tokens.",
        ),
        (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
        (400, "prompt is too long: 208310 tokens > 200000 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input"),
        (400, "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000"),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        (400, "'max_tokens' is too large: 8192. This model's maximum context length is 4096 tokens"),
        (400, "the request exceeds the available context size. try increasing the context size"),
        (500, "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"),
        (400, "Bad request exceed_context_size_error"),
        (400, "the input length exceeds the context length"),
        (500, "input length exceeds maximum context length"),
        (400, "ValidationException: Input is too long for requested model."),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        (
            400,
            "Unable to submit request because the input token count is 33000 but model only supports 32768",
        ),
        (400, "Please reduce the length of the messages or completion. context_length_exceeded"),
        (413, "Request Entity Too Large"),
        (
            429,
            "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 40000",
        ),
        (
            400,
            "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        ),
        (
            422,
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097.",
        ),
        (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        (400, "prompt token count of 128837 exceeds the limit of 128000 model_max_prompt_tokens_exceeded"),
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        (
            400,
            "the model is loaded with a context length of only 4096 tokens, not enough",
        ),
        (400, "Invalid request: Your request exceeded model token limit: 131072"),
    ],
)
def test_overflow_is_recognised_in_the_words_of_each_provider(status: int, message: str) -> None:
    assert classify_status(status, message) == "context_length"


@check_cases(
    ("status", "message", "kind"),
    [
        (400, "messages.1.content: Field required", "bad_request"),
        (400, "tools.3.input_schema: unknown keyword 'context'", "bad_request"),
        (400, "Invalid value for max_tokens: must be at most 8192", "bad_request"),
        (429, "Rate limit reached for tokens per min. Please try again in 6s.", "rate_limit"),
        (500, "The server had an error while processing your request", "server"),
        (404, "The model `context-length-tester` does not exist", "not_found"),
    ],
)
def test_other_errors_are_not_taken_for_an_overflow(status: int, message: str, kind: str) -> None:
    assert classify_status(status, message) == kind


def test_default_output_limit_is_the_models_own_and_at_most_a_third_of_its_window() -> None:
    assert default_output_tokens("claude-sonnet-4-6") == 64_000
    assert default_output_tokens("claude-opus-4-1") == 32_000
    assert default_output_tokens("claude-sonnet-4-6", 30_000) == 10_000
    assert default_output_tokens("unknown") == 8_192
    body = get_dialect("anthropic").build_body(ModelRequest(model="claude-sonnet-4-6", messages=[]))
    assert body["max_tokens"] == 64_000


async def test_history_is_compressed_before_input_and_output_exceed_the_window(
    open_test_runtime: RuntimeOpener, store: SqliteSessionStore
) -> None:
    runtime = open_test_runtime({"agent": {"max_output_tokens": 6_000, "compress_at_percent": 95}})

    def answer(request: ModelRequest) -> str:
        return "A summary." if "Summarise" in request.system else "Noted. " + "word " * 600

    agent = open_agent(runtime, store, *[answer] * 20, context_tokens=10_000)
    for _ in range(6):
        assert (await agent.run("Remember this. " + "again " * 300)).ok
    assert agent.history.messages[0]["content"].startswith(SUMMARY_OPENING)


class TestCompression:
    async def test_kept_history_begins_with_a_user_message_and_results_have_a_head_and_a_tail(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        listing = "\n".join(f"line {at} says hello" for at in range(1_000))

        @tool(toolset="harbour")
        def list_lines() -> str:
            """List all lines."""
            return listing

        runtime.registry.add(list_lines)
        transcripts: list[str] = []

        def summarise(request: ModelRequest) -> str:
            transcripts.append(request.messages[0]["content"])
            return "A summary."

        calls = [ToolCall("list_lines", "{}", f"c{at}") for at in range(3)]
        too_long = ProviderError("prompt is too long", kind="context_length")
        steps: list[Step] = [ScriptedReply(calls=calls), "Listed.", "x " * 500, too_long, summarise, "Later."]
        agent = open_agent(runtime, store, *steps, context_tokens=200_000)
        for message in ("List the lines", "Go on", "And now?"):
            assert (await agent.run(message)).ok
        (transcript,) = transcripts
        assert transcript.count("line 0 says hello") == 3  # each result has its own share
        assert transcript.count("line 999 says hello") == 3
        assert transcript.count("RESULT of list_lines") == 3
        assert "\\\\n" not in transcript  # results are not escaped twice
        assert [entry.role for entry in agent.history.entries][:2] == ["user", "user"]

    def test_cut_inside_a_long_turn_is_before_a_reply(self) -> None:
        roles = ["user", "assistant", "tool", "tool", "assistant", "assistant", "tool", "assistant", "tool"]
        entries = [MessageRecord(body={"role": role, "content": "word " * 50}, role=role) for role in roles]
        counter = TokenCounter(tokenizer_for("gpt-5"))
        cuts = {find_cut(entries, counter, keep_tokens=tokens) for tokens in range(0, 700, 10)}
        assert cuts == {0, 4, 7}

    async def test_request_of_a_turn_that_is_cut_is_repeated_word_for_word(
        self, runtime: Runtime, store: SqliteSessionStore
    ) -> None:
        @tool(toolset="harbour")
        def list_lines(page: int) -> str:
            """List the lines of a page."""
            return "word " * 1_500

        runtime.registry.add(list_lines)

        def step(request: ModelRequest) -> str | ScriptedReply:
            if "Summarise" in request.system:
                return "A summary."
            page = len(request.messages)
            return ScriptedReply(calls=[ToolCall("list_lines", {"page": page}, f"c{page}-{id(request)}")])

        agent = open_agent(
            runtime, store, *[step] * 12, context_tokens=10_000, limits=AgentLimits(max_steps=10)
        )
        await agent.run("Read all pages of the blue book")
        first = agent.history.messages[0]["content"]
        assert first.startswith(SUMMARY_OPENING)
        assert f"{REQUEST_OPENING}\n\nRead all pages of the blue book" in first
        calls = [each for each, _ in agent.history.dialect.find_calls(agent.history.messages)]
        assert set(calls) == agent.history.dialect.find_result_ids(agent.history.messages)


async def test_half_of_a_surrogate_pair_in_a_message_or_reply_does_not_end_the_turn(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    async with open_agent(runtime, store, "half \ud83d", "again") as agent:
        first = await agent.run("half \udfff")
        assert (first.text, first.reason) == ("half \ufffd", "completed")
        assert (await agent.run("more")).text == "again"


async def test_reply_that_is_nested_too_deeply_does_not_end_the_turn(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    nested: Json = {}
    for _ in range(10_000):
        nested = {"a": nested}
    async with open_agent(runtime, store, ScriptedReply("done", usage=nested)) as agent:
        assert (await agent.run("hello")).text == "done"
