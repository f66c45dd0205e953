"""Fixture with a sandboxed bash that records which programs it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shellverdict.recording import RecordingShell, SandboxUnavailable

PROGRAMS = ("rm", "ls", "git", "curl", "dd", "foo", "chmod")


@pytest.fixture(scope="session")
def shell() -> Iterator[RecordingShell]:
    try:
        recording = RecordingShell(PROGRAMS)
    except SandboxUnavailable:
        pytest.skip("the kernel does not support Landlock, which the sandbox needs")
    with recording:
        yield recording
