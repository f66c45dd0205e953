"""One environment per kind of backend, and a token that finds every process of a test."""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.environments.backend_kinds import KINDS, Kind, Options, find_traces
from tests.environments.cloud_backends import CLOUD_SERVERS
from tests.environments.servers import SERVERS
from toolfold.environments import Backend, Environment, apptainer, daytona, docker, modal, sandbox, ssh

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 300
PROBE_TIMEOUT_S = 60.0
FULL_CONTRACT = ("local", "sandbox")
REPRESENTATIVE = frozenset(
    {
        "test_exit_code_of_a_command_is_returned",
        "test_command_that_times_out_leaves_no_process",
        "test_directory_and_exported_variables_persist_between_commands_of_a_task",
        "test_secrets_of_the_runtime_are_not_passed_to_commands",
        "test_binary_file_is_written_and_read_back_unchanged",
        "test_end_of_a_background_process_is_reported",
        "test_check_of_an_available_backend_reports_that_it_is_ready",
    }
)
"""Contract tests that `make test` runs for the other backends too."""
SMALL_PART = frozenset(
    {"test_exit_code_of_a_command_is_returned", "test_command_that_times_out_leaves_no_process"}
)
"""Contract tests that `make test` runs for the other container engines."""


@dataclass(frozen=True)
class BackendSite:
    """Kind of backend with options to connect to a prepared target."""

    kind: Kind
    options: Options

    def backend(self) -> Backend:
        return self.kind.make(self.options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the contract tests that only `make test-all` runs, and limit the time of every async test."""
    for item in items:
        if item.path.parent != HERE or not isinstance(item, pytest.Function):
            continue
        if _is_left_out(item):
            item.add_marker(pytest.mark.thorough)
        item.obj = _with_timeout(item.obj)


def _is_left_out(item: pytest.Function) -> bool:
    """Return True for tests that `make test` skips: most contract tests of backends outside FULL_CONTRACT."""
    if item.path != HERE / "test_contract.py":
        return False
    kind = item.callspec.params.get("site") if hasattr(item, "callspec") else None
    if not isinstance(kind, Kind):
        return False
    if kind.name in ("podman", "apptainer"):  # like docker
        return item.originalname not in SMALL_PART
    return kind.name not in FULL_CONTRACT and item.originalname not in REPRESENTATIVE


def _with_timeout(test: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(test):
        return test

    @functools.wraps(test)
    async def run_with_timeout(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await test(*arguments, **named)

    return run_with_timeout


@pytest.fixture(scope="session", autouse=True)
def servers() -> Iterator[None]:
    """Stop all servers at the end of the test process."""
    yield
    SERVERS.close()
    CLOUD_SERVERS.close()


@pytest.fixture(autouse=True)
def long_probe_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the probe timeouts of the backends, because test machines may be busy."""
    for module in (apptainer, daytona, docker, modal, sandbox, ssh):
        monkeypatch.setattr(module, "PROBE_TIMEOUT_S", PROBE_TIMEOUT_S)


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendSite]:
    kind: Kind = request.param
    with kind.prepared(tmp_path) as options:
        yield BackendSite(kind, options)


@pytest.fixture
def token() -> Iterator[str]:
    """Unique word for the commands of a test; fails if a process with it survives the test."""
    token = f"token{secrets.token_hex(8)}"
    yield token
    assert find_traces(token) == []


@pytest.fixture
async def environment(site: BackendSite, token: str, tmp_path: Path) -> AsyncIterator[Environment]:
    async with Environment(
        site.backend(), output_dir=tmp_path / "outputs", variables={"NAMED": 'it\'s\n"given" $HOME'}
    ) as environment:
        yield environment
        for process in await environment.processes.list_all():
            await environment.processes.kill(process.name)
