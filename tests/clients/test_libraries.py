"""The gateway with client libraries, each in a small program that uses the gateway over stdio or HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.clients.programs import PACKAGES, Home, node_program
from tests.clients.scenario import (
    ANSWERS,
    CHECKS,
    CHECKS_WITH_FORMS,
    STEPS,
    STEPS_WITH_FORMS,
    Outcome,
    Request,
    read_calls,
    run_checks,
    write_settings,
)
from tests.gateway.gateway_process import gateway_process
from tests.mcp.servers import client_libraries_python, fastmcp_python

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class LibraryPlan:
    """What a program with a client library does: connect to the gateway, list its tools, and call some."""

    command: Sequence[str]
    """The command that starts the gateway over stdio."""
    environment: dict[str, str]
    """The environment of that command."""
    url: str = ""
    """The URL of a running gateway, which is used instead of the command if it is not empty."""
    steps: Sequence[Request] = STEPS_WITH_FORMS
    answers: Sequence[str] = ANSWERS
    """What it answers to the approval forms, in order."""


class LibraryTests:
    """Base class for the tests of one MCP client library."""

    supports_forms: ClassVar[bool] = True

    def command(self, plan: str) -> Sequence[str]:
        """Return the command of the test's client program. Skips the test if the library is not installed."""
        raise NotImplementedError

    def test_client_library_lists_and_calls_tools_of_the_gateway_over_stdio(
        self, home: Home, record: Path, subtests: pytest.Subtests
    ) -> None:
        self.run_program(home, record, "", subtests)

    def run_program(self, home: Home, record: Path, url: str, subtests: pytest.Subtests) -> None:
        """Run the client program with a gateway, and check what it received and what reached the server."""
        steps = STEPS_WITH_FORMS if self.supports_forms else STEPS
        plan = LibraryPlan(("toolfold", "mcp", "serve"), home.environment, url, steps)
        done = home.run(*self.command(json.dumps(asdict(plan))))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        outcome = Outcome(**found, calls=read_calls(record), output=done.stderr)
        run_checks(outcome, CHECKS_WITH_FORMS if self.supports_forms else CHECKS, subtests)


class FrameworkTests(LibraryTests):
    """Base class for the tests of an agent framework, whose MCP client needs version 1 of the Python SDK."""

    program: ClassVar[str]

    def command(self, plan: str) -> Sequence[str]:
        return client_libraries_python(), str(HERE / self.program), plan

    def test_agent_framework_lists_and_calls_tools_of_the_gateway_over_http(
        self, home: Home, record: Path, subtests: pytest.Subtests
    ) -> None:
        self.command("")  # skips the test if the library is not installed
        with gateway_process(home.path / ".toolfold") as gateway:
            self.run_program(home, record, gateway.url, subtests)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def home(tmp_path: Path, record: Path) -> Home:
    no_telemetry = {"MCP_USE_ANONYMIZED_TELEMETRY": "false"}  # mcp-use would send it over the network
    home = Home(tmp_path / "home", tmp_path, no_telemetry)
    write_settings(home.path / ".toolfold", record)
    return home


class TestPythonSdk(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        return sys.executable, str(HERE / "python_sdk_client.py"), plan


class TestTypeScriptSdk(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        folder = PACKAGES / "@modelcontextprotocol/client"
        if not folder.exists():
            pytest.skip("the TypeScript SDK is not installed: `make test-tools` installs it")
        node, _ = node_program("")
        return node, str(HERE / "typescript_sdk_client.mjs"), plan, str(folder)


class TestFastMcp(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        return fastmcp_python(), str(HERE / "fastmcp_client.py"), plan


class TestLangChain(FrameworkTests):
    program = "langchain_client.py"


class TestPydanticAi(FrameworkTests):
    program = "pydantic_ai_client.py"


class TestOpenAiAgents(FrameworkTests):
    program = "openai_agents_client.py"
    supports_forms = False


class TestMcpUse(FrameworkTests):
    program = "mcp_use_client.py"
