"""Every fault of a server gets an answer that names it, and the next call works or says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.mcp.faults import FAULTS, Fault, meet

PATIENCE = 120.0


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_fault_gives_the_expected_error_and_the_next_call_works(fault: Fault, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        met = await meet(fault, tmp_path)
    assert fault.answer in (met.answer, "*"), met
    assert fault.says in met.said
    assert met.then == fault.then, met
    if met.then != "again":
        assert "`" in met.then_said or "Install" in met.then_said or "url" in met.then_said, met  # what to do


def test_there_are_enough_distinct_faults() -> None:
    assert len(FAULTS) >= 28
    assert len({str(fault) for fault in FAULTS}) == len(FAULTS)
