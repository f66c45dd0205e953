"""Run another detector on the commands from standard input. Runs in the detector's environment.

    python approval_peers.py NAME [FOLDER]

FOLDER is prepended to the import path, for a package that is unpacked and not installed. Commands are a
JSON list; the output has a line per command: whether a prompt would appear, and the milliseconds it took.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Detector = Callable[[str], bool]


def hermes_agent() -> Detector:
    from tools.approval import (  # type: ignore[import-not-found]
        detect_dangerous_command,
        detect_hardline_command,
    )

    return lambda command: bool(detect_dangerous_command(command)[0] or detect_hardline_command(command)[0])


def nah() -> Detector:
    from nah.bash import classify_command  # type: ignore[import-not-found]

    return lambda command: classify_command(command).final_decision != "allow"


def agentwall() -> Detector:
    return _load_agentwall("standard")


def agentwall_strict() -> Detector:
    return _load_agentwall("strict")


def _load_agentwall(preset: str) -> Detector:
    from agentfirewall.engine import Engine  # type: ignore[import-not-found]
    from agentfirewall.presets import get_preset  # type: ignore[import-not-found]

    engine = Engine(get_preset(preset))
    return lambda command: engine.evaluate_command(command).verdict.name != "ALLOW"


def shellguard() -> Detector:
    from shellguard.scanner import scan_text  # type: ignore[import-not-found]

    return lambda command: bool(scan_text(command))


PEERS: dict[str, tuple[str, Callable[[], Detector]]] = {
    "hermes-agent": ("hermes-agent", hermes_agent),
    "nah": ("nah", nah),
    "agentwall": ("agentwall", agentwall),
    "agentwall strict": ("agentwall", agentwall_strict),
    "shellguard": ("shellguard", shellguard),
}


def version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def main() -> None:
    name, *folders = sys.argv[1:]
    sys.path[:0] = folders
    commands = json.load(sys.stdin)
    home = tempfile.mkdtemp()
    os.environ |= {"HOME": home, "HERMES_HOME": home}
    project = Path(home, "project")
    Path(project, ".git").mkdir(parents=True)
    os.chdir(project)
    package, build = PEERS[name]
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        detect = build()
        detect("ls")
        print(json.dumps({"version": version(package)}), file=answers, flush=True)
        for command in commands:
            started = time.process_time()
            try:
                asks = detect(command)
            except Exception:  # a detector that fails has not said yes: a person is asked
                asks = True
            spent = (time.process_time() - started) * 1000
            print(json.dumps([asks, spent]), file=answers, flush=True)


if __name__ == "__main__":
    main()
