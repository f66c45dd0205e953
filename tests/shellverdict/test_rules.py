"""Built-in rules match their examples, conditions match as documented, and invalid rules are reported."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shellverdict.rules
from shellverdict.errors import RuleError
from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rule, Rules, builtin_rules
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.words import ANY, GAP, STAR, Word
from shellverdict.verdict import CommandEffect, EffectKind, Finding, Severity
from tests.cases import check_cases

BUILTIN_RULES = builtin_rules()
RULE_FILES = Path(shellverdict.rules.__file__).parent
RULE_FILE_NAMES = sorted(file.name for file in RULE_FILES.glob("*.toml"))
JUDGE = Judge(BUILTIN_RULES, PathClassifier(home="/home/ada", cwd="/home/ada/project", follow_links=False))
CATEGORIES = {
    *(
        "fs-delete",
        "disk",
        "decode-exec",
        "reverse-shell",
        "overwrite",
        "data-loss",
        "permissions",
        "privilege",
    ),
    *(
        "remote-exec",
        "exfiltration",
        "persistence",
        "process",
        "service",
        "git",
        "database",
        "cloud",
        "publish",
    ),
    *("package", "self-protection", "spoof", "unreadable"),
}
RULE_TABLE: dict[str, Any] = {
    "name": "deploy",
    "category": "cloud",
    "severity": "medium",
    "description": "{program} deploys {target}",
    "programs": ["shipit"],
}


def run_of(command: str, **more: Any) -> ProgramRun:
    """Return a program run for one simple command; assignments and a leading `sudo` are split off."""
    words = [Word(word) for word in shlex.split(command)]
    assigned: dict[str, Word] = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        assigned[name] = Word(value)
    if words[0] in ("sudo", "doas") and len(words) > 1 and not words[1].startswith("-"):
        more["wrappers"] = (words.pop(0),)
    bare = Word(words[0].rsplit("/", 1)[-1])
    return ProgramRun(
        argv=(bare, *words[1:]), path=words[0], span=(0, len(command)), env_assignments=assigned, **more
    )


def rule_names(findings: Iterable[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def matching_rules(rules: Rules, command: str, **more: Any) -> set[str]:
    return rule_names(rules.match_run(run_of(command, **more)))


def rules_of_file(file: str) -> list[Rule]:
    """Return the built-in rules that one rule file defines."""
    tables = tomllib.loads((RULE_FILES / file).read_text(encoding="utf-8"))
    names = {table["name"] for table in tables.get("rule", ())}
    return [rule for rule in BUILTIN_RULES.rules if rule.name in names]


def is_found(rule: Rule, command: str) -> bool:
    """Return True if the rule, or for a rule about an effect its category, is in the verdict."""
    findings = JUDGE(command).findings
    if rule.matches_runs:
        return rule.name in rule_names(findings)
    # A rule for the program may match instead of the rule for the effect.
    return rule.category in {finding.category for finding in findings}


def custom_rules(**changed: Any) -> Rules:
    return Rules.from_tables([{**RULE_TABLE, **changed}])


# --- built-in rules


@check_cases("file", RULE_FILE_NAMES)
def test_built_in_rules_match_their_examples(file: str) -> None:
    missed = [
        f"{rule.name}: {command}"
        for rule in rules_of_file(file)
        for command in rule.matches
        if not is_found(rule, command)
    ]
    assert missed == []


@check_cases("file", RULE_FILE_NAMES)
def test_built_in_rules_do_not_match_their_counterexamples(file: str) -> None:
    matched = [
        f"{rule.name}: {command}"
        for rule in rules_of_file(file)
        for command in rule.must_not_match
        if rule.name in rule_names(JUDGE(command).findings)
    ]
    assert matched == []


def test_every_builtin_rule_belongs_to_a_rule_file() -> None:
    in_files = [rule.name for file in RULE_FILE_NAMES for rule in rules_of_file(file)]
    assert sorted(in_files) == sorted(rule.name for rule in BUILTIN_RULES.rules)


def test_every_builtin_rule_has_examples_and_counterexamples() -> None:
    assert [r.name for r in BUILTIN_RULES.rules if len(r.matches) < 2 or len(r.must_not_match) < 2] == []


def test_every_builtin_rule_has_a_documented_category() -> None:
    assert {rule.category for rule in BUILTIN_RULES.rules} <= CATEGORIES


def test_every_kind_of_effect_has_a_built_in_rule() -> None:
    kinds = {rule.condition.kind for rule in BUILTIN_RULES.rules if not rule.matches_runs}  # type: ignore[union-attr]
    assert kinds == set(EffectKind)


def test_only_rules_for_catastrophic_commands_block_without_asking() -> None:
    blocked = {rule.name for rule in BUILTIN_RULES.rules if rule.blocked}
    assert blocked == {
        "delete-everything",
        "overwrite-disk",
        "write-disk",
        "format-disk",
        "fork-bomb",
        "reverse-shell",
        "shell-on-the-network",
        "shell-on-a-socket",
    }


# --- rules for effects


def test_recursive_deletion_is_blocked_for_the_root_but_not_for_an_ordinary_directory() -> None:
    def worst(*traits: str) -> Finding:
        effect = CommandEffect(EffectKind.DELETE, Word("/x"), frozenset(traits), (3, 9))
        return max(
            BUILTIN_RULES.match_effect(effect), key=lambda finding: (finding.blocked, finding.severity)
        )

    assert worst("recursive", "in:root").blocked
    assert worst("recursive", "in:system-root", "in:system").blocked
    project = worst("recursive", "in:project", "in:remade")
    assert (project.blocked, project.severity, project.span) == (False, Severity.LOW, (3, 9))


def test_deleting_a_single_project_file_has_no_finding() -> None:
    effect = CommandEffect(EffectKind.DELETE, Word("build/app.o"), frozenset({"in:project"}))
    assert list(BUILTIN_RULES.match_effect(effect)) == []


# --- rules for programs


def test_rule_for_a_subcommand_does_not_match_an_option_value_equal_to_the_subcommand() -> None:
    assert "kubernetes-delete" in matching_rules(
        BUILTIN_RULES, "kubectl -n prod --context=x delete deploy web"
    )
    assert matching_rules(BUILTIN_RULES, "kubectl -n delete get pods") == set()


def test_rule_matches_a_program_name_with_version_or_exe_suffix() -> None:
    assert matching_rules(custom_rules(), "shipit3.11 now") == {"deploy"}
    assert matching_rules(custom_rules(), "ShipIt.EXE now") == {"deploy"}
    assert matching_rules(custom_rules(), "shipitnow") == set()


def test_commands_with_help_or_dry_run_option_have_no_finding() -> None:
    for harmless in ("--help", "-h", "--dry-run", "--dry-run=client"):
        assert matching_rules(custom_rules(), f"shipit now {harmless}") == set()
    assert matching_rules(custom_rules(words=["** now"]), "shipit help now") == set()
    assert matching_rules(custom_rules(), "shipit --version") == set()


def test_letter_h_inside_another_option_is_not_treated_as_the_help_option() -> None:
    assert matching_rules(custom_rules(), "shipit -address=http://x now") == {"deploy"}
    assert matching_rules(custom_rules(), "shipit -fh now") == {"deploy"}


def test_rule_for_a_subcommand_matches_after_an_unknown_option_with_a_value() -> None:
    rules = custom_rules(words=["destroy"])
    for hidden in ("--cafile /x/ca.pem destroy", "-v 8 destroy", "--a 1 --b ./x destroy"):
        assert matching_rules(rules, f"shipit {hidden}") == {"deploy"}
    assert matching_rules(rules, "shipit --quiet list destroy") == set()


def test_command_with_a_disabled_dry_run_option_has_a_finding() -> None:
    for meant in ("--dry-run=none", "--dry-run=false", "--dry-run --no-dry-run"):
        assert matching_rules(custom_rules(), f"shipit now {meant}") == {"deploy"}


def test_options_after_double_dash_or_of_an_inner_command_neither_trigger_nor_suppress_a_rule() -> None:
    assert matching_rules(custom_rules(), "shipit now -- --help") == {"deploy"}
    assert "container-privileged" in matching_rules(BUILTIN_RULES, "docker run --privileged alpine ls --help")
    assert matching_rules(BUILTIN_RULES, "docker run alpine ls --privileged") == set()


def test_rule_for_an_option_does_not_match_if_the_option_value_is_false() -> None:
    rules = custom_rules(any_option=["--force"])
    assert matching_rules(rules, "shipit --force") == {"deploy"}
    assert matching_rules(rules, "shipit --force=true") == {"deploy"}
    assert matching_rules(rules, "shipit --force=false") == set()


def test_rule_matches_short_options_in_clusters_and_with_attached_or_separate_values() -> None:
    assert matching_rules(custom_rules(any_option=["-f"]), "shipit -vfx") == {"deploy"}
    rules = custom_rules(any_option=["-X=DELETE"])
    for spelled in ("-XDELETE", "-X DELETE", "-sX delete"):
        assert matching_rules(rules, f"shipit {spelled} a") == {"deploy"}
    assert matching_rules(rules, "shipit -X GET a") == set()


def test_subcommand_pattern_in_a_rule_may_contain_alternatives_globs_and_double_stars() -> None:
    rules = custom_rules(words=["stack rm|destroy", "* delete-*", "** purge"])
    for command in ("stack rm a", "stack destroy", "x delete-all", "a b c d purge"):
        assert matching_rules(rules, f"shipit {command}") == {"deploy"}
    for command in ("stack", "stack ls rm", "delete-all", "rm stack"):
        assert matching_rules(rules, f"shipit {command}") == set()


def test_rule_can_require_a_variable_or_a_wrapper_or_remote_execution_or_a_missing_operand() -> None:
    assert matching_rules(custom_rules(assigned={"STAGE": "prod*"}), "STAGE=production shipit") == {"deploy"}
    assert matching_rules(custom_rules(assigned={"STAGE": "prod*"}), "STAGE=test shipit") == set()
    assert matching_rules(custom_rules(through=["sudo"]), "sudo shipit") == {"deploy"}
    assert matching_rules(custom_rules(through=["sudo"]), "shipit") == set()
    assert matching_rules(custom_rules(elsewhere=True), "shipit", wrappers=("ssh",)) == {"deploy"}
    assert matching_rules(custom_rules(elsewhere=False), "shipit", wrappers=("ssh",)) == set()
    assert matching_rules(custom_rules(bare=True), "shipit -v") == {"deploy"}
    assert matching_rules(custom_rules(bare=True), "shipit a") == set()
    assert matching_rules(custom_rules(bare=True), "shipit", has_unknown_operands=True) == set()


def test_variable_names_in_a_rule_can_be_globs() -> None:
    guarded = custom_rules(assigned={"*SANDBOX*": ["off", "none"]})
    assert matching_rules(guarded, "MY_SANDBOX_MODE=off shipit") == {"deploy"}
    assert matching_rules(guarded, "MY_SANDBOX_MODE=strict shipit") == set()
    assert matching_rules(guarded, "OTHER=off shipit") == set()


def test_rule_with_an_input_pattern_matches_only_if_the_standard_input_matches() -> None:
    matching_input = custom_rules(input=["flush*", "*\nflush*"])
    assert matching_rules(matching_input, "shipit", stdin=TextStream(Word("FLUSHALL\n"))) == {"deploy"}
    assert matching_rules(matching_input, "shipit", stdin=TextStream(Word("get a\nflushall"))) == {"deploy"}
    assert matching_rules(matching_input, "shipit", stdin=TextStream(Word("get flushed"))) == set()
    assert matching_rules(matching_input, "shipit", stdin=TextStream()) == set()
    assert matching_rules(matching_input, "shipit") == set()


def test_command_with_a_subcommand_known_only_at_run_time_has_one_finding_of_low_severity() -> None:
    run = ProgramRun(argv=(Word("kubectl"), Word(GAP), Word("pods")))
    (finding,) = BUILTIN_RULES.match_run(run)
    assert (finding.rule, finding.severity) == ("unknown-subcommand", Severity.LOW)
    assert "kubectl" in finding.reason


def test_harmless_subcommand_with_an_argument_known_only_at_run_time_has_no_finding() -> None:
    for argv in (["git", "push", "origin", GAP], ["kubectl", "get", GAP], ["docker", "logs", GAP]):
        assert list(BUILTIN_RULES.match_run(ProgramRun(argv=tuple(map(Word, argv))))) == []


def test_partly_known_subcommand_matches_rules_by_its_known_prefix() -> None:
    assert (
        list(BUILTIN_RULES.match_run(ProgramRun(argv=(Word("aws"), Word("ec2"), Word("describe-" + GAP)))))
        == []
    )
    assert matching_rules(BUILTIN_RULES, f"aws ec2 delete-{GAP}") == {"aws-delete"}


def test_unknown_or_missing_program_name_matches_no_rule() -> None:
    assert list(BUILTIN_RULES.match_run(ProgramRun(argv=(Word(GAP), Word("delete"))))) == []
    assert list(BUILTIN_RULES.match_run(ProgramRun(argv=()))) == []


ODD_WORDS = st.lists(
    st.sampled_from([*"-=/+:.*?[]{}ab0 ", GAP, STAR, ANY, "force", "delete", "push", "rm", "--", "target"]),
    max_size=8,
).map("".join)


@given(
    st.sampled_from(sorted({n for r in BUILTIN_RULES.rules for n in getattr(r.condition, "programs", ())})),
    st.lists(ODD_WORDS),
)
def test_matching_rules_against_arbitrary_words_never_raises_an_exception(
    program: str, words: list[str]
) -> None:
    run = ProgramRun(argv=(Word(program), *map(Word, words)), has_unknown_operands=len(words) % 2 == 0)
    for finding in BUILTIN_RULES.match_run(run):
        assert finding.reason


# --- reasons shown to people


def test_reason_of_a_finding_contains_program_and_target_without_control_characters() -> None:
    run = ProgramRun(argv=(Word("shipit"), Word("a\x1b[2K\u202eb" + "c" * 500)), span=(1, 2))
    (finding,) = custom_rules().match_run(run)
    assert finding.reason.startswith("shipit deploys a\ufffd[2K\ufffdbccc")
    assert len(finding.reason) < 120
    assert finding.span == (1, 2)


def test_braces_in_a_command_are_not_expanded_in_the_reason_of_a_finding() -> None:
    (finding,) = custom_rules().match_run(run_of("shipit '{program}{words}{0.__class__}'"))
    assert finding.reason == "shipit deploys {program}{words}{0.__class__}"


# --- configuration


def test_configured_rules_are_added_to_the_built_in_rules() -> None:
    both = BUILTIN_RULES.merge(custom_rules())
    assert matching_rules(both, "shipit now") == {"deploy"}
    assert "git-force-push" in matching_rules(both, "git push --force")
    assert matching_rules(BUILTIN_RULES, "shipit now") == set()


def test_custom_rule_for_kubectl_skips_values_of_options_declared_in_built_in_rules() -> None:
    rules = BUILTIN_RULES.merge(custom_rules(programs=["kubectl"], words=["apply"]))
    assert matching_rules(rules, "kubectl -n prod apply -f k8s/") == {"deploy"}


@check_cases(
    ("changed", "problem"),
    [
        ({"sevrity": "low"}, r"rule 'deploy': `sevrity` is not a valid key\n  did you mean severity\?"),
        (
            {"severity": "hgih"},
            r"rule 'deploy': `severity` has the invalid value 'hgih'\n  did you mean high\?",
        ),
        ({"severity": 3}, r"rule 'deploy': `severity` must be a non-empty string"),
        ({"name": ""}, r"rule number 1: `name` must be a non-empty string"),
        ({"programs": []}, r"`programs` must not be empty"),
        ({"programs": [1]}, r"`programs` must be a list of strings"),
        ({"effect": "delete"}, r"`effect` or `programs` must be set, but not both"),
        ({"traits": ["recursive"]}, r"`traits` is not valid in a rule about a program"),
        ({"any_option": ["force"]}, r"`any_option` contains 'force', which is not an option"),
        ({"words": ["a ** b"]}, r"`words` has the invalid value 'a \*\* b'"),
        ({"bare": "yes"}, r"`bare` must be true or false"),
        ({"assigned": ["A"]}, r"`assigned` must be a table"),
        (
            {"description": "{targte}"},
            r"contains the unknown placeholder \{targte\}\n  did you mean target\?",
        ),
    ],
)
def test_error_for_an_invalid_rule_names_the_rule_and_the_key(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        custom_rules(**changed)


def test_error_for_a_misspelled_effect_in_a_rule_suggests_the_correct_name() -> None:
    about = {key: value for key, value in RULE_TABLE.items() if key != "programs"}
    with pytest.raises(RuleError, match=r"`effect` has the invalid value 'delet'\n  did you mean delete\?"):
        Rules.from_tables([{**about, "effect": "delet"}])


def test_rule_with_neither_effect_nor_programs_is_rejected() -> None:
    about = {key: value for key, value in RULE_TABLE.items() if key != "programs"}
    with pytest.raises(RuleError, match="`effect` or `programs` must be set"):
        Rules.from_tables([about])


def test_duplicate_rule_names_are_rejected() -> None:
    with pytest.raises(RuleError, match="two rules have the name 'deploy'"):
        custom_rules().merge(custom_rules())


KEYS = st.sampled_from(
    [*RULE_TABLE, "words", "effect", "traits", "any_option", "bare", "assigned", "operand", "fed", "input"]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    ODD_WORDS,
    st.lists(ODD_WORDS, max_size=3),
    st.dictionaries(ODD_WORDS, ODD_WORDS, max_size=2),
)


@given(st.dictionaries(KEYS, VALUES))
def test_reading_a_rule_from_an_arbitrary_table_raises_no_error_other_than_rule_error(
    changed: dict[str, Any],
) -> None:
    try:
        rules = custom_rules(**changed)
    except RuleError:
        return
    list(rules.match_run(run_of("shipit now --force")))


def test_error_for_a_rule_that_is_not_a_table_states_the_number_of_the_rule() -> None:
    with pytest.raises(RuleError, match="rule number 2 must be a table"):
        Rules.from_tables([RULE_TABLE, "rm -rf"])  # type: ignore[list-item]
