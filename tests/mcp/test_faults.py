"""Every fault of a server gives an error that names it, and the next call works or gives advice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.mcp.faults import FAULTS, Fault, run_fault

PATIENCE = 120.0


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_faulty_server_causes_the_expected_outcome_of_the_call_and_of_the_next_call(
    fault: Fault, tmp_path: Path
) -> None:
    async with asyncio.timeout(PATIENCE):
        met = await run_fault(fault, tmp_path)
    assert fault.answer in (met.answer, "*"), met
    assert fault.expected_text in met.message
    assert met.next_answer == fault.expected_next, met
    if met.next_answer != "again":
        assert "`" in met.next_message or "Install" in met.next_message or "url" in met.next_message, (
            met
        )  # what to do


def test_list_of_tested_server_faults_has_at_least_28_different_entries() -> None:
    assert len(FAULTS) >= 28
    assert len({str(fault) for fault in FAULTS}) == len(FAULTS)
