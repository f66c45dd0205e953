"""Model clients: the official packages against a server that implements each provider's API."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from tests.providers.scripted_server import ScriptedServer, serve_models
from toolfold import Agent
from toolfold.agent import AgentLimits
from toolfold.config import Config, load_config
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.models import DIALECTS, DialectName
from toolfold.models.client import ModelClient, RetryPolicy, call_model, translate_error
from toolfold.models.model_names import (
    ModelName,
    build_client,
    find_context_tokens,
    parse_model_name,
)
from toolfold.models.model_table import find_limits
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest, Reply, TextDelta
from toolfold.state.store import SqliteSessionStore

# Both packages take seconds to import, so they are only looked for here.
pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

KEY = "sk-very-secret-key"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_models() as server:
        yield server


def make_config(tmp_path: Path, server: ScriptedServer, dialect: str) -> Config:
    base_url = server.url if dialect == "anthropic" else f"{server.url}/v1"
    provider = {"dialect": dialect, "base_url": base_url, "key_env": "TEST_KEY"}
    env = {"TOOLFOLD_HOME": str(tmp_path), "HOME": str(tmp_path), "TEST_KEY": KEY}
    return load_config(project=tmp_path, env=env, overrides={"providers": {"test": provider}})


async def call(client: ModelClient, retries: list[float] | None = None, **options: Any) -> tuple[Reply, str]:
    text: list[str] = []
    request = ModelRequest(
        model="m-1",
        system="Be brief.",
        messages=[client.dialect.user_message("Weather in Porto?")],
        **options,
    )
    try:
        reply = await call_model(
            client,
            request,
            on_delta=lambda delta: text.append(delta.text) if isinstance(delta, TextDelta) else None,
            on_retry=lambda _attempt, delay, _error: (retries if retries is not None else []).append(delay),
            on_stream=lambda _: None,
            retries=RetryPolicy(first_delay_s=0.01),
        )
    finally:
        await client.close()
    return reply, "".join(text)


@pytest.mark.thorough(keep=("True",))
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_equal_model_replies_in_all_provider_formats_are_parsed_to_equal_text_calls_and_usage(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, stream: bool
) -> None:
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    reply, text = await call(client, stream=stream)
    assert reply.text == "Let me look."
    assert text == ("Let me look." if stream or dialect != "responses" else "")
    assert [(each.id, each.name) for each in reply.calls] == [("call_1", "forecast")]
    arguments = reply.calls[0].arguments
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"city": "Porto"}
    assert (reply.usage.input_tokens, reply.usage.cached_tokens, reply.usage.output_tokens) == (20, 16, 7)
    assert (reply.finish_reason, reply.model) == ("tool_calls", "m-1")
    assert client.dialect.find_calls(list(reply.messages)) == [("call_1", "forecast")]
    _, body, headers = server.requests[0]
    assert body["model"] == "m-1"
    assert "Be brief." in json.dumps(body)
    assert KEY in headers.get("authorization", "") + headers.get("x-api-key", "")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_failed_model_call_is_retried_after_the_delay_requested_by_the_provider(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, caplog: pytest.LogCaptureFixture
) -> None:
    server.failures = [
        (429, {"retry-after": "0.02"}, {"error": {"message": "slow down", "type": "rate_limit_error"}}),
        (503, {}, {"error": {"message": "overloaded"}}),
    ]
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    retries: list[float] = []
    with caplog.at_level(logging.DEBUG, logger="toolfold"):
        reply, _ = await call(client, retries)
    assert reply.text == "Let me look."
    assert retries[0] == 0.02
    assert len(retries) == 2
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (401, "invalid key", "authentication"),
        (400, "prompt is too long: 300000 tokens", "context_length"),
        (400, "unknown parameter", "bad_request"),
        (404, "no such model", "not_found"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_permanent_provider_errors_such_as_an_invalid_key_are_classified_and_not_retried(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, status: int, message: str, kind: str
) -> None:
    server.failures = [(status, {}, {"error": {"message": message, "type": "x"}})]
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    with pytest.raises(ProviderError) as caught:
        await call(client)
    assert (caught.value.kind, len(server.requests)) == (kind, 1)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("dialect", "status", "problem"),
    [
        # OpenAI, and Groq with the same code
        ("openai", 400, {"message": "Please shorten it.", "code": "context_length_exceeded"}),
        # OpenRouter quotes the error of another provider
        (
            "openai",
            400,
            {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": "x" * 2_000 + "prompt is too long"},
            },
        ),
        # llama.cpp
        ("openai", 400, {"code": 400, "message": "Too long.", "type": "exceed_context_size_error"}),
        # Anthropic
        ("anthropic", 413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
        # errors inside of a stream: OpenAI, OpenRouter, vLLM, llama.cpp, Anthropic
        ("openai", 200, {"message": "Please shorten it.", "code": "context_length_exceeded"}),
        ("openai", 200, {"message": "This endpoint's maximum context length is 8192 tokens", "code": 400}),
        ("openai", 200, {"message": "Too long.", "code": 400, "type": "exceed_context_size_error"}),
        ("responses", 200, {"message": "Please shorten it.", "code": "context_length_exceeded"}),
        ("anthropic", 200, {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}),
    ],
)
async def test_overflow_is_recognised_by_code_and_in_streams_and_not_retried(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, status: int, problem: Json
) -> None:
    if status == 200:
        server.stream_errors = [problem]
    else:
        server.failures = [(status, {}, {"error": problem})]
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    with pytest.raises(ProviderError) as caught:
        await call(client)
    assert (caught.value.kind, len(server.requests)) == ("context_length", 1)


@pytest.mark.parametrize(
    ("dialect", "problem", "kind"),
    [
        ("openai", {"message": "The server is busy", "code": 503}, "overloaded"),
        ("openai", {"message": "Something broke"}, "server"),
        ("anthropic", {"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
    ],
)
async def test_other_errors_in_streams_are_retried(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, problem: Json, kind: str
) -> None:
    server.stream_errors = [problem] * 4
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    with pytest.raises(ProviderError) as caught:
        await call(client)
    assert (caught.value.kind, len(server.requests)) == (kind, 4)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_error_for_an_unreachable_provider_names_its_address_without_credentials(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName
) -> None:
    server.url = "http://user:hidden-word@127.0.0.1:9"
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    with pytest.raises(ProviderError) as caught:
        await call(client)
    assert caught.value.kind == "connection"
    assert "cannot be reached at http://127.0.0.1:9: " in str(caught.value)
    assert str(caught.value).endswith(". Is the server running?")
    assert "hidden-word" not in str(caught.value)


def test_error_for_an_unreachable_remote_provider_does_not_suggest_starting_a_local_server() -> None:
    import httpx2
    import openai

    request = httpx2.Request("POST", "https://models.example/v1/responses?key=hidden-word")
    error = translate_error(openai.APIConnectionError(request=request), openai)
    assert str(error) == "the provider cannot be reached at https://models.example: Connection error."


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_agent_sends_tool_results_back_to_a_model_over_http_in_every_provider_format(
    tmp_path: Path, server: ScriptedServer, dialect: DialectName, open_test_runtime: RuntimeOpener
) -> None:
    runtime = open_test_runtime()
    store = SqliteSessionStore(tmp_path / "sessions.db")
    client = build_client(ModelName("test", "m-1"), make_config(tmp_path, server, dialect))
    limits = AgentLimits(max_steps=2)
    agent = Agent(client, runtime=runtime, store=store, context_tokens=100_000, limits=limits)
    result = await agent.run("Weather in Porto?")
    assert result.reason == "step_limit"
    second = json.dumps(server.requests[1][1])
    assert "'forecast' is not available in this session" in second
    await agent.close()
    store.close()


class TestModelNames:
    def test_provider_of_a_model_is_determined_by_the_model_name_or_its_prefix(
        self, tmp_path: Path, server: ScriptedServer
    ) -> None:
        config = make_config(tmp_path, server, "openai")
        assert str(parse_model_name("claude-sonnet-4-6", config)) == "anthropic:claude-sonnet-4-6"
        assert str(parse_model_name("openrouter:meta/llama:free", config)) == "openrouter:meta/llama:free"
        assert str(parse_model_name("test:m-1", config)) == "test:m-1"

    def test_unknown_provider_in_a_model_name_raises_a_config_error_with_a_suggestion(
        self, tmp_path: Path, server: ScriptedServer
    ) -> None:
        with pytest.raises(ConfigError, match="Did you mean anthropic") as caught:
            parse_model_name("antropic:claude", make_config(tmp_path, server, "openai"))
        assert "responses, scripted, test" in str(caught.value)

    def test_error_for_a_missing_api_key_names_the_variable_to_set(self, tmp_path: Path) -> None:
        config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(tmp_path), "HOME": str(tmp_path)})
        with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
            build_client(ModelName("anthropic", "claude-sonnet-4-6"), config)

    def test_context_limit_is_taken_from_the_longest_listed_model_name_contained_in_the_name(
        self,
    ) -> None:
        mini, whole = find_limits("openai/o1-mini-2024"), find_limits("o1")
        assert mini is not None
        assert whole is not None
        assert (mini.context, whole.context) == (128_000, 200_000)
        assert find_limits("my-own-model") is None
        assert find_limits("proto1-7b") is None  # contains "o1", but not as a word

    async def test_context_window_of_an_unknown_model_is_read_from_the_model_list_of_the_provider(
        self, tmp_path: Path, server: ScriptedServer
    ) -> None:
        config = make_config(tmp_path, server, "openai")
        client = build_client(ModelName("test", "m-1"), config)
        assert await find_context_tokens(ModelName("test", "m-1"), config, client) == 32_000
        await client.close()
