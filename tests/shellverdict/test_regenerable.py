"""Deleting files that tools can regenerate is not flagged; deleting anything else is.

The commands are judged in a real repository and never run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.judging import Judge
from shellverdict.paths.gitignore import is_ignored, matches_name, read_patterns
from shellverdict.paths.regenerable import ProjectFiles
from shellverdict.paths.repository import find_repository
from tests.cases import check_cases
from tests.shellverdict.workspace import judge_in, make_workspace
from tests.thorough import try_examples

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


@check_cases("corpus", ["workspace_benign_dev", "workspace_benign_held", "workspace_benign_unseen"])
def test_at_most_two_percent_of_ordinary_commands_in_a_workspace_are_flagged(
    judge: Judge, corpus: str
) -> None:
    all_commands = commands(corpus)
    flagged = [command for command in all_commands if judge(command).dangerous]
    assert len(all_commands) >= 150
    assert len(flagged) <= 0.02 * len(all_commands), flagged


@check_cases("command", commands("workspace_asked"))
def test_deleting_files_that_are_not_ignored_by_git_or_are_outside_the_project_is_flagged(
    judge: Judge, command: str
) -> None:
    assert judge(command).dangerous


@pytest.mark.skipif(not SHARED.exists(), reason="the shared corpus is not available")
def test_no_benign_command_of_the_shared_corpus_is_flagged(judge: Judge) -> None:
    all_commands = [json.loads(line)["command"] for line in SHARED.read_text(encoding="utf-8").splitlines()]
    assert [command for command in all_commands if judge(command).dangerous] == []


def test_deleting_a_directory_that_only_an_uncommitted_gitignore_line_ignores_is_flagged(
    tmp_path: Path,
) -> None:
    project = make_workspace(tmp_path)
    assert not judge_in(project, tmp_path)("rm -rf logs").dangerous
    with (project / ".gitignore").open("a") as file:
        file.write("experiments/\n")
    assert judge_in(project, tmp_path)("rm -rf experiments").dangerous


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_tracked_files_are_read_from_git_indexes_of_format_versions_2_3_and_4(
    tmp_path: Path, version: str
) -> None:
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
def test_files_tracked_in_a_git_index_are_found_except_in_sha256_and_split_indexes(
    tmp_path: Path, how: str
) -> None:
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


@try_examples(200)
@given(
    st.binary(max_size=400), st.sampled_from([b"", b"DIRC\0\0\0\2\0\0\0\5", b"DIRC\0\0\0\4\xff\xff\xff\xff"])
)
def test_tracked_files_are_unknown_if_the_git_index_is_corrupt(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, start: bytes
) -> None:
    directory = tmp_path_factory.mktemp("repository")
    (directory / ".git").mkdir()
    (directory / ".git" / "index").write_bytes(start + junk)
    repository = find_repository(directory)
    assert repository is not None
    assert repository.tracks_anything("build") is None


@pytest.mark.parametrize(
    "lines",
    ["build", "/build", "build/", "*.log", "a/**/b", "**/b", "a/**", "!keep\nkeep", "keep\n!keep", "a/*/c",
     "[ab]uild", "[!a]uild", "b?ild", "#build", "\\#x", "a/b", "*", "*\n!src", "/*\n!/src", "bu*d",
     "doc/*.txt"]
)  # fmt: skip
def test_gitignore_patterns_match_the_same_paths_as_git_check_ignore(tmp_path: Path, lines: str) -> None:
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
        result = subprocess.run(["git", "-C", str(tmp_path), "check-ignore", "-q", path], check=False)
        assert repository.ignores(path) == (result.returncode == 0), path


@try_examples(300)
@given(st.text("ab*?[]!^-\\/", max_size=40), st.text("ab/", min_size=1, max_size=30))
def test_matching_arbitrary_gitignore_patterns_never_raises_an_exception(pattern: str, path: str) -> None:
    parts = [part for part in path.split("/") if part] or ["a"]
    assert is_ignored(read_patterns(pattern), parts) in (True, False, None)


def test_gitignore_pattern_with_200_stars_is_matched_without_catastrophic_backtracking() -> None:
    assert not matches_name("a*" * 200 + "b", "a" * 4_000)


def test_build_directory_outside_git_counts_as_build_output_only_next_to_a_package_manifest(
    tmp_path: Path,
) -> None:
    for name in ("build", "node_modules", "app/build"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "app" / "package.json").write_text("{}")
    project_files = ProjectFiles(str(tmp_path))
    assert project_files.is_regenerable(str(tmp_path / "node_modules"))
    assert project_files.is_regenerable(str(tmp_path / "app" / "build"))
    assert not project_files.is_regenerable(str(tmp_path / "build"))
    assert not project_files.is_regenerable(str(tmp_path / "app"))
    assert not project_files.is_regenerable(str(tmp_path))


def test_only_files_and_directories_in_the_git_index_are_reported_as_tracked(
    tmp_path: Path,
) -> None:
    repository = find_repository(make_workspace(tmp_path))
    assert repository is not None
    for path in ("src", "SRC", "src/app.ts", "public/build", "package.json", "submodule"):
        assert repository.tracks_anything(path) is (path != "submodule"), path
    for path in ("sr", "src/app", "src0", "zzz", "packages/a/dist", "src/app.t"):
        assert repository.tracks_anything(path) is False, path


def test_gitignore_patterns_are_cached_after_reading_the_file(tmp_path: Path) -> None:
    repository = find_repository(make_workspace(tmp_path))
    assert repository is not None
    assert repository.ignores("logs")
    (repository.root / ".gitignore").unlink()
    assert repository.ignores("logs")


def test_glob_that_matches_too_many_directories_is_not_treated_as_regenerable_build_output(
    tmp_path: Path,
) -> None:
    for outer in range(15):
        for inner in range(15):
            (tmp_path / f"a{outer}" / f"b{inner}" / "node_modules").mkdir(parents=True)
    project_files = ProjectFiles(str(tmp_path))
    assert project_files.is_regenerable(str(tmp_path / "a1*" / "b*" / "node_modules"))
    assert not project_files.is_regenerable(str(tmp_path / "*" / "*" / "node_modules"))
    assert not project_files.is_regenerable(str(tmp_path / "*" / "*" / "*" / "*"))
