"""The adapters for agent frameworks: every example runs with the real framework and a scripted model.

The model calls a tool that it was shown, then one that it was not shown, then it answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydantic
import pytest

from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Prepared, Received, serve_upstream
from toolfold.core.types import BRIDGE_NAMES, Json

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "integrations"
INSTALLED = Path(sys.prefix, "test_tools/frameworks")
RUN_TIMEOUT_S = 300.0
MAX_SHOWN_TOOLS = 28
"""More than the selected (at most 16), bridge and always shown tools; far fewer than all 277."""

SHOWN_CALL = ("tallyhouse_get_invoice", {"invoice_id": "inv-2026-031"})
SHOWN_RESULT = "inv-2026-031"
HIDDEN_TOOL = "almanac_setReminder"
HIDDEN_ARGUMENTS = {"text": "Call Halden", "trigger": {"at": "2030-03-01T09:00:00Z"}}
HIDDEN_RESULT = "rem-1"
ANSWER = "The invoice is written."
# Runs an example in the framework's environment; packages that are missing there are Toolfold's own.
START = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[2])
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Example:
    """An example file, the environment of its framework, and how its model calls the hidden tool."""

    file: str
    environment: str = "python"
    hidden_call: tuple[str, Json] = (HIDDEN_TOOL, HIDDEN_ARGUMENTS)
    last: Say = field(default_factory=lambda: Say(ANSWER))

    def script(self) -> list[Say]:
        return [Say(calls=[SHOWN_CALL]), Say(calls=[self.hidden_call]), self.last]


EXAMPLES_TO_RUN = [
    Example("openai_loop.py", environment=""),
    Example("anthropic_loop.py", environment=""),
    Example("pydantic_ai_agent.py"),
    Example("langchain_agent.py"),
    Example("langgraph_graph.py"),
    Example("openai_agents_agent.py"),
    Example("llamaindex_agent.py", "llamaindex"),
    Example("google_adk_agent.py", "adk"),
    Example("smolagents_agent.py", "adk", last=Say(calls=[("final_answer", {"answer": ANSWER})])),
    # CrewAI accepts only calls of tools that the agent got, so its model uses the bridge.
    Example(
        "crewai_crew.py",
        "crewai",
        hidden_call=("tool_call", {"name": HIDDEN_TOOL, "arguments": HIDDEN_ARGUMENTS}),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES_TO_RUN, ids=lambda each: each.file.removesuffix(".py"))
def test_framework_example_sends_only_selected_tools_and_can_call_a_tool_that_was_not_sent(
    example: Example, tmp_path: Path
) -> None:
    python = find_python(example.environment)
    with serve_upstream() as upstream:
        answer = GeminiModel(example.script()) if "adk" in example.file else ScriptedModel(example.script())
        upstream.answer = answer
        done = run_example(python, example.file, upstream.url, tmp_path)
        requests = [each.json for each in upstream.received if each.method == "POST"]
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout
    shown = [listed_names(each) for each in requests]
    assert len(requests) == 3
    for names in shown:
        assert len(names) <= MAX_SHOWN_TOOLS
        assert names >= BRIDGE_NAMES
    assert HIDDEN_TOOL not in shown[1]
    assert SHOWN_RESULT in json.dumps(requests[1])
    assert HIDDEN_RESULT in json.dumps(requests[2])


def test_every_agent_framework_example_program_is_tested() -> None:
    assert {each.file for each in EXAMPLES_TO_RUN} == {each.name for each in EXAMPLES.glob("*.py")}


def find_python(environment: str) -> Path:
    """Return the interpreter of a framework's environment; skip the test if it is not installed."""
    python = INSTALLED / environment / "bin" / "python" if environment else Path(sys.executable)
    if not python.exists():
        pytest.skip(
            f"the frameworks in {environment!r} are not installed: scripts/test_servers/frameworks.sh"
        )
    return python


def run_example(python: Path, file: str, url: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run an example with the scripted model and, because it starts faster, the small embedding model."""
    settings = home / "config" / "toolfold" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("tools: {rag_embed_model: light}\n")
    variables = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "ANTHROPIC_BASE_URL": url,
        "GOOGLE_GEMINI_BASE_URL": url,
        **{f"{name}_API_KEY": "key" for name in ("OPENAI", "ANTHROPIC", "GOOGLE")},
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
    }
    packages = str(Path(pydantic.__file__).parents[1])
    return subprocess.run(
        [str(python), "-c", START, str(ROOT / "src"), packages, str(EXAMPLES / file)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


@dataclass
class GeminiModel:
    """Answers requests of the Gemini API with the replies of a script, in order."""

    script: Sequence[Say]
    count: int = 0

    def __call__(self, _received: Received) -> Prepared:
        say = self.script[self.count]
        self.count += 1
        parts: list[Json] = [{"functionCall": {"name": name, "args": args}} for name, args in say.calls]
        content = {"role": "model", "parts": parts or [{"text": say.text}]}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        return Prepared([json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()])


def listed_names(request: Json) -> set[str]:
    """Return the names of the tools in a request of any API."""
    read: Callable[[Json], list[Json]] = lambda tool: tool.get("functionDeclarations") or [tool]  # noqa: E731
    entries = [each for tool in request["tools"] for each in read(tool)]
    return {str(each.get("name") or each["function"]["name"]) for each in entries}
