"""Runner of the official conformance scenarios, one at a time, and its results.

`python -m tests.mcp.conformance` runs all scenarios, prints a table and writes it to
benchmarks/results/conformance.md. The runner's own mode for a whole revision starts everything in
parallel, which is too slow on a small machine. Knows how scenarios are run, not what they contain.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mcp import servers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks/results/conformance.md"
LAUNCHER = Path(__file__).with_name("conformance_launcher.py")
HEADING = "## As a client"
PATIENCE = 120.0

_LOGIN = tuple(
    f"auth/{name}"
    for name in (
        "metadata-default",
        "metadata-var1",
        "metadata-var2",
        "metadata-var3",
        "basic-cimd",
        "scope-from-www-authenticate",
        "scope-from-scopes-supported",
        "scope-omitted-when-undefined",
        "scope-step-up",
        "scope-retry-limit",
        "token-endpoint-auth-basic",
        "token-endpoint-auth-post",
        "token-endpoint-auth-none",
        "pre-registration",
    )
)
SCORED: Mapping[str, tuple[str, ...]] = {
    "2025-11-25": (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        *_LOGIN,
    ),
    "2026-07-28": (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        *_LOGIN,
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
    ),
}
"""Scenarios that each protocol revision requires of a client."""
_CREDENTIALS = "client credentials instead of a user's login; not supported"
_BOUND = "tokens bound to a key; supported neither by Toolfold nor by the official SDK"
UNSCORED: Mapping[str, str] = {
    "json-schema-2020-12-preservation": "added after the release of both revisions",
    "auth/client-credentials-basic": _CREDENTIALS,
    "auth/client-credentials-jwt": _CREDENTIALS,
    "auth/enterprise-managed-authorization": "login through a company's identity provider; not supported",
    "auth/wif-jwt-bearer": "workload identity instead of a user's login; not supported",
    "auth/dpop": _BOUND,
    "auth/dpop-nonce": _BOUND,
}
"""Further scenarios of the runner, and why they are not scored."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one scenario."""

    revision: str
    scenario: str
    checks: Counter[str]
    problems: tuple[str, ...]
    exit_code: int
    """Exit code of the runner; not 0 if the client failed unexpectedly."""
    output: str

    @property
    def is_passed(self) -> bool:
        """Whether something was checked, nothing failed or gave a warning, and the runner exited with 0."""
        bad = self.checks["FAILURE"] + self.checks["WARNING"] + self.exit_code
        return not bad and self.checks["SUCCESS"] > 0


@contextlib.contextmanager
def start_client() -> Iterator[str]:
    """Start the client once for many scenarios; yield the command that runs a scenario with it."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/socket"
        words = [sys.executable, "-m", "tests.mcp.conformance_client", "--ready", place]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            # Without `exec` a timeout would kill only the shell.
            yield f"exec {shlex.join([sys.executable, '-I', '-S', str(LAUNCHER), place])}"


def run(runner: Sequence[str], client: str, revision: str, scenario: str, folder: Path) -> Outcome:
    """Run one scenario against the client. All output is written below the directory."""
    words = ["--command", client, "--scenario", scenario, "--spec-version", revision, "-o", str(folder)]
    # Extensions belong to no revision: without `--force` they would be skipped.
    limits = ["--timeout", str(int(PATIENCE * 1_000)), "--force"]
    done = subprocess.run(
        [*runner, "client", *words, *limits],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    checks = _checks(folder)
    return Outcome(
        revision,
        scenario,
        Counter(str(each["status"]) for each in checks),
        tuple(_problem(each) for each in checks if each["status"] in ("FAILURE", "WARNING")),
        done.returncode,
        done.stdout + done.stderr,
    )


def _checks(folder: Path) -> list[dict[str, Any]]:
    return [check for file in folder.rglob("checks.json") for check in json.loads(file.read_text())]


def _problem(check: Mapping[str, Any]) -> str:
    return f"{check['id']}: {check.get('errorMessage') or check['description']}"


def run_all(runner: Sequence[str], at_once: int) -> list[Outcome]:
    """Run every scenario of both revisions."""
    cases = [(each, name) for each in SCORED for name in (*SCORED[each], *UNSCORED)]

    def one(case: tuple[str, str]) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(runner, client, *case, Path(folder))
        print(f"{'ok ' if outcome.is_passed else 'NOT'} {' '.join(case)}", file=sys.stderr)
        return outcome

    with start_client() as client, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, cases))


def render_section(outcomes: Iterable[Outcome]) -> str:
    """Return the client section of the docs page."""
    known = {(each.revision, each.scenario): each for each in outcomes}
    scores = [_score(known, revision) for revision in SCORED]
    rows = [
        f"| `{name}` | " + " | ".join(_cell(known.get((each, name))) for each in SCORED) + " |"
        for name in dict.fromkeys(name for names in SCORED.values() for name in names)
    ]
    others = [
        f"| `{name}` | " + " | ".join(_cell(known.get((each, name))) for each in SCORED) + f" | {why} |"
        for name, why in UNSCORED.items()
    ]
    heads = " | ".join(SCORED)
    return "\n".join(
        [
            HEADING,
            "",
            "| required by | scenarios passed | checks passed | warnings |",
            "|---|---|---|---|",
            *scores,
            "",
            f"| scenario | {heads} |",
            "|---|---|---|",
            *rows,
            "",
            *_failing(known.values()),
            "The runner has scenarios that no revision requires: extensions, and one that was added later.",
            "",
            f"| not scored | {heads} | description |",
            "|---|---|---|---|",
            *others,
            "",
        ]
    )


def _score(known: Mapping[tuple[str, str], Outcome], revision: str) -> str:
    outcomes = [known[revision, name] for name in SCORED[revision]]
    total: Counter[str] = sum((each.checks for each in outcomes), Counter())
    checked = total["SUCCESS"] + total["FAILURE"] + total["WARNING"]
    good = sum(each.is_passed for each in outcomes)
    return (
        f"| {revision} | {good} of {len(outcomes)} | {total['SUCCESS']} of {checked} | {total['WARNING']} |"
    )


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "–"
    passed = outcome.checks["SUCCESS"]
    checked = passed + outcome.checks["FAILURE"] + outcome.checks["WARNING"]
    return f"{'passes' if outcome.is_passed else 'fails'}, {passed} of {checked}"


def _failing(outcomes: Iterable[Outcome]) -> list[str]:
    lines = [
        f"* `{each.scenario}` at {each.revision}: {'; '.join(each.problems) or f'exit code {each.exit_code}'}"
        for each in outcomes
        if not each.is_passed and each.scenario not in UNSCORED
    ]
    return [*lines, ""] if lines else ["No scored scenario fails.", ""]


def replace_section(page: str, part: str) -> str:
    """Return the page with its client section replaced."""
    before, _, rest = page.partition(f"{HEADING}\n")
    end = rest.find("\n## ")
    return before + part + (rest[end:] if end >= 0 else "")


def main() -> int:
    """Run all scenarios, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, default=2)
    outcomes = run_all(servers.conformance_command(), parser.parse_args().at_once)
    part = render_section(outcomes)
    print(part)
    PAGE.write_text(replace_section(PAGE.read_text(), part))
    return int(any(not each.is_passed for each in outcomes if each.scenario in SCORED[each.revision]))


if __name__ == "__main__":
    sys.exit(main())
