"""A shell among recorders, for the tests that compare our reading with a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shellverdict.recording import NotHeld, Recording

PROGRAMS = ("rm", "ls", "git", "curl", "dd", "foo", "chmod")


@pytest.fixture(scope="session")
def shell() -> Iterator[Recording]:
    try:
        recording = Recording(PROGRAMS)
    except NotHeld:
        pytest.skip("the kernel cannot hold a shell in, and nothing is run without that")
    with recording:
        yield recording
