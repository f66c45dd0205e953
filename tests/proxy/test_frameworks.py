"""Agent frameworks behind the folding proxy, configured by nothing but its URL in the environment.

Each framework runs all its conversations in one process. The model searches for a tool, calls it through the
bridge, and answers; the framework must see a call of its own tool and the answer.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.proxy.clients import APIS, KEY
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Upstream, serve_upstream
from tests.proxy.weather_tools import FORECAST_CALL, SEARCH, TOOLS, names_of
from toolfold.core.types import BRIDGE_NAMES, Json

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
HERE = Path(__file__).parent / "frameworks"
INSTALLED = Path(sys.prefix, "test_tools/frameworks")
RUN_TIMEOUT_S = 300.0
RESULT = "24 degrees and no clouds"
ANSWER = "It will be sunny in Porto."


@dataclass(frozen=True)
class FrameworkCase:
    """One conversation: the API that the framework uses, with or without streaming."""

    name: str
    api: str
    stream: bool

    @property
    def question(self) -> str:
        return f"What will the weather be in Porto? ({self.name})"


@dataclass(frozen=True)
class FrameworkPlan:
    """What a framework does: a conversation for each case, with these tools and this result of calls."""

    cases: Sequence[FrameworkCase]
    tools: Sequence[Json] = field(default_factory=lambda: TOOLS)
    result: str = RESULT

    def render(self) -> str:
        cases = [{**asdict(case), "question": case.question} for case in self.cases]
        return json.dumps({"cases": cases, "tools": self.tools, "result": self.result})


def make_plan(apis: Sequence[str]) -> FrameworkPlan:
    return FrameworkPlan(
        [
            FrameworkCase(f"{api}, {'stream' if stream else 'whole'}", api, stream)
            for api in apis
            for stream in (True, False)
        ]
    )


def answer_by_stage(body: Json) -> Say:
    """Search first, then call the tool that was found, then answer with its result."""
    conversation = json.dumps(body.get("messages") or body.get("input"))
    if RESULT in conversation:
        return Say(ANSWER)
    return Say("", [FORECAST_CALL] if "Weather forecast for a city." in conversation else [SEARCH])


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[RunningProxy]:
    settings = {"proxy.folding": "on", "tools.selection": "eager", "tools.rag_embed_model": "light"}
    with serve_proxy(tmp_path_factory.mktemp("frameworks"), upstream.url, settings) as made:
        yield made


class FrameworkTests:
    """Base class for the test of one framework."""

    part: str
    """The part of `scripts/test_servers/frameworks.sh` that installs it."""
    program: str
    apis: Sequence[str] = APIS
    anthropic_path = ""
    """What the framework's users append to the URL in ANTHROPIC_BASE_URL."""

    def test_agent_framework_calls_its_tools_and_gets_the_answer_through_a_tool_hiding_proxy(
        self, served: RunningProxy, upstream: Upstream, tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        plan, model = make_plan(self.apis), ScriptedModel(answer_by_stage)
        upstream.answer = model
        found = self.run(plan, served.url, tmp_path)
        for case in plan.cases:
            with subtests.test(case.name):
                assert found[case.name] == {
                    "text": ANSWER,
                    "calls": [["get_forecast", {"city": "Porto", "days": 2}]],
                }
                check_requests([body for body in model.requests if case.question in json.dumps(body)])

    def run(self, plan: FrameworkPlan, url: str, folder: Path) -> Json:
        """Run the framework's program, and return the result of each case."""
        if not (INSTALLED / self.part / ".complete").exists():
            pytest.skip(f"{self.part} is not installed: scripts/test_servers/frameworks.sh installs it")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": f"{url}{self.anthropic_path}",
            "ANTHROPIC_API_KEY": KEY,
        }
        done = subprocess.run(
            [*self.command(), plan.render(), str(INSTALLED / self.part / "node_modules")],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results: Json = json.loads(done.stdout.splitlines()[-1])
        return results

    def command(self) -> Sequence[str]:
        """Return the command that runs the program."""
        return str(INSTALLED / self.part / "bin/python"), str(HERE / self.program)


def check_requests(requests: Sequence[Json]) -> None:
    """Check the requests that the provider got: few tools, and each a continuation of the one before."""
    assert len(requests) == 3
    for before, after in itertools.pairwise(requests):
        assert set(names_of(after)) == BRIDGE_NAMES
        assert after["tools"] == before["tools"]
        earlier = messages_of(before)
        assert messages_of(after)[: len(earlier)] == earlier


def messages_of(body: Json) -> list[Json]:
    """Return the conversation of a request; a text alone is a message of the user."""
    messages = body["input"] if "input" in body else body["messages"]
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


class TestLangChain(FrameworkTests):
    part, program = "python", "langchain_client.py"


class TestPydanticAi(FrameworkTests):
    part, program = "python", "pydantic_ai_client.py"


class TestOpenAiAgents(FrameworkTests):
    part, program = "python", "openai_agents_client.py"
    apis = ("chat", "responses")


class TestLlamaIndex(FrameworkTests):
    part, program = "llamaindex", "llamaindex_client.py"


class TestVercelAiSdk(FrameworkTests):
    part, program = "vercel", "vercel_client.mjs"
    anthropic_path = "/v1"

    def command(self) -> Sequence[str]:
        node = shutil.which("node")
        if node is None:
            pytest.skip("Node.js is not installed")
        return node, str(HERE / self.program)
