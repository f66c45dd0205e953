"""Rules as data: what the shipped ones meet and let pass, and what is said about one that cannot be used."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.errors import RuleError
from shellverdict.judge import Judge
from shellverdict.places import Places
from shellverdict.rules import Rule, Rules
from shellverdict.shell.runs import Run, Stream
from shellverdict.shell.words import ANY, GAP, STAR, Word
from shellverdict.verdict import Effect, Finding, Kind, Severity

SHIPPED = Rules.shipped()
JUDGE = Judge(SHIPPED, Places(home="/home/ada", cwd="/home/ada/project", links=False))
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
MINE: dict[str, Any] = {
    "name": "deploy",
    "category": "cloud",
    "severity": "medium",
    "description": "{program} deploys {target}",
    "programs": ["shipit"],
}


def run_of(command: str, **more: Any) -> Run:
    """One simple command as a run: its environment, and `sudo` seen through."""
    words = [Word(word) for word in shlex.split(command)]
    assigned: dict[str, Word] = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        assigned[name] = Word(value)
    if words[0] in ("sudo", "doas") and len(words) > 1 and not words[1].startswith("-"):
        more["through"] = (words.pop(0),)
    bare = Word(words[0].rsplit("/", 1)[-1])
    return Run(argv=(bare, *words[1:]), path=words[0], span=(0, len(command)), assigned=assigned, **more)


def names(findings: Iterable[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


def found(rules: Rules, command: str, **more: Any) -> set[str]:
    return names(rules.about_run(run_of(command, **more)))


def examples(which: str) -> list[Any]:
    return [
        pytest.param(rule, command, id=f"{rule.name}-{number}")
        for rule in SHIPPED.rules
        for number, command in enumerate(getattr(rule, which))
    ]


def mine(**changed: Any) -> Rules:
    return Rules.read([{**MINE, **changed}])


# --- the shipped rules


@pytest.mark.parametrize(("rule", "command"), examples("matches"))
def test_a_rule_meets_its_examples(rule: Rule, command: str) -> None:
    findings = JUDGE(command).findings
    if rule.of_run:
        assert rule.name in names(findings)
    else:  # some effects have rules about the programs too, which speak in their place
        assert rule.category in {finding.category for finding in findings}


@pytest.mark.parametrize(("rule", "command"), examples("must_not_match"))
def test_a_rule_lets_its_counter_examples_pass(rule: Rule, command: str) -> None:
    assert rule.name not in names(JUDGE(command).findings)


def test_every_shipped_rule_has_examples_of_both_sorts() -> None:
    assert [r.name for r in SHIPPED.rules if len(r.matches) < 2 or len(r.must_not_match) < 2] == []


def test_every_shipped_rule_is_of_a_category_people_know() -> None:
    assert {rule.category for rule in SHIPPED.rules} <= CATEGORIES


def test_every_kind_of_effect_has_a_rule() -> None:
    kinds = {rule.about.kind for rule in SHIPPED.rules if not rule.of_run}  # type: ignore[union-attr]
    assert kinds == set(Kind)


def test_only_what_nobody_wants_is_blocked() -> None:
    blocked = {rule.name for rule in SHIPPED.rules if rule.blocked}
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


# --- rules about effects


def test_recursive_deletion_of_the_root_is_blocked_and_of_a_directory_is_not() -> None:
    def worst(*traits: str) -> Finding:
        effect = Effect(Kind.DELETE, Word("/x"), frozenset(traits), (3, 9))
        return max(SHIPPED.about_effect(effect), key=lambda finding: (finding.blocked, finding.severity))

    assert worst("recursive", "in:root").blocked
    assert worst("recursive", "in:system-root", "in:system").blocked
    project = worst("recursive", "in:project", "in:remade")
    assert (project.blocked, project.severity, project.span) == (False, Severity.LOW, (3, 9))


def test_an_everyday_deletion_is_no_finding() -> None:
    effect = Effect(Kind.DELETE, Word("build/app.o"), frozenset({"in:project"}))
    assert list(SHIPPED.about_effect(effect)) == []


# --- rules about programs


def test_a_rule_finds_the_subcommand_behind_options_with_values() -> None:
    assert "kubernetes-delete" in found(SHIPPED, "kubectl -n prod --context=x delete deploy web")
    assert found(SHIPPED, "kubectl -n delete get pods") == set()


def test_a_program_is_known_by_its_version_and_by_its_windows_name() -> None:
    assert found(mine(), "shipit3.11 now") == {"deploy"}
    assert found(mine(), "ShipIt.EXE now") == {"deploy"}
    assert found(mine(), "shipitnow") == set()


def test_help_and_rehearsals_are_no_finding() -> None:
    for harmless in ("--help", "-h", "--dry-run", "--dry-run=client"):
        assert found(mine(), f"shipit now {harmless}") == set()
    assert found(mine(words=["** now"]), "shipit help now") == set()
    assert found(mine(), "shipit --version") == set()


def test_a_letter_of_a_longer_option_is_no_cry_for_help() -> None:
    assert found(mine(), "shipit -address=http://x now") == {"deploy"}
    assert found(mine(), "shipit -fh now") == {"deploy"}


def test_an_unknown_option_in_front_cannot_hide_the_subcommand() -> None:
    rules = mine(words=["destroy"])
    for hidden in ("--cafile /x/ca.pem destroy", "-v 8 destroy", "--a 1 --b ./x destroy"):
        assert found(rules, f"shipit {hidden}") == {"deploy"}
    assert found(rules, "shipit --quiet list destroy") == set()


def test_a_rehearsal_that_is_taken_back_is_a_finding() -> None:
    for meant in ("--dry-run=none", "--dry-run=false", "--dry-run --no-dry-run"):
        assert found(mine(), f"shipit now {meant}") == {"deploy"}


def test_an_option_behind_two_dashes_or_of_an_inner_command_does_not_count() -> None:
    assert found(mine(), "shipit now -- --help") == {"deploy"}
    assert "container-privileged" in found(SHIPPED, "docker run --privileged alpine ls --help")
    assert found(SHIPPED, "docker run alpine ls --privileged") == set()


def test_an_option_that_says_no_does_not_count() -> None:
    rules = mine(any_option=["--force"])
    assert found(rules, "shipit --force") == {"deploy"}
    assert found(rules, "shipit --force=true") == {"deploy"}
    assert found(rules, "shipit --force=false") == set()


def test_short_options_are_found_in_clusters_and_values_wherever_they_stand() -> None:
    assert found(mine(any_option=["-f"]), "shipit -vfx") == {"deploy"}
    rules = mine(any_option=["-X=DELETE"])
    for spelled in ("-XDELETE", "-X DELETE", "-sX delete"):
        assert found(rules, f"shipit {spelled} a") == {"deploy"}
    assert found(rules, "shipit -X GET a") == set()


def test_paths_of_words_have_alternatives_patterns_and_any_depth() -> None:
    rules = mine(words=["stack rm|destroy", "* delete-*", "** purge"])
    for command in ("stack rm a", "stack destroy", "x delete-all", "a b c d purge"):
        assert found(rules, f"shipit {command}") == {"deploy"}
    for command in ("stack", "stack ls rm", "delete-all", "rm stack"):
        assert found(rules, f"shipit {command}") == set()


def test_surroundings_can_be_asked_for() -> None:
    assert found(mine(assigned={"STAGE": "prod*"}), "STAGE=production shipit") == {"deploy"}
    assert found(mine(assigned={"STAGE": "prod*"}), "STAGE=test shipit") == set()
    assert found(mine(through=["sudo"]), "sudo shipit") == {"deploy"}
    assert found(mine(through=["sudo"]), "shipit") == set()
    assert found(mine(elsewhere=True), "shipit", through=("ssh",)) == {"deploy"}
    assert found(mine(elsewhere=False), "shipit", through=("ssh",)) == set()
    assert found(mine(bare=True), "shipit -v") == {"deploy"}
    assert found(mine(bare=True), "shipit a") == set()
    assert found(mine(bare=True), "shipit", more_operands=True) == set()


def test_variables_can_be_asked_for_by_a_pattern_of_their_names() -> None:
    guarded = mine(assigned={"*SANDBOX*": ["off", "none"]})
    assert found(guarded, "MY_SANDBOX_MODE=off shipit") == {"deploy"}
    assert found(guarded, "MY_SANDBOX_MODE=strict shipit") == set()
    assert found(guarded, "OTHER=off shipit") == set()


def test_what_flows_in_can_be_asked_for_by_its_words() -> None:
    told = mine(input=["flush*", "*\nflush*"])
    assert found(told, "shipit", stdin=Stream(Word("FLUSHALL\n"))) == {"deploy"}
    assert found(told, "shipit", stdin=Stream(Word("get a\nflushall"))) == {"deploy"}
    assert found(told, "shipit", stdin=Stream(Word("get flushed"))) == set()
    assert found(told, "shipit", stdin=Stream()) == set()
    assert found(told, "shipit") == set()


def test_an_unknown_subcommand_is_asked_about_once_and_quietly() -> None:
    run = Run(argv=(Word("kubectl"), Word(GAP), Word("pods")))
    (finding,) = SHIPPED.about_run(run)
    assert (finding.rule, finding.severity) == ("unknown-subcommand", Severity.LOW)
    assert "kubectl" in finding.reason


def test_an_unknown_word_that_decides_nothing_is_no_finding() -> None:
    for argv in (["git", "push", "origin", GAP], ["kubectl", "get", GAP], ["docker", "logs", GAP]):
        assert list(SHIPPED.about_run(Run(argv=tuple(map(Word, argv))))) == []


def test_a_subcommand_of_which_only_the_end_is_unknown_could_still_be_harmless() -> None:
    assert list(SHIPPED.about_run(Run(argv=(Word("aws"), Word("ec2"), Word("describe-" + GAP))))) == []
    assert found(SHIPPED, f"aws ec2 delete-{GAP}") == {"aws-delete"}


def test_a_program_whose_name_is_not_known_is_for_others_to_judge() -> None:
    assert list(SHIPPED.about_run(Run(argv=(Word(GAP), Word("delete"))))) == []
    assert list(SHIPPED.about_run(Run(argv=()))) == []


ODD = st.lists(
    st.sampled_from([*"-=/+:.*?[]{}ab0 ", GAP, STAR, ANY, "force", "delete", "push", "rm", "--", "target"]),
    max_size=8,
).map("".join)


@given(
    st.sampled_from(sorted({n for r in SHIPPED.rules for n in getattr(r.about, "programs", ())})),
    st.lists(ODD),
)
def test_no_words_can_make_a_rule_fail(program: str, words: list[str]) -> None:
    run = Run(argv=(Word(program), *map(Word, words)), more_operands=len(words) % 2 == 0)
    for finding in SHIPPED.about_run(run):
        assert finding.reason


# --- what a person reads


def test_the_reason_names_program_and_target_without_drawing_characters() -> None:
    run = Run(argv=(Word("shipit"), Word("a\x1b[2K\u202eb" + "c" * 500)), span=(1, 2))
    (finding,) = mine().about_run(run)
    assert finding.reason.startswith("shipit deploys a\ufffd[2K\ufffdbccc")
    assert len(finding.reason) < 120
    assert finding.span == (1, 2)


def test_braces_in_a_command_fill_nothing() -> None:
    (finding,) = mine().about_run(run_of("shipit '{program}{words}{0.__class__}'"))
    assert finding.reason == "shipit deploys {program}{words}{0.__class__}"


# --- configuration


def test_rules_of_a_configuration_stand_beside_the_shipped_ones() -> None:
    both = SHIPPED.plus(mine())
    assert found(both, "shipit now") == {"deploy"}
    assert "git-force-push" in found(both, "git push --force")
    assert found(SHIPPED, "shipit now") == set()


def test_a_configured_rule_about_a_known_program_knows_its_options() -> None:
    rules = SHIPPED.plus(mine(programs=["kubectl"], words=["apply"]))
    assert found(rules, "kubectl -n prod apply -f k8s/") == {"deploy"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sevrity": "low"}, r"the rule 'deploy': `sevrity` is not a key.*\n  did you mean severity\?"),
        ({"severity": "hgih"}, r"the rule 'deploy': `severity` cannot be 'hgih'\n  did you mean high\?"),
        ({"severity": 3}, r"the rule 'deploy': `severity` must be a text"),
        ({"name": ""}, r"the rule number 1: `name` must be a text"),
        ({"programs": []}, r"`programs` is empty"),
        ({"programs": [1]}, r"`programs` must be a list of texts"),
        ({"effect": "delete"}, r"`effect` and `programs` cannot both be given"),
        ({"traits": ["recursive"]}, r"`traits` means nothing in a rule about a program"),
        ({"any_option": ["force"]}, r"`any_option` has 'force', which is not an option"),
        ({"words": ["a ** b"]}, r"`words` cannot have 'a \*\* b'"),
        ({"bare": "yes"}, r"`bare` must be true or false"),
        ({"assigned": ["A"]}, r"`assigned` must be a map"),
        ({"description": "{targte}"}, r"has \{targte\}, which nothing fills\n  did you mean target\?"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_with_its_key(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        mine(**changed)


def test_a_misspelled_effect_is_guessed() -> None:
    about = {key: value for key, value in MINE.items() if key != "programs"}
    with pytest.raises(RuleError, match=r"`effect` cannot be 'delet'\n  did you mean delete\?"):
        Rules.read([{**about, "effect": "delet"}])


def test_a_rule_without_a_condition_is_refused() -> None:
    about = {key: value for key, value in MINE.items() if key != "programs"}
    with pytest.raises(RuleError, match="one of them must be"):
        Rules.read([about])


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(RuleError, match="two rules have the name 'deploy'"):
        mine().plus(mine())


KEYS = st.sampled_from(
    [*MINE, "words", "effect", "traits", "any_option", "bare", "assigned", "operand", "fed", "input"]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    ODD,
    st.lists(ODD, max_size=3),
    st.dictionaries(ODD, ODD, max_size=2),
)


@given(st.dictionaries(KEYS, VALUES))
def test_whatever_a_configuration_says_is_a_rule_or_a_rule_error(changed: dict[str, Any]) -> None:
    try:
        rules = mine(**changed)
    except RuleError:
        return
    list(rules.about_run(run_of("shipit now --force")))


def test_what_is_not_a_rule_is_refused() -> None:
    with pytest.raises(RuleError, match="number 2 must be a map"):
        Rules.read([MINE, "rm -rf"])  # type: ignore[list-item]
