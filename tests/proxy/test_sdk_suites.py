"""The test suites of the packages `openai` and `anthropic` give the same results with and without the proxy.

The suites send thousands of requests to every endpoint of these APIs. The provider answers each with a
response that fits the SDK's own types, so what the proxy changed would make a test fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.proxy.harness import serve_proxy
from tests.proxy.sdk_endpoints import answer_like
from tests.proxy.upstream import Received, Upstream, serve_upstream
from tests.thorough import runs_all_tests

pytestmark = pytest.mark.clients

INSTALLED = Path(sys.prefix, "test_tools/sdk_tests")
SUITE_TIMEOUT_S = 3_000.0
OPTIONS = {"openai": (), "anthropic": ("-p", "tests._alias_httpx")}
"""Options with which the packages themselves run their tests, without parallel workers."""
WHOLE_SUITE = ("tests/api_resources", "tests/test_client.py", "tests/lib/streaming")
PARTS = {
    "openai": ("chat/test_completions.py", "test_responses.py", "test_embeddings.py", "test_models.py"),
    "anthropic": ("test_messages.py", "test_models.py"),
}
"""The tests that `make test` runs, of those in `tests/api_resources`."""
RESOURCES = {
    "openai": ("chat.completions.completions", "responses.responses", "embeddings", "models"),
    "anthropic": ("messages.messages", "models"),
}
"""The modules of the SDK that contain the endpoints of these tests."""
MIN_TESTS = {"openai": 60, "anthropic": 25}
MIN_ALL_TESTS = {"openai": 9_000, "anthropic": 5_000}
"""How many tests must pass without the proxy, so that the comparison says something."""
_CONNECTION_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding"})
_BOUNDARY = re.compile(rb"boundary=([^;\s]+)")

needs_suites = pytest.mark.skipif(
    not (INSTALLED / ".complete").exists(),
    reason="the tests of the SDKs are not installed: scripts/test_servers/sdk_tests.sh",
)


@dataclass(frozen=True)
class SuiteRun:
    """The results of the tests of one package, and the requests that they sent to the provider."""

    outcomes: dict[str, str]
    requests: list[tuple[object, ...]]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.outcomes.values())


@pytest.fixture(scope="module", params=["openai", "anthropic"])
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def upstream(package: str) -> Iterator[Upstream]:
    with serve_upstream() as upstream:
        upstream.answer = answer_like(package, None if runs_all_tests() else RESOURCES[package])
        yield upstream


@pytest.fixture(scope="module")
def direct(package: str, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    """Return the results of the tests without the proxy."""
    return run_suite(package, upstream, upstream.url, tmp_path_factory.mktemp("direct"))


@needs_suites
@pytest.mark.timeout(3 * SUITE_TIMEOUT_S)
@pytest.mark.thorough(keep=("openai-on",))
@pytest.mark.parametrize("folding", ["off", "on"])
def test_official_sdk_test_suite_has_the_same_results_with_and_without_the_proxy(
    package: str, upstream: Upstream, direct: SuiteRun, folding: str, tmp_path: Path
) -> None:
    with serve_proxy(tmp_path / "home", upstream.url, {"proxy.folding": folding}) as running:
        proxied = run_suite(package, upstream, running.url, tmp_path)
        assert running.proxy.open_requests == 0
    expected = MIN_ALL_TESTS if runs_all_tests() else MIN_TESTS
    assert direct.counts["passed"] >= expected[package], direct.counts
    different = {
        name: (outcome, proxied.outcomes.get(name))
        for name, outcome in direct.outcomes.items()
        if proxied.outcomes.get(name) != outcome
    }
    assert not different
    assert proxied.outcomes.keys() == direct.outcomes.keys()
    if folding == "off":
        assert proxied.requests == direct.requests


def run_suite(package: str, upstream: Upstream, url: str, directory: Path) -> SuiteRun:
    """Run the tests of a package against the API at a URL; by default a part of them."""
    base_url = f"{url}/v1" if package == "openai" else url
    upstream.received.clear()
    report = directory / "report.xml"
    command = [str(INSTALLED / "environment/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors"]  # one module needs a package that is not installed
    command += ["-o", "addopts=", *OPTIONS[package], "--junitxml", str(report), *choose_tests(package)]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TEST_API_BASE_URL": base_url,
    }
    done = subprocess.run(
        command,
        cwd=INSTALLED / package,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_S,
        check=False,
    )
    assert report.exists(), (done.stdout + done.stderr)[-2_000:]
    return SuiteRun(read_outcomes(report), [describe_request(each) for each in upstream.received])


def choose_tests(package: str) -> Sequence[str]:
    """Return the arguments that select all tests with requests or, for `make test`, some of each API."""
    if runs_all_tests():
        return [each for each in WHOLE_SUITE if (INSTALLED / package / each).exists()]
    return ["-k", "strict", *(f"tests/api_resources/{part}" for part in PARTS[package])]


def read_outcomes(report: Path) -> dict[str, str]:
    """Return the result of each test in a report: passed, or the kind of its problem."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcomes[name] = next((each.tag for each in case if each.tag in _PROBLEMS), "passed")
    return outcomes


_PROBLEMS = frozenset({"failure", "error", "skipped"})


def describe_request(request: Received) -> tuple[object, ...]:
    """Return what must be the same in a request through the proxy; parts of a form have random separators."""
    headers = {name.lower(): value for name, value in request.headers}
    kept = {name: value for name, value in headers.items() if name not in _CONNECTION_HEADERS}
    body = request.body
    if found := _BOUNDARY.search(kept.get("content-type", "").encode()):
        body = body.replace(found[1], b"boundary")
        kept["content-type"] = "multipart/form-data"
    return request.method, request.path, sorted(kept.items()), body
