"""Real coding agents whose only change is the base URL that `toolfold connect --proxy` wrote.

Each runs one task without a terminal. The model behind the proxy searches for a tool and calls it through the
bridge; the program must see a plain call of its own tool, run it and finish.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.clients.programs import CLAUDE_CODE, CODEX, OPENCODE, Home, InstalledProgram
from tests.gateway.harness import free_port
from tests.proxy.harness import serve_proxy
from tests.proxy.scripted_model import Say, ScriptedModel
from tests.proxy.upstream import Upstream, serve_upstream
from toolfold.core.types import BRIDGE_CALL, BRIDGE_NAMES, BRIDGE_SEARCH, Json

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
_INSTALLED = Path(sys.prefix, "test_tools/frameworks")
GOOSE = InstalledProgram(
    "goose", lambda: [str(_INSTALLED / "goose/node_modules/@aaif/goose-binary-linux-x64/bin/goose")]
)
AIDER = InstalledProgram("aider", lambda: [str(_INSTALLED / "aider/bin/aider")])
TASK = "MARKED-TASK: use one tool"
END = "the task is finished"
NOTE = "written in the project"


@dataclass(frozen=True)
class Agent:
    """A coding agent, and the call of its own tool that the model makes."""

    program: InstalledProgram
    settings: Callable[[Home], dict[str, str]]
    """Write what a user of the program already has beside the base URL; return its environment."""
    arguments: Sequence[str]
    tool: str
    build_arguments: Callable[[Home], Json]
    shown: str
    """How the program's output shows the call."""


