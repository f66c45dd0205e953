"""The public names of the package: judging a command, loading rules, errors that name file, rule and key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shellverdict
from shellverdict import Finding, Judge, RuleError, Rules, Severity, Verdict, judge, load_rules

DEPLOY = """
[[rule]]
name = "deploy"
category = "publish"
severity = "medium"
description = "deploys {words}"
programs = ["ourtool"]
words = ["deploy"]
no_option = ["--dry-run"]
"""


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(DEPLOY)
    return file


def rule_error(file: Path, content: str) -> RuleError:
    """Return the error that loading a rule file with the given content raises."""
    file.write_text(content)
    with pytest.raises(RuleError) as caught:
        load_rules(file)
    return caught.value


def test_verdict_contains_the_dangerous_part_of_the_command_and_the_severity() -> None:
    verdict = judge("ls; rm -rf /")
    assert isinstance(verdict, Verdict)
    assert verdict.dangerous
    assert verdict.blocked
    assert verdict.part == "rm -rf /"
    assert verdict.severity is Severity.CRITICAL
    assert all(isinstance(finding, Finding) for finding in verdict.findings)


def test_harmless_command_has_no_findings() -> None:
    assert judge("ls -la | head").findings == ()


def test_home_argument_is_used_to_resolve_a_tilde(tmp_path: Path) -> None:
    assert (
        judge("rm -rf ~/work", home=tmp_path).reason == judge(f"rm -rf {tmp_path}/work", home=tmp_path).reason
    )
    assert judge("rm -rf /srv/someone", home="/srv/someone").blocked
    assert not judge("rm -rf /srv/someone", home="/srv/another").blocked


def test_cwd_argument_is_used_to_resolve_relative_paths(tmp_path: Path) -> None:
    assert judge("rm -rf ../..", cwd="/home/someone").blocked
    assert not judge("rm -rf ../..", cwd=tmp_path / "a" / "b" / "c").blocked


def test_judge_class_and_judge_function_return_the_same_verdicts(tmp_path: Path) -> None:
    reusable = Judge.for_this_machine(cwd=tmp_path, home=tmp_path)
    for command in ("rm -rf ~", "git push --force", "ls"):
        assert reusable(command) == judge(command, cwd=tmp_path, home=tmp_path)


def test_rules_of_a_file_are_added_to_the_built_in_rules(rule_file: Path) -> None:
    rules = load_rules(rule_file)
    assert isinstance(rules, Rules)
    verdict = judge("ourtool deploy production", rules=rules)
    assert [(each.rule, each.severity, each.reason) for each in verdict.findings] == [
        ("deploy", Severity.MEDIUM, "deploys deploy production")
    ]
    assert not judge("ourtool deploy --dry-run", rules=rules).dangerous
    assert judge("rm -rf /", rules=rules).blocked
    assert not judge("ourtool deploy production").dangerous


def test_value_of_an_option_declared_in_a_rule_file_is_not_mistaken_for_a_subcommand(
    rule_file: Path,
) -> None:
    verdict = judge("ourtool --zone deploy status", rules=load_rules(rule_file))
    assert verdict.dangerous  # the value of --zone is mistaken for the subcommand
    rule_file.write_text(DEPLOY + '[[program]]\nnames = ["ourtool"]\nvalued = ["--zone"]\n')
    assert not judge("ourtool --zone deploy status", rules=load_rules(rule_file)).dangerous
    assert judge("ourtool --zone eu deploy", rules=load_rules(rule_file)).dangerous


def test_rule_error_names_the_file_the_rule_and_the_key(rule_file: Path) -> None:
    error = rule_error(rule_file, DEPLOY.replace("severity", "severty"))
    assert (error.file, error.rule, error.key) == (str(rule_file), "deploy", "severty")
    assert str(error) == (
        f"{rule_file}: rule 'deploy': `severty` is not a valid key\n  did you mean severity?"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (DEPLOY.replace('"medium"', '"grave"'), "`severity` has the invalid value 'grave'"),
        (DEPLOY + DEPLOY, "two rules have the name 'deploy'"),
        (DEPLOY.replace('"deploy"', '"delete-everything"', 1), "two rules have the name 'delete-everything'"),
        ("[[rules]]\nname = 1\n", "`rules` is not a known table of a rule file\n  did you mean rule?"),
        ("rule = 3\n", "`rule` must be a list of tables in a rule file\n  write [[rule]]"),
        ("rule = [3]\n", "rule number 1 must be a table of keys and values"),
        ('[[program]]\nvalued = ["-x"]\n', "program without names: `names` is missing"),
        ("[[rule]\n", "the rule file is not valid TOML: "),
        ("#" + "x" * 1_000_000, "the rule file has more than 1,000,000 bytes"),
    ],
)
def test_invalid_rule_file_is_rejected_with_the_reason(rule_file: Path, content: str, problem: str) -> None:
    assert f"{rule_file}: " in str(rule_error(rule_file, content))
    assert problem in str(rule_error(rule_file, content))


def test_unreadable_rule_file_is_rejected_with_the_reason(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RuleError, match=f"the rule file cannot be read: {problem}"):
            load_rules(path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(RuleError, match="not valid TOML"):
        load_rules(tmp_path / "latin.toml")


def test_importable_names_of_shellverdict_are_exactly_the_documented_names() -> None:
    assert set(shellverdict.__all__) <= set(dir(shellverdict))
    assert all(getattr(shellverdict, name) is not None for name in shellverdict.__all__)
    with pytest.raises(AttributeError, match="no attribute 'judgement'"):
        _ = shellverdict.judgement


def test_importing_shellverdict_loads_neither_its_submodules_nor_toolfold() -> None:
    code = (
        "import sys, shellverdict; before = [m for m in sys.modules if m.startswith('shellverdict.')];"
        "shellverdict.judge('ls');"
        "print(before, [m for m in sys.modules if m.partition('.')[0] == 'toolfold'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_shellverdict_needs_nothing_but_the_standard_library() -> None:
    source = str(Path(shellverdict.__file__).parents[1])
    code = (
        f"import sys; sys.path.append({source!r});"
        "from shellverdict import judge; print(judge('rm -rf /').blocked)"
    )
    command = [sys.executable, "-I", "-S", "-c", code]  # without site-packages
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
