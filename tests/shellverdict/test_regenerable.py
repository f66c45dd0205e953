"""What can be made again is deleted unasked, by what is on the disk; everything else is asked about.

The commands are judged in a real repository and never run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shellverdict.judge import Judge
from shellverdict.places.evidence import Evidence
from shellverdict.places.ignoring import is_ignored, matches_name, read_patterns
from shellverdict.places.repository import find_repository
from tests.shellverdict.workspace import judge_in, make_workspace

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

CORPUS = Path(__file__).parent / "corpus"
SHARED = Path(__file__).parents[3] / "shared" / "commands" / "benign.jsonl"


def commands(name: str) -> list[str]:
    return (CORPUS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def judge(project: Path) -> Judge:
    return judge_in(project, project.parent.parent)


@pytest.mark.parametrize("half", ["workspace_benign_dev", "workspace_benign_held", "workspace_benign_unseen"])
def test_at_most_two_percent_of_ordinary_commands_are_asked_about(judge: Judge, half: str) -> None:
    every = commands(half)
    asked = [command for command in every if judge(command).dangerous]
    assert len(every) >= 150
    assert len(asked) <= 0.02 * len(every), asked


@pytest.mark.parametrize("command", commands("workspace_asked"))
def test_what_is_tracked_unknown_precious_or_outside_is_asked_about(judge: Judge, command: str) -> None:
    assert judge(command).dangerous


@pytest.mark.skipif(not SHARED.exists(), reason="the shared corpus is not here")
def test_no_everyday_command_of_the_shared_corpus_is_asked_about(judge: Judge) -> None:
    every = [json.loads(line)["command"] for line in SHARED.read_text(encoding="utf-8").splitlines()]
    assert [command for command in every if judge(command).dangerous] == []


def test_a_changed_ignore_file_is_no_evidence(tmp_path: Path) -> None:
    project = make_workspace(tmp_path)
    assert not judge_in(project, tmp_path)("rm -rf logs").dangerous
    with (project / ".gitignore").open("a") as file:
        file.write("experiments/\n")
    assert judge_in(project, tmp_path)("rm -rf experiments").dangerous


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_the_index_is_read(tmp_path: Path, version: str) -> None:
    project = make_workspace(tmp_path)
    subprocess.run(["git", "-C", str(project), "update-index", "--index-version", version], check=True)
    repository = find_repository(project)
    assert repository is not None
    listed = subprocess.run(["git", "-C", str(project), "ls-files", "-z"], check=True, capture_output=True)
    assert sorted(repository.tracked_below("") or ()) == sorted(
        filter(None, listed.stdout.decode().split("\0"))
    )
    assert repository.tracks_anything("src") is True
    assert repository.tracks_anything("node_modules") is False


@pytest.mark.parametrize("how", ["sha256", "split", "skip-hash", "untracked-cache"])
def test_an_unusual_index_is_read_right_or_not_at_all(tmp_path: Path, how: str) -> None:
    form = ["--object-format=sha256"] if how == "sha256" else []
    subprocess.run(["git", "init", "-q", *form, str(tmp_path)], check=True)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "x.c").write_text("x\n")
    setting = {"skip-hash": "index.skipHash=true", "untracked-cache": "core.untrackedCache=true"}.get(how)
    option = ["-c", setting] if setting else []
    subprocess.run(["git", "-C", str(tmp_path), *option, "add", "build/x.c"], check=True)
    if how == "split":
        subprocess.run(["git", "-C", str(tmp_path), "update-index", "--split-index"], check=True)
    repository = find_repository(tmp_path)
    assert repository is not None
    assert repository.tracks_anything("build") is (None if how in ("sha256", "split") else True)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=400), st.sampled_from([b"", b"DIRC\0\0\0\2\0\0\0\5", b"DIRC\0\0\0\4\xff\xff\xff\xff"])
)
def test_a_broken_index_is_no_evidence(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, start: bytes
) -> None:
    folder = tmp_path_factory.mktemp("repository")
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(start + junk)
    repository = find_repository(folder)
    assert repository is not None
    assert repository.tracks_anything("build") is None


@pytest.mark.parametrize(
    "lines",
    ["build", "/build", "build/", "*.log", "a/**/b", "**/b", "a/**", "!keep\nkeep", "keep\n!keep", "a/*/c",
     "[ab]uild", "[!a]uild", "b?ild", "#build", "\\#x", "a/b", "*", "*\n!src", "/*\n!/src", "bu*d",
     "doc/*.txt"]
)  # fmt: skip
def test_patterns_ignore_what_git_ignores(tmp_path: Path, lines: str) -> None:
    paths = [
        "build",
        "src/build",
        "a/b",
        "a/x/b",
        "a/x/y/b",
        "x.log",
        "keep",
        "a/x/c",
        "auild",
        "src",
        "#x",
        "b",
        "doc/x.txt",
    ]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text(lines + "\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-f", ".gitignore"], check=True)
    for path in paths:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    repository = find_repository(tmp_path)
    assert repository is not None
    for path in paths:
        said = subprocess.run(["git", "-C", str(tmp_path), "check-ignore", "-q", path], check=False)
        assert repository.ignores(path) == (said.returncode == 0), path


@settings(max_examples=300, deadline=None)
@given(st.text("ab*?[]!^-\\/", max_size=40), st.text("ab/", min_size=1, max_size=30))
def test_no_pattern_makes_matching_fail(pattern: str, path: str) -> None:
    parts = [part for part in path.split("/") if part] or ["a"]
    assert is_ignored(read_patterns(pattern), parts) in (True, False, None)


def test_a_pattern_made_to_be_slow_is_matched_in_time() -> None:
    assert not matches_name("a*" * 200 + "b", "a" * 4_000)


def test_without_a_repository_a_doubtful_name_needs_a_manifest_beside_it(tmp_path: Path) -> None:
    for name in ("build", "node_modules", "app/build"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "app" / "package.json").write_text("{}")
    evidence = Evidence(str(tmp_path))
    assert evidence.is_regenerable(str(tmp_path / "node_modules"))
    assert evidence.is_regenerable(str(tmp_path / "app" / "build"))
    assert not evidence.is_regenerable(str(tmp_path / "build"))
    assert not evidence.is_regenerable(str(tmp_path / "app"))
    assert not evidence.is_regenerable(str(tmp_path))


def test_the_index_is_searched_without_reading_every_entry(tmp_path: Path) -> None:
    repository = find_repository(make_workspace(tmp_path))
    assert repository is not None
    for path in ("src", "SRC", "src/app.ts", "public/build", "package.json", "submodule"):
        assert repository.tracks_anything(path) is (path != "submodule"), path
    for path in ("sr", "src/app", "src0", "zzz", "packages/a/dist", "src/app.t"):
        assert repository.tracks_anything(path) is False, path


def test_an_ignore_file_is_read_once(tmp_path: Path) -> None:
    repository = find_repository(make_workspace(tmp_path))
    assert repository is not None
    assert repository.ignores("logs")
    (repository.root / ".gitignore").unlink()
    assert repository.ignores("logs")


def test_patterns_that_mean_too_many_paths_are_given_up_part_by_part(tmp_path: Path) -> None:
    for outer in range(15):
        for inner in range(15):
            (tmp_path / f"a{outer}" / f"b{inner}" / "node_modules").mkdir(parents=True)
    evidence = Evidence(str(tmp_path))
    assert evidence.is_regenerable(str(tmp_path / "a1*" / "b*" / "node_modules"))
    assert not evidence.is_regenerable(str(tmp_path / "*" / "*" / "node_modules"))
    assert not evidence.is_regenerable(str(tmp_path / "*" / "*" / "*" / "*"))
