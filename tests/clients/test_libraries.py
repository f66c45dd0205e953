"""The gateway with client libraries, each in a small program that starts the gateway over stdio."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.clients.programs import PACKAGES, Home, node_program
from tests.clients.scenario import (
    ANSWERS,
    CHECKS_WITH_FORMS,
    STEPS_WITH_FORMS,
    Outcome,
    Request,
    read_calls,
    run_checks,
    write_settings,
)
from tests.mcp.servers import fastmcp_python

pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent


@dataclass(frozen=True)
class LibraryPlan:
    """What a program with a client library does: start the gateway, list its tools, and call some of them."""

    command: Sequence[str]
    environment: dict[str, str]
    steps: Sequence[Request] = STEPS_WITH_FORMS
    answers: Sequence[str] = ANSWERS
    """What it answers to the approval forms, in order."""


class LibraryTests:
    """Base class for the tests of one MCP client library."""

    def command(self, plan: str) -> Sequence[str]:
        """Return the command of the test's client program. Skips the test if the library is not installed."""
        raise NotImplementedError

    def test_client_library_calls_tools_and_answers_approval_forms_of_the_gateway(
        self, tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        home = Home(tmp_path / "home", tmp_path)
        write_settings(home.path / ".toolfold", tmp_path / "record")
        plan = LibraryPlan(("toolfold", "mcp", "serve"), home.environment)
        done = home.run(*self.command(json.dumps(asdict(plan))))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        outcome = Outcome(**found, calls=read_calls(tmp_path / "record"), output=done.stderr)
        run_checks(outcome, CHECKS_WITH_FORMS, subtests)


class TestPythonSdk(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        return sys.executable, str(HERE / "python_sdk_client.py"), plan


class TestTypeScriptSdk(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        folder = PACKAGES / "@modelcontextprotocol/client"
        if not folder.exists():
            pytest.skip("the TypeScript SDK is not installed: scripts/prepare_tests.sh installs it")
        node, _ = node_program("")
        return node, str(HERE / "typescript_sdk_client.mjs"), plan, str(folder)


class TestFastMcp(LibraryTests):
    def command(self, plan: str) -> Sequence[str]:
        return fastmcp_python(), str(HERE / "fastmcp_client.py"), plan
