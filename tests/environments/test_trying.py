"""The trial that a person can make of a place: passes where the contract holds, and tells what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from toolfold.environments import Channel, Environment, Readiness, Size
from toolfold.environments.local import Local
from toolfold.environments.trying import looked_at, tried
from toolfold.errors import EnvironmentFailed


async def test_every_trial_passes_in_every_place_and_leaves_nothing_running(environment: Environment) -> None:
    outcomes = [each async for each in tried(environment)]
    assert [(each.what, each.problem) for each in outcomes if not each.passed] == []
    assert len(outcomes) == 8
    assert [each for each in await environment.processes.all() if each.state == "running"] == []


class Unreachable(Local):
    async def open(self) -> None:
        raise EnvironmentFailed("nobody is there.", advice="Switch it on.")


class Lost(Local):
    """Works until it is used."""

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        if pty:
            raise EnvironmentFailed("the line was cut.", advice="Mend it.")
        return await super().spawn(argv, env=env, pty=pty)


async def test_a_place_that_cannot_be_reached_is_tried_no_further(tmp_path: Path) -> None:
    async with Environment(Unreachable(home=tmp_path, notes=tmp_path / "n", environment={})) as environment:
        (outcome,) = [each async for each in tried(environment)]
    assert (outcome.passed, outcome.problem, outcome.advice) == (False, "nobody is there.", "Switch it on.")


async def test_what_fails_says_what_to_do_and_the_rest_is_tried(tmp_path: Path) -> None:
    async with Environment(Lost(home=tmp_path, notes=tmp_path / "n", environment={})) as environment:
        outcomes = {each.what: each async for each in tried(environment)}
    failed = [each for each in outcomes.values() if not each.passed]
    assert [(each.what, each.problem, each.advice) for each in failed] == [
        ("a terminal of its own", "the line was cut.", "Mend it.")
    ]


async def test_a_backend_that_does_not_say_whether_it_works_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> Readiness:
        await asyncio.sleep(3600)
        return Readiness(True)

    async def failing() -> Readiness:
        raise EnvironmentFailed("'docker' could not be started.", advice="Is it installed?")

    monkeypatch.setattr("toolfold.environments.trying.CHECK_SECONDS", 0.05)
    assert not (await looked_at(silent)).available
    assert await looked_at(failing) == Readiness(False, "'docker' could not be started", "Is it installed?")
