"""Fixtures of the tests with a local web server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.internet.web_server import WebServer, run_web_server


@pytest.fixture
def server() -> Iterator[WebServer]:
    with run_web_server() as running:
        yield running
