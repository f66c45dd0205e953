"""Check the GitHub workflows: their schema, their security, and the shell commands in them. Needs no network.

python scripts/check_workflows.py

The schema is part of check-jsonschema. zizmor looks for excessive permissions, injection and leaked
credentials; what it is told to accept is in `.github/zizmor.yml`. ShellCheck reads the `run` steps and the
scripts of the repository.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
PROGRAMS = Path(sys.executable).parent


def main() -> int:
    """Return the exit code: 1 if any check finds a problem."""
    files = [str(file.relative_to(ROOT)) for file in WORKFLOWS]
    schema = ["check-jsonschema", "--quiet", "--builtin-schema", "vendor.github-workflows", *files]
    failed = [not run_program(*schema), not run_program("zizmor", "--offline", "--quiet", *files)]
    failed += [not check_commands(name, commands) for name, commands in read_commands()]
    scripts = [str(file.relative_to(ROOT)) for file in SCRIPTS]
    failed.append(not run_program("shellcheck", "--severity=warning", *scripts))
    if not any(failed):
        print(f"{len(files)} workflows and {len(scripts)} scripts have no problems")
    return int(any(failed))


def read_commands() -> Iterator[tuple[str, str]]:
    """Yield the commands of every step that runs in a POSIX shell, with the step's file, job and number."""
    for file in WORKFLOWS:
        workflow = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
        for name, job in workflow["jobs"].items():
            if "windows" in str(job["runs-on"]):
                continue
            for number, step in enumerate(job["steps"], 1):
                if "run" in step:
                    yield f"{file.name}, job {name}, step {number}", step["run"]


def check_commands(place: str, commands: str) -> bool:
    """Return True if ShellCheck accepts the commands of a step."""
    # SC2016: expressions in single quotes are for other programs.
    found = run_program("shellcheck", "--shell=bash", "--exclude=SC2016", "-", given=commands)
    if not found:
        print(f"^ {place}")
    return found


def run_program(name: str, *arguments: str, given: str | None = None) -> bool:
    """Run an installed program, and return True if it succeeds."""
    return (
        subprocess.run(
            [PROGRAMS / name, *arguments], cwd=ROOT, input=given, text=True, check=False
        ).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main())
