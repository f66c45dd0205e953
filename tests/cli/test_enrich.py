"""`toolfold enrich`: estimate, consent, writing with a model server, resuming, listing and removing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toolfold
from tests.cli.scripts import WriteScript, write_script
from tests.providers.scripted_server import ScriptedServer, serve_models

__all__ = ["write_script"]

TOOLS = ("read_file", "write_file")
"""Tools that have messages in the phrasebook."""
NEW_TOOLS = ("almanac_getEvent", "almanac_createEvent")
"""Tools of the sample catalog, without messages in the phrasebook."""
REPLY = json.dumps({"1": ["what does my shopping list say?"], "2": ["jot this down as a note on disk"]})


def describe_wish(tool: dict[str, Any]) -> str:
    """Return a message that fits a tool: the first words of its description."""
    return f"please {' '.join(tool['description'].split()[:8])}"


class WritingServer(ScriptedServer):
    """OpenAI-compatible server that writes a message for each tool of a request."""

    def answer(self, handler: BaseHTTPRequestHandler, path: str, body: dict[str, Any]) -> None:
        if self.failures:
            super().answer(handler, path, body)
            return
        rows = [line for line in body["messages"][-1]["content"].splitlines() if line.startswith("{")]
        tools = [json.loads(row) for row in rows]
        text = json.dumps({str(tool["number"]): [describe_wish(tool)] for tool in tools})
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 700, "completion_tokens": 90, "total_tokens": 790}
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
        chunks = [{**base, "choices": [choice]}, {**base, "choices": [], "usage": usage}]
        lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(lines.encode())))
        handler.end_headers()
        handler.wfile.write(lines.encode())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_models(WritingServer()) as server:
        yield server


def list_messages(toolfold: Toolfold) -> dict[str, list[str]]:
    rows = toolfold("enrich", "--list", "--json", *TOOLS).json
    return {row["name"]: row["messages"] for row in rows if row["from"] != "phrasebook"}


def test_example_messages_stored_by_enrich_are_printed_by_tools_show_and_can_be_removed(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    done = toolfold("enrich", *TOOLS, "--again", "--yes", "--model", write_script(REPLY))
    assert done.code == 0, done.err
    assert done.out.startswith("wrote messages for 2 tools")
    assert "2 tools, 1 call of scripted:" in done.err
    assert list_messages(toolfold)["read_file"] == ["what does my shopping list say?"]
    shown = toolfold("tools", "show", "read_file")
    assert "what does my shopping list say?" in shown.out
    assert "scripted:" in shown.out
    found = toolfold("search", "what does my shopping list say", "--json").json
    assert found[0]["name"] == "read_file"
    assert toolfold("enrich", "--remove", "read_file").out == "removed the messages of 1 tool\n"
    assert list_messages(toolfold).keys() == {"write_file"}
    assert toolfold("enrich", "--remove").out == "removed the messages of 1 tool\n"
    assert list_messages(toolfold) == {}


def test_enrich_skips_tools_with_existing_example_messages_unless_the_option_again_is_given(
    toolfold: Toolfold, write_script: WriteScript
) -> None:
    one = json.dumps({"1": ["first wording of it"]})
    toolfold("enrich", "read_file", "--again", "--yes", "--model", write_script(one))
    assert list_messages(toolfold)["read_file"] == ["first wording of it"]
    names = ("read_file", *NEW_TOOLS)
    done = toolfold("enrich", *names, "--sample", "--estimate", "--json", "--model", "ollama:m")
    assert done.json["tools"] == 2
    again = write_script(json.dumps({"1": ["second wording of it"]}), name="again")
    toolfold("enrich", "read_file", "--again", "--yes", "--model", again)
    assert list_messages(toolfold)["read_file"] == ["second wording of it"]


def test_enrich_without_a_terminal_does_not_call_the_model_unless_the_option_yes_is_given(
    toolfold: Toolfold, server: ScriptedServer
) -> None:
    options = ("--endpoint", f"{server.url}/v1", "--model", "m-1")
    done = toolfold("enrich", *TOOLS, "--again", *options)
    assert done.code == 1
    assert "use --yes" in done.err
    assert toolfold("enrich", *TOOLS, "--again", *options, "--estimate").code == 0
    assert server.requests == []


def test_enrich_estimate_without_a_model_names_the_settings_that_select_a_model(toolfold: Toolfold) -> None:
    done = toolfold("enrich", *TOOLS, "--again", "--estimate")
    assert done.code == 0
    assert "--model PROVIDER:MODEL, or the settings agent.auxiliary_model or agent.model" in done.err


@pytest.mark.thorough  # embeds the sample catalog
def test_enrich_requests_example_messages_from_an_openai_compatible_server_in_batches(
    toolfold: Toolfold, server: ScriptedServer
) -> None:
    server.failures.append((429, {"retry-after": "0"}, {"error": {"message": "slow down"}}))
    done = toolfold(
        *("enrich", "--sample", "almanac", "--yes", "--json", "--batch", "5", "--language", "English"),
        *("--endpoint", f"{server.url}/v1", "--model", "m-1", "--language", "Polish"),
    )
    assert done.code == 0, done.err
    assert done.json["written"] == 13
    assert done.json["input_tokens"] == 3 * 700
    assert len(server.requests) == 4  # three batches and one retry
    assert "Polish" in json.dumps(server.requests[0][1])


def test_second_enrich_run_after_a_failure_processes_only_the_remaining_tools(
    toolfold: Toolfold, server: ScriptedServer
) -> None:
    model = ("--endpoint", f"{server.url}/v1", "--model", "m-1")
    options = ("--sample", *model, "--yes", "--batch", "1")
    names = (*NEW_TOOLS, "almanac_cancelEvent")
    toolfold("enrich", NEW_TOOLS[0], *options)
    server.failures.extend([(401, {}, {"error": {"message": "bad key"}})] * 3)
    failed = toolfold("enrich", *names, *options)
    assert failed.code == 1
    assert "run the command again to continue" in failed.err
    server.failures.clear()
    assert toolfold("enrich", *names, *options, "--json").json["written"] == 2


def test_enrich_exports_tools_to_a_file_and_imports_example_messages_added_to_the_file(
    toolfold: Toolfold, tmp_path: Path
) -> None:
    file = tmp_path / "task.jsonl"
    assert "toolfold enrich --import" in toolfold("enrich", *TOOLS, "--again", "--export", str(file)).out
    assert toolfold("enrich", *TOOLS, "--again", "--export", str(file)).code == 1
    head, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {row["tool"] for row in rows} == set(TOOLS)
    for row in rows:
        row["messages"] = [describe_wish(row)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in [head, *rows]), encoding="utf-8")
    assert toolfold("enrich", "--import", str(file)).out == "wrote messages for 2 tools\n"
    assert set(list_messages(toolfold)) == set(TOOLS)
    line = json.loads(toolfold("enrich", "--contribute", "read_file").out)
    assert line.keys() == {"server", "tool", "checksum", "sketch", "messages"}


def test_enrich_reports_a_missing_model_or_an_unknown_tool_or_conflicting_options(toolfold: Toolfold) -> None:
    assert "no model is configured" in toolfold("enrich", "--yes", "--again").err
    assert "there is no tool" in toolfold("enrich", "read_flie").err
    assert toolfold("enrich", "--list", "--remove").code == 2
    assert toolfold("enrich", "--through", "editor", "--model", "ollama:m").code == 2
    assert "No gateway with a client is running" in toolfold("enrich", "--through", "editor").err
    assert toolfold("enrich", "--again", "--endpoint", "http://127.0.0.1:9/v1", "--yes").code == 2
