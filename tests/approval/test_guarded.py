"""What is guarded stays so behind every door: folders above, other names, variables, unknown programs."""

from __future__ import annotations

import pytest

from toolfold.approval.judge import Judge
from toolfold.approval.places import Places
from toolfold.approval.rules import Rules
from toolfold.approval.verdict import Verdict


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(Rules.shipped(), Places(home="/home/ann", cwd="/home/ann/shop", links=False))


def rules(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


class TestGuardedFiles:
    @pytest.mark.parametrize(
        "command",
        [
            "cp -r e/. ~/.config/",
            "cp -r e/* ~/.config",
            "cp -rT e ~/.config",
            "cp -aT e ~/.local",
            "rsync -a e/ ~/.config/",
            "rsync -a e/ ~",
            "mv e/* ~/.config/",
            "tar -C ~/.config -xf x.tar",
            "tar xf x.tar -C ~/.local",
            "unzip -d ~/.config x.zip",
            "7z x x.7z -o/home/ann/.config",
            "cp -r e/. .git/",
            r"find ~/.config -type f -exec cp x {} \;",
            r"find ~/.config -name '*.yaml' -exec sed -i s/a/b/ {} +",
        ],
    )
    def test_filling_a_folder_above_them_is_asked_about(self, judge: Judge, command: str) -> None:
        assert {"overwrite-protected", "overwrite-startup"} & rules(judge(command))

    @pytest.mark.parametrize(
        "command",
        [
            "cp -r ~/.config/nvim backup",
            "cp -r themes ~/.config/nvim",
            "cp notes.txt ~/",
            "cp -r e/. build/",
            "rsync -a src/ dist/",
            "tar xf x.tar",
            "tar xf x.tar -C vendor",
            "tar xf x.tar -C ~/.local/bin",
            "unzip -d ~/Downloads/x x.zip",
            "find ~/.config -name '*.toml' -exec cat {} +",
        ],
    )
    def test_folders_that_hold_none_are_filled_unasked(self, judge: Judge, command: str) -> None:
        assert not judge(command).findings

    @pytest.mark.parametrize(
        "command",
        [
            "cp -l ~/.config/toolfold/config.yaml c",
            "cp -al ~/.bashrc c",
            "cp --link ~/.profile c",
            "cp -s ~/.config/toolfold/config.yaml c",
            "ln -s ~/.config c",
        ],
    )
    def test_other_names_for_them_are_asked_about(self, judge: Judge, command: str) -> None:
        assert {"write-protected", "write-startup"} & rules(judge(command))

    @pytest.mark.parametrize(
        "command",
        [
            "git log --output=$HOME/.bashrc",
            "git show --output ~/.bashrc",
            "shuf -o ~/.bashrc x",
            "ssh -E ~/.bashrc host true",
            "zip ~/.bashrc x",
            "rsync --log-file=$HOME/.bashrc a b",
            "pytest --junitxml=$HOME/.bashrc",
            "somewriter ~/.profile",
            "somewriter -o/home/ann/.zshrc",
            "somewriter out=$HOME/.config/toolfold/config.yaml",
            "docker run -v ~/.config/toolfold:/c image",
            "cd ~/.config/toolfold; patch < x",
            "cd ~/.config/toolfold && make",
            "git -C ~/.config/toolfold apply x.patch",
            "git --work-tree=$HOME/.config/toolfold checkout-index -a",
            "pip install --target ~/.config/toolfold/plugins x",
            "nano ~/.config/toolfold/config.yaml",
        ],
    )
    def test_programs_that_may_write_are_not_given_them_unasked(self, judge: Judge, command: str) -> None:
        assert judge(command).dangerous

    @pytest.mark.parametrize(
        "command",
        [
            "cat ~/.config/toolfold/config.yaml",
            "cd ~/.config/toolfold && ls && cat config.yaml",
            "git -C ~/.config/toolfold status",
            "source ~/.bashrc",
            "bash -n ~/.bashrc",
            "shellcheck ~/.bashrc",
            "vim ~/.bashrc",
            "awk -F: '{print $1}' /etc/passwd",
            "npx prettier --check .vscode/settings.json",
            "git add .husky/pre-commit",
            "git log --output=changes.txt",
            "pytest --junitxml=report.xml",
            "zip backup.zip ~/.bashrc",
            "cp ~/.bashrc backup",
            "scp host:/etc/passwd .",
        ],
    )
    def test_programs_that_read_are_given_them_unasked(self, judge: Judge, command: str) -> None:
        assert not judge(command).findings
