"""The trial steps of `toolfold env test` pass on working environments and report failures with advice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from toolfold.core.errors import EnvironmentFailed
from toolfold.tools.environments import Channel, Environment, Readiness, TerminalSize
from toolfold.tools.environments.local import Local
from toolfold.tools.environments.trials import check_readiness, run_trials


@pytest.mark.thorough(keep=("local", "docker"))
async def test_self_test_of_a_working_environment_passes_all_steps_and_leaves_no_running_process(
    environment: Environment,
) -> None:
    outcomes = [each async for each in run_trials(environment)]
    assert [(each.step, each.problem) for each in outcomes if not each.passed] == []
    assert len(outcomes) == 8
    assert [each for each in await environment.processes.list_all() if each.state == "running"] == []


class UnreachableBackend(Local):
    async def open(self) -> None:
        raise EnvironmentFailed("nobody is there.", advice="Switch it on.")


class LostBackend(Local):
    """Backend that opens but cannot start programs."""

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        if pty:
            raise EnvironmentFailed("the line was cut.", advice="Mend it.")
        return await super().spawn(argv, env=env, pty=pty)


async def test_self_test_of_an_unreachable_environment_stops_after_the_failed_first_step(
    tmp_path: Path,
) -> None:
    async with Environment(
        UnreachableBackend(home=tmp_path, state_dir=tmp_path / "n", environment={})
    ) as environment:
        (outcome,) = [each async for each in run_trials(environment)]
    assert (outcome.passed, outcome.problem, outcome.advice) == (False, "nobody is there.", "Switch it on.")


async def test_self_test_of_an_environment_reports_advice_for_a_failed_step_and_runs_remaining_steps(
    tmp_path: Path,
) -> None:
    async with Environment(
        LostBackend(home=tmp_path, state_dir=tmp_path / "n", environment={})
    ) as environment:
        outcomes = {each.step: each async for each in run_trials(environment)}
    failed = [each for each in outcomes.values() if not each.passed]
    assert [(each.step, each.problem, each.advice) for each in failed] == [
        ("terminal", "the line was cut.", "Mend it.")
    ]


async def test_backend_is_reported_as_not_ready_if_its_readiness_check_fails_or_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never_answer() -> Readiness:
        await asyncio.sleep(3600)
        return Readiness(True)

    async def raise_error() -> Readiness:
        raise EnvironmentFailed("'docker' could not be started.", advice="Is it installed?")

    monkeypatch.setattr("toolfold.tools.environments.trials.CHECK_TIMEOUT_S", 0.05)
    assert not (await check_readiness(never_answer)).available
    assert await check_readiness(raise_error) == Readiness(
        False, "'docker' could not be started", "Is it installed?"
    )
