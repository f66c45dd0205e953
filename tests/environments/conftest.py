"""One environment for each kind of place, and a token that finds every trace of a test."""

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

from tests.environments.clouds import CLOUDS
from tests.environments.places import KINDS, Kind, Options, traces
from tests.environments.servers import SERVERS
from toolfold.environments import Backend, Environment, apptainer, daytona, docker, modal, sandbox, ssh

HERE = Path(__file__).parent
LONGEST_SECONDS = 300
PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Site:
    """A place of some kind that is ready to be reached."""

    kind: Kind
    options: Options

    def backend(self) -> Backend:
        return self.kind.make(self.options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that would wait for ever fails, and shows where it waits; the others go on."""
    for item in items:
        if item.path.parent == HERE and isinstance(item, pytest.Function):
            item.obj = _limited(item.obj)


def _limited(test: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(test):
        return test

    @functools.wraps(test)
    async def limited(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(LONGEST_SECONDS):
            await test(*arguments, **named)

    return limited


@pytest.fixture(scope="session", autouse=True)
def servers() -> Iterator[None]:
    """Whatever a test of this process has started is gone at its end."""
    yield
    SERVERS.close()
    CLOUDS.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person wants to know soon whether a place can be used; a busy machine may need longer to say so."""
    for module in (apptainer, daytona, docker, modal, sandbox, ssh):
        monkeypatch.setattr(module, "PROBE_SECONDS", PROBE_SECONDS)


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    kind: Kind = request.param
    with kind.prepared(tmp_path) as options:
        yield Site(kind, options)


@pytest.fixture
def token() -> Iterator[str]:
    """Put it into a command: at the end of the test nothing may run that has it about it."""
    token = f"token{secrets.token_hex(8)}"
    yield token
    assert traces(token) == []


@pytest.fixture
async def environment(site: Site, token: str, tmp_path: Path) -> AsyncIterator[Environment]:
    async with Environment(
        site.backend(), outputs=tmp_path / "outputs", variables={"NAMED": 'it\'s\n"given" $HOME'}
    ) as environment:
        yield environment
        for process in await environment.processes.all():
            await environment.processes.kill(process.name)
