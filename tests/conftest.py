"""Shared fixtures: a private home directory, and runtimes that touch nothing outside of it."""

from __future__ import annotations

import functools
import gc
import os
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

from tests.known_vectors import share_vectors
from tests.postgres import PostgresServer, run_postgres
from tests.thorough import count_examples, runs_all_tests, split_items
from toolfold import CallContext, Runtime, Tool, build_tool, open_runtime
from toolfold.config import load_config
from toolfold.core.types import Approver, Json
from toolfold.state.database import Database, open_database

# No deadline, because the duration of an example depends on the machine. Derandomized, so that most runs are
# repeatable; examples still vary with constants of the modules that a worker has imported.
# `--hypothesis-profile=explore` tries random examples.
for name, same in (("any machine", True), ("explore", False)):
    settings.register_profile(
        name,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=same,
        max_examples=count_examples(100),
    )
settings.load_profile("any machine")


HERE = Path(__file__).parent
SLOW_DIRECTORIES = (
    "environments",
    "clients",
    "integrations",
    "dashboard",
    "proxy",
    "mcp",
    "gateway",
    "tools",
    "cli",
)
"""Directories whose modules take longest, in the order in which they should start."""


@pytest.hookimpl(trylast=True)  # other plugins may add the marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order tests for parallel workers, and leave out the thorough ones unless `make test-all` runs."""
    rank_of = functools.cache(_rank_by_duration)
    items.sort(key=lambda item: rank_of(item.path))
    if runs_all_tests():
        return
    chosen, left_out = split_items(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and tests from garbage collection, which would walk all of them many times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _rank_by_duration(module: Path) -> int:
    """Return the place of a module's directory among those with long tests; all others come last."""
    directory = module.relative_to(HERE).parts[0]
    return SLOW_DIRECTORIES.index(directory) if directory in SLOW_DIRECTORIES else len(SLOW_DIRECTORIES)


@pytest.fixture(scope="session", autouse=True)
def wait_for_the_whole_index() -> Iterator[None]:
    """Let searches wait for the whole index: on a slow machine a session would give up and find less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolfold.runtime.parts._MIN_PATIENCE_S", 600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def share_vectors_of_texts() -> Iterator[None]:
    """Let the encoder compute the vector of a text once in each worker."""
    with pytest.MonkeyPatch.context() as patch:
        share_vectors(patch)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server."""
    with run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def shared_database_url(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def database_url(postgres: PostgresServer, shared_database_url: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    yield shared_database_url
    postgres.empty_database(shared_database_url)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open connection pool to an empty PostgreSQL database with the current tables."""
    opened = open_database(database_url)
    assert opened is not None
    yield opened
    opened.close()


@pytest.fixture(scope="session", autouse=True)
def share_certificates() -> Iterator[None]:
    """Let HTTP clients share the certificates that they trust: each would read them for 30 ms."""
    create_context = httpcore2.default_ssl_context

    @functools.cache
    def create_once(trusts_environment: bool, _file: str | None, _directory: str | None) -> ssl.SSLContext:
        return create_context(_trust_env=trusts_environment)

    def share_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return create_once(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", share_context)
        yield


class RuntimeOpener(Protocol):
    """Opens runtimes that are closed at the end of the test."""

    def __call__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        approver: Approver | None = None,
        trusted: bool | None = None,
    ) -> Runtime: ...


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TOOLFOLD_HOME outside the workspace."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def open_test_runtime(home: Path, tmp_path: Path) -> Iterator[RuntimeOpener]:
    with ExitStack() as stack:

        def open_here(
            settings: Mapping[str, object] | None = None,
            *,
            approver: Approver | None = None,
            trusted: bool | None = None,
        ) -> Runtime:
            env = {"TOOLFOLD_HOME": str(home), "HOME": str(home)}
            config = load_config(project=tmp_path, env=env, overrides=settings or {}, trusted=trusted)
            return stack.enter_context(open_runtime(config, approver=approver))

        yield open_here


@pytest.fixture
def runtime(open_test_runtime: RuntimeOpener) -> Runtime:
    return open_test_runtime()


def recording_tool(name: str, toolset: str, ran: list[str], **options: Any) -> Tool:
    """Return a tool without arguments that appends its name to `ran`."""

    def handler(_args: Json, _context: CallContext) -> Json:
        ran.append(name)
        return {"ran": name}

    return build_tool(name=name, toolset=toolset, schema={"description": name}, handler=handler, **options)