def write_claude_settings(home: Home) -> dict[str, str]:
    onboarding = {
        "hasCompletedOnboarding": True,
        "projects": {str(home.project): {"hasTrustDialogAccepted": True}},
    }
    home.write(".claude.json", json.dumps(onboarding))
    return {"ANTHROPIC_API_KEY": "client-key", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def write_codex_settings(home: Home) -> dict[str, str]:
    home.write(".codex/config.toml", 'model = "gpt-5.1"\n')
    return {"OPENAI_API_KEY": "client-key"}


def write_opencode_settings(home: Home) -> dict[str, str]:
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "openai/gpt-5.1",
        "small_model": "openai/gpt-5.1",
    }
    home.write(".config/opencode/opencode.json", json.dumps(settings, indent=2))
    downloads = ("MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "AUTOUPDATE")
    return {"OPENAI_API_KEY": "client-key"} | {f"OPENCODE_DISABLE_{each}": "1" for each in downloads}


GOOSE_SETTINGS = """GOOSE_PROVIDER: {provider}
GOOSE_MODEL: {model}
GOOSE_MODE: auto
GOOSE_TELEMETRY_ENABLED: false
extensions:
  developer:
    enabled: true
    type: builtin
    name: developer
    timeout: 300
"""


def write_goose_settings(home: Home, provider: str, model: str) -> dict[str, str]:
    home.write(".config/goose/config.yaml", GOOSE_SETTINGS.format(provider=provider, model=model))
    return {"OPENAI_API_KEY": "client-key", "ANTHROPIC_API_KEY": "client-key", "GOOSE_DISABLE_KEYRING": "1"}


GOOSE_AGENT = Agent(
    GOOSE,
    lambda home: write_goose_settings(home, "openai", "gpt-4.1"),
    ("run", "--no-session", "-t", TASK),
    "shell",
    lambda _home: {"command": "cat note.txt"},
    "cat note.txt",
)
AGENTS = {
    "claude-code": Agent(
        CLAUDE_CODE,
        write_claude_settings,
        ("-p", TASK, "--output-format", "stream-json", "--verbose"),
        "Read",
        lambda home: {"file_path": str(home.project / "note.txt")},
        '"name":"Read"',
    ),
    "codex": Agent(
        CODEX,
        write_codex_settings,
        # Its own sandbox does not work on every machine.
        ("exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", TASK),
        "exec_command",
        lambda _home: {"cmd": "cat note.txt"},
        "cat note.txt",
    ),
    "opencode": Agent(
        OPENCODE,
        write_opencode_settings,
        ("run", "--format", "json", TASK),
        "read",
        lambda home: {"filePath": str(home.project / "note.txt")},
        '"tool":"read"',
    ),
    "goose": GOOSE_AGENT,
    "goose with Anthropic": replace(
        GOOSE_AGENT, settings=lambda home: write_goose_settings(home, "anthropic", "claude-sonnet-4-5")
    ),
}


def make_script(call: tuple[str, Json]) -> Callable[[Json], Say]:
    """Return a model that searches, calls a tool through the bridge, and ends."""
    name, arguments = call

    def choose_reply(body: Json) -> Say:
        text = json.dumps(body.get("messages") or body.get("input") or "")
        if TASK not in text or BRIDGE_SEARCH not in json.dumps(body.get("tools")):
            return Say("ok")
        if f'"{BRIDGE_CALL}"' in text.partition(TASK)[2]:  # not the key "tool_calls"
            return Say(END)
        if BRIDGE_SEARCH in text.partition(TASK)[2]:
            return Say("", [(BRIDGE_CALL, {"name": name, "arguments": arguments})])
        return Say("I search.", [(BRIDGE_SEARCH, {"query": name})])

    return choose_reply


def list_tool_names(body: Json) -> set[str]:
    tools = body.get("tools") or []
    functions = (each.get("function") or each for each in tools)  # in chat completions, or in other APIs
    return {str(each.get("name") or each.get("type")) for each in functions}


def connect(name: str, home: Home) -> int:
    """Connect a program to a proxy, and return the proxy's port.

    Only the user may connect a program: not a process below one that holds an open runtime.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    connected = home.run("toolfold", "connect", name, "--proxy", "--yes", "--http", url)
    assert connected.returncode == 0, connected.stdout + connected.stderr
    return port


def check_doctor(home: Home, upstream: Upstream) -> None:
    """Fail unless `toolfold doctor` finds that the only connected program uses the proxy."""
    upstream.answer = None
    checked = home.run("toolfold", "doctor", "--json")
    findings = json.loads(checked.stdout)["findings"]
    about = [each for each in findings if "uses the proxy, and the provider answers" in each["what"]]
    assert [each["mark"] for each in about] == ["ok"], checked.stdout + checked.stderr


@pytest.mark.parametrize("name", AGENTS)
def test_real_client_program_runs_its_own_tool_through_a_tool_hiding_proxy(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AGENTS[name]
    command = agent.program.command(agent.arguments)  # skips the test if it is not installed
    home = Home(tmp_path / "home", tmp_path / "project")
    home.project.mkdir()
    (home.project / "note.txt").write_text(NOTE)
    home = Home(home.path, home.project, agent.settings(home))
    model = ScriptedModel(make_script((agent.tool, agent.build_arguments(home))))
    port = connect(agent.program.name, home)
    with (
        caplog.at_level(logging.INFO, "toolfold.serving.proxy"),
        serve_upstream() as upstream,
        serve_proxy(tmp_path / "proxy", upstream.url, {"proxy.folding": "on"}, port=port),
    ):
        upstream.answer = model
        done = home.run(*command)
        check_doctor(home, upstream)
    output = done.stdout + done.stderr
    folded = [each for each in model.requests if BRIDGE_SEARCH in list_tool_names(each)]
    assert END in done.stdout, f"{output[-3000:]}\n{[list_tool_names(each) for each in model.requests]}"
    assert agent.shown in done.stdout
    assert not any(f'"{each}"' in output for each in BRIDGE_NAMES)
    assert len(folded) == 3, output[-3000:]
    assert NOTE in json.dumps(folded[-1])
    assert all(agent.tool not in list_tool_names(each) for each in folded[:2])
    hidden = [int(each) for each in re.findall(r"folded=(\d+)", caplog.text)]
    assert min(hidden, default=0) > 3, caplog.text


CLOCK = Path(sys.prefix, "test_tools/mcp/servers/bin/mcp-server-time")


def test_codex_runs_a_hidden_mcp_tool_that_belongs_to_a_namespace(tmp_path: Path) -> None:
    agent = AGENTS["codex"]
    command = agent.program.command(agent.arguments)
    if not CLOCK.exists():
        pytest.skip("mcp-server-time is not installed: `make test-tools` installs it")
    home = Home(tmp_path / "home", tmp_path / "project")
    home.project.mkdir()
    home = Home(home.path, home.project, agent.settings(home))
    server = {"command": str(CLOCK), "args": ["--local-timezone", "UTC"], "required": True}
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    home.append(".codex/config.toml", "\n".join(["", "[mcp_servers.clock]", *lines, ""]))
    model = ScriptedModel(make_script(("mcp__clock__get_current_time", {"timezone": "Asia/Tokyo"})))
    port = connect("codex", home)
    with (
        serve_upstream() as upstream,
        serve_proxy(tmp_path / "proxy", upstream.url, {"proxy.folding": "on"}, port=port),
    ):
        upstream.answer = model
        done = home.run(*command)
    output = done.stdout + done.stderr
    folded = [each for each in model.requests if BRIDGE_SEARCH in list_tool_names(each)]
    assert END in done.stdout, f"{output[-3000:]}\n{[list_tool_names(each) for each in model.requests]}"
    assert '"server":"clock","tool":"get_current_time"' in done.stdout
    assert "Asia/Tokyo" in json.dumps(folded[-1]["input"][-1])
    assert len(folded) == 3, output[-3000:]
    # What Codex has itself stays in the request, beside tools of servers.
    assert all({"exec_command", "multi_agent_v1"} <= list_tool_names(each) for each in folded)
    assert not any("mcp__clock" in list_tool_names(each) for each in folded)


AIDER_SETTINGS = """model: openai/gpt-4.1
edit-format: whole
analytics-disable: true
check-update: false
show-model-warnings: false
show-release-notes: false
"""


def test_aider_edits_a_file_as_instructed_by_a_reply_received_through_the_proxy(tmp_path: Path) -> None:
    command = AIDER.command(("--yes-always", "--no-git", "--message", TASK, "note.txt"))
    variables = {"OPENAI_API_KEY": "client-key", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # no download
    home = Home(tmp_path / "home", tmp_path / "project", variables)
    home.project.mkdir()
    note = home.project / "note.txt"
    note.write_text(NOTE)
    home.write(".aider.conf.yml", AIDER_SETTINGS)
    model = ScriptedModel(lambda _body: Say(f"note.txt\n```\n{END}\n```\n"))  # aider uses no tools
    port = connect("aider", home)
    with (
        serve_upstream() as upstream,
        serve_proxy(tmp_path / "proxy", upstream.url, {"proxy.folding": "on"}, port=port),
    ):
        upstream.answer = model
        done = home.run(*command)
        assert note.read_text().strip() == END, done.stdout + done.stderr
        assert {each.header("authorization") for each in upstream.received} == {"Bearer client-key"}
        assert {each.path for each in upstream.received} == {"/v1/chat/completions"}
        check_doctor(home, upstream)
