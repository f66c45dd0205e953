"""Every example runs and prints the expected output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolfold import load_config, open_runtime, sample_catalog

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED_OUTPUT = {
    "approval_queue.py": (
        "rm -rf drafts: deletes a directory",
        "(medium) -> session",
        "git push --force: did not run",
        "rm -rf /: did not run",
        "ran: ['ls -la', 'rm -rf drafts', \"rm  -rf 'drafts'\"]",
    ),
    "fewer_tools.py": ("tokens before", "tallyhouse_", '"text":"Call Halden Ltd"'),
    "hooks_and_approval.py": ("nobody could be asked", "The diary is never deleted.", "deleted: ['draft']"),
    "parallel_calls.py": ('{"item":"kettle","euros":6}', "tea is in the basket"),
    "plugin_folder.py": ("loud loaded ('shout',) ('voice',)", "about to run shout", "HELLO!"),
    "quickstart.py": ('{"city":"Porto","days":3,"highs":[19,20,21],"unit":"celsius"}',),
    "tool_search.py": (
        "instead of",
        "tallyhouse_void_invoice(invoice_id: string",
        "was not invoked: at /reason",
    ),
    "task_workers.py": ("ran count_boats", "round 4: done"),
    "scoped_sessions.py": ("all of them about parcels", "not available in this session", "no toolset 'flie'"),
}


USES_SAMPLE = "fewer_tools.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache with an index of the sample, because building it may take longer than an example waits."""
    home = tmp_path_factory.mktemp("home")
    config = load_config(project=home, env={"TOOLFOLD_HOME": str(home), "HOME": str(home)})
    with open_runtime(config, progress=lambda done, whole: None) as runtime:
        runtime.registry.add_all(sample_catalog())
        runtime.retriever.find(runtime.registry.snapshot(), "an invoice", mode="hybrid", limit=1)
    return config.paths.cache_dir


def test_every_example_program_has_a_recorded_expected_output() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED_OUTPUT)


@pytest.mark.thorough(keep=("quickstart", "approval_queue", "tool_search"))
@pytest.mark.parametrize("name", sorted(EXPECTED_OUTPUT))
def test_example_program_prints_the_expected_output(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == USES_SAMPLE:
        cache: Path = request.getfixturevalue("cache")
        shutil.copytree(cache, tmp_path / "home" / cache.name)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        env={**os.environ, "TOOLFOLD_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in EXPECTED_OUTPUT[name]:
        assert text in done.stdout
