"""The local model: found in an installed package, restricted to the tools and their schemas, streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import RuntimeOpener
from toolfold.config import load_config
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.models.local_models import MAX_LIST_ITEMS, MAX_STRING_CHARS, LocalClient, limit_schema
from toolfold.models.model_names import build_client, find_context_tokens, parse_model_name
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest, TextDelta

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}


def ask(text: str, *tools: Json, max_output_tokens: int = 8) -> ModelRequest:
    messages = [{"role": "user", "content": text}]
    return ModelRequest(model="smollm2", messages=messages, tools=tools, max_output_tokens=max_output_tokens)


@pytest.fixture
async def client() -> AsyncIterator[LocalClient]:
    try:
        client = LocalClient("smollm2", threads=1)
    except ConfigError as error:
        pytest.skip(f"the local model cannot be used: {error}")
    yield client
    await client.close()


@pytest.mark.timeout(300)
async def test_packaged_model_calls_a_tool_with_schema_conforming_arguments_and_can_be_cancelled(
    client: LocalClient,
) -> None:
    call_stream = client.stream(ask("What is the weather in Porto?", WEATHER))
    async for _ in call_stream:
        pass
    reply = call_stream.reply
    assert [call.name for call in reply.calls] == ["get_weather"]
    arguments = json.loads(str(reply.calls[0].arguments))
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0

    answer_stream = client.stream(ask("Count to ten.", max_output_tokens=6))
    deltas = [delta async for delta in answer_stream]
    assert len(deltas) > 1
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == answer_stream.reply.text

    endless = client.stream(ask("Tell a very long story.", max_output_tokens=4_000))
    has_started = asyncio.Event()

    async def read() -> None:
        async for _ in endless:
            has_started.set()

    reading = asyncio.create_task(read())
    await asyncio.wait_for(has_started.wait(), 120)
    reading.cancel()
    await asyncio.wait({reading})
    assert endless.reply.finish_reason == "interrupted"
    await asyncio.wait_for(client.close(), 60)  # waits for the generation, which ends with the next token


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_local_model_can_call_a_tool_whose_schema_the_inference_engine_rejects(
    client: LocalClient,
) -> None:
    parameters = {"type": "object", "properties": {"city": {"$ref": "#/missing"}}, "required": ["city"]}
    tool = {"type": "function", "function": {**WEATHER["function"], "parameters": parameters}}
    call_stream = client.stream(ask("What is the weather in Porto?", tool))
    async for _ in call_stream:
        pass
    assert [call.name for call in call_stream.reply.calls] == ["get_weather"]


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_local_model_raises_a_context_length_error_if_the_schema_of_the_selected_tool_is_too_long(
    client: LocalClient,
) -> None:
    names = {f"{'harbour_of_a_town_' * 3}{number}": {"type": "string"} for number in range(1000)}
    parameters = {"type": "object", "properties": names}
    tool = {"type": "function", "function": {**WEATHER["function"], "parameters": parameters}}
    with pytest.raises(ProviderError) as refused:
        async for _ in client.stream(ask("What is the weather in Porto?", tool)):
            pass
    assert refused.value.kind == "context_length"


def test_error_names_the_unknown_local_model_or_the_missing_model_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no local model 'large'; use smollm2, or the path of a \.gguf"):
        LocalClient("large")
    with pytest.raises(ConfigError, match="no model file"):
        LocalClient(str(tmp_path / "missing.gguf"))


@pytest.mark.timeout(120)
async def test_model_name_with_the_prefix_local_selects_the_packaged_model_and_its_context_window(
    client: LocalClient, open_test_runtime: RuntimeOpener
) -> None:
    config = open_test_runtime().config
    name = parse_model_name("local:smollm2", config)
    built = build_client(name, config)
    assert isinstance(built, LocalClient)
    assert await find_context_tokens(name, config, built) == 8_192


def test_provider_named_local_in_the_settings_replaces_the_packaged_model(tmp_path: Path) -> None:
    provider = {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}
    overrides = {"providers": {"local": provider}}
    config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(tmp_path)}, overrides=overrides)
    assert not isinstance(build_client(parse_model_name("local:any", config), config), LocalClient)


def test_length_limits_are_added_to_strings_and_arrays_of_a_tool_schema_for_the_local_model() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "tags": {"type": "array", "minItems": 7, "items": {"type": "string", "maxLength": 3}},
            "type": {"type": "array", "items": {}},
        },
    }
    properties = limit_schema(schema)["properties"]
    assert properties["name"]["maxLength"] == MAX_STRING_CHARS
    assert properties["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert (properties["tags"]["maxItems"], properties["tags"]["items"]["maxLength"]) == (7, 3)
    assert properties["type"]["maxItems"] == MAX_LIST_ITEMS
