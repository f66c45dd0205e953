"""One environment per kind of backend, and a token that finds every process of a test."""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.environments.backend_kinds import KINDS, Kind, Options, find_traces
from tests.environments.cloud_backends import CLOUD_SERVERS
from tests.environments.servers import SERVERS
from toolfold.tools.environments import Backend, Environment, apptainer, daytona, docker, modal, sandbox, ssh

HERE = Path(__file__).parent
Test = TypeVar("Test", bound=Callable[..., Any])
TEST_TIMEOUT_S = 300
PROBE_TIMEOUT_S = 60.0
FULL_CONTRACT = ("local",)
"""Backends for which `make test` runs every contract test."""
EVERY_BACKEND, EVERY_ENGINE = "for_every_backend", "for_every_engine"


def for_every_backend(test: Test) -> Test:
    """Let `make test` run a contract test for all backends but podman and apptainer."""
    setattr(test, EVERY_BACKEND, True)
    return test


def for_every_engine(test: Test) -> Test:
    """Let `make test` run a contract test for podman and apptainer too, which are like docker."""
    setattr(test, EVERY_ENGINE, True)
    return for_every_backend(test)


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
    part = EVERY_ENGINE if kind.name in ("podman", "apptainer") else EVERY_BACKEND
    return kind.name not in FULL_CONTRACT and not hasattr(item.function, part)


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
