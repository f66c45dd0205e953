"""Limits of evaluations that the dashboard runs, without a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard.test_evaluation_page import MESSAGES, TOOLS, describe_tools, write_lines
from toolfold import Runtime, open_runtime
from toolfold.config import load_config
from toolfold.safety.redaction import Redaction
from toolfold.serving.dashboard.evaluation_routes import Evaluations
from toolfold.serving.gateway.request_bodies import RequestRefused

VALID: dict[str, Any] = {
    "tools": "file",
    "messages": "file",
    "catalog": describe_tools(TOOLS),
    "queries": write_lines(MESSAGES),
    "modes": ["keyword"],
    "top_k": 2,
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    home = tmp_path_factory.mktemp("home")
    project = tmp_path_factory.mktemp("project")
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "TOOLFOLD_TOOLS__RAG_EMBED_MODEL": "light"}
    with open_runtime(load_config(project=project, env=env)) as opened:
        yield opened


@pytest.fixture
def evaluations(runtime: Runtime) -> Iterator[Evaluations]:
    found = Evaluations(runtime, Redaction(()))
    yield found
    found.close()


def wait_until_ended(evaluations: Evaluations) -> None:
    deadline = time.monotonic() + 120
    while evaluations.describe()["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"modes": []}, "at least one mode"),
        ({"modes": ["rerank"]}, "at least one mode"),
        ({"top_k": 0}, "from 1 to 50"),
        ({"top_k": True}, "from 1 to 50"),
        ({"catalog": ""}, "no tools"),
        ({"catalog": 7}, "tools are missing"),
        ({"queries": "\n\n"}, "no messages"),
        ({"queries": json.dumps({**MESSAGES[0], "query": "x" * 20_001})}, "longer than 20,000 characters"),
        ({"queries": write_lines(MESSAGES * 2_000)}, "more than 5,000 messages"),
        ({"queries": "[" + "[]," * 500_000 + "1]"}, "more than 1,000,000 JSON values"),
        ({"catalog": '{"type": "function"}'}, "tools, line 1"),
    ],
)
def test_evaluation_with_invalid_modes_or_tools_or_messages_is_refused_with_the_reason(
    evaluations: Evaluations, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RequestRefused, match=problem):
        evaluations.start({**VALID, **change})
    assert evaluations.describe()["state"] == "none"


def test_second_evaluation_is_refused_while_another_evaluation_is_running(evaluations: Evaluations) -> None:
    evaluations.start({**VALID, "queries": write_lines(MESSAGES * 1_500)})
    with pytest.raises(RequestRefused, match="An evaluation is running"):
        evaluations.start(VALID)
    evaluations.cancel()
    evaluations.close()
    assert evaluations.describe()["state"] == "cancelled"
    with pytest.raises(RequestRefused, match="no result"):
        evaluations.load_result()


def test_evaluation_that_exceeds_its_time_limit_is_stopped_with_an_error(runtime: Runtime) -> None:
    evaluations = Evaluations(runtime, Redaction(()), max_seconds=-1.0)
    evaluations.start(VALID)
    wait_until_ended(evaluations)
    assert "took longer" in evaluations.describe()["problem"]


def test_evaluation_of_the_configured_tools_excludes_the_built_in_tools_for_searching_tools(
    evaluations: Evaluations,
) -> None:
    queries = write_lines([{"id": 1, "query": "read the file notes.txt", "gold": ["read_file", "unknown"]}])
    evaluations.start({**VALID, "tools": "own", "queries": queries})
    wait_until_ended(evaluations)
    result = evaluations.load_result()
    assert result["tools"] == evaluations.describe()["own_tools"]
    assert result["problems"] == [
        "messages: tools that are missing from the catalog cannot be found: unknown"
    ]
