"""What most tests stand on: a home of their own, and runtimes that touch nothing outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from toolfold import CallContext, Runtime, Tool, build_tool, open_runtime
from toolfold.config import load_config
from toolfold.model import Approver, Json

# How long an example takes says more about the machine than about what is tested. Examples depend on no seed,
# so that what passed mostly passes again: they still vary with the modules that a worker happens to have
# imported, whose constants are tried. `--hypothesis-profile=explore` looks for others.
for name, same in (("any machine", True), ("explore", False)):
    settings.register_profile(
        name, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=same
    )
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def all_tools_are_read() -> Iterator[None]:
    """A slow machine takes longer to read many tools than a session waits, and would find others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolfold.runtime._INDEX_WAIT_S", 600.0)
        yield


class Opened(Protocol):
    """Opens runtimes that are closed when the test ends."""

    def __call__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        approver: Approver | None = None,
        trusted: bool | None = None,
    ) -> Runtime: ...


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TOOLFOLD_HOME, outside of the workspace."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def opened(home: Path, tmp_path: Path) -> Iterator[Opened]:
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
def runtime(opened: Opened) -> Runtime:
    return opened()


def recording(name: str, toolset: str, ran: list[str], **options: Any) -> Tool:
    """A tool without arguments that leaves its name in `ran`."""

    def handler(_args: Json, _context: CallContext) -> Json:
        ran.append(name)
        return {"ran": name}

    return build_tool(name=name, toolset=toolset, schema={"description": name}, handler=handler, **options)
