"""Reading the words of a program as options, values and operands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.options import Options
from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR, Word

words = st.text(st.sampled_from([*"-=rRf/. ~é", GAP, STAR, ANY, OPEN, CLOSE]), max_size=12).map(Word)


def read(
    line: str, *takes_value: str, clusters: bool = True, abbreviated: bool = True, permuted: bool = True
) -> Options:
    return Options.parse(
        [Word(w) for w in line.split()],
        frozenset(takes_value),
        clusters=clusters,
        abbreviated=abbreviated,
        permuted=permuted,
    )


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf /",
        "rm -fr /",
        "rm -r -f /",
        "rm / -rf",
        "rm --recursive /",
        "rm --recurs /",
        "rm --r /",
        "rm -vr /",
    ],
)
def test_an_option_is_found_however_it_is_spelled(line: str) -> None:
    options = read(line)
    assert options.has("-r", "-R", "--recursive")
    assert options.operands == ("/",)


@pytest.mark.parametrize("line", ["rm -f x", "rm -- -r", "rm --recursively x", "rm -", "rm --force x"])
def test_an_option_that_is_not_given_is_not_found(line: str) -> None:
    assert not read(line).has("-r", "-R", "--recursive")


def test_what_stands_behind_the_double_dash_is_an_operand() -> None:
    assert read("rm -f -- -rf x -- y").operands == ("-rf", "x", "--", "y")


@pytest.mark.parametrize(
    "line", ["sort -o out in", "sort -oout in", "sort -uo out in", "sort in --output=out"]
)
def test_a_value_is_found_however_it_is_attached(line: str) -> None:
    options = read(line, "-o", "--output")
    assert options.value("-o", "--output") == "out"
    assert options.operands == ("in",)


def test_a_cut_short_option_takes_its_value_too() -> None:
    options = read("sort --outp out in", "--output")
    assert (options.value("--output"), options.operands) == ("out", ("in",))


def test_every_value_of_a_repeated_option_is_kept() -> None:
    options = read("sed -e a -e b f", "-e")
    assert options.values("-e") == ("a", "b")
    assert options.value("-e") == "b"


def test_a_value_that_can_only_be_attached_leaves_the_next_word_alone() -> None:
    options = Options.parse([Word(w) for w in ("sed", "-i", "s/a/b/", "f")], attached=frozenset({"-i"}))
    assert options.has("-i")
    assert options.operands == ("s/a/b/", "f")
    assert Options.parse([Word("sed"), Word("-i.rf")], attached=frozenset({"-i"})).value("-i") == ".rf"


def test_single_dash_names_are_one_option_where_a_program_has_no_clusters() -> None:
    options = read("find . -name x -delete", "-name", clusters=False)
    assert options.has("-delete")
    assert not options.has("-d")
    assert options.value("-name") == "x"
    assert read("terraform -target=a", clusters=False).value("-target") == "a"


def test_the_first_operand_ends_the_options_of_a_wrapper() -> None:
    options = read("nice -n 5 rm -r x", "-n", permuted=False)
    assert options.operands == ("rm", "-r", "x")


def test_long_options_are_whole_where_abbreviations_are_not_known() -> None:
    assert not read("kubectl --al", abbreviated=False).has("--all")


def test_a_gap_in_an_option_is_said() -> None:
    assert Options.parse([Word("rm"), Word("-" + GAP), Word("/")]).has_unknown_option
    assert not Options.parse([Word("rm"), Word("-r"), Word(GAP)]).has_unknown_option


def test_options_that_begin_alike_are_found_together() -> None:
    assert read("rsync --delete-after a b").has_prefix("--delete")
    assert not read("rsync -a a b").has_prefix("--delete")


@given(st.lists(words, max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_reading_never_fails_and_loses_no_operand(
    argv: list[Word], clusters: bool, abbreviated: bool, permuted: bool
) -> None:
    options = Options.parse(
        argv,
        frozenset({"-f", "--rf", "-r"}),
        attached=frozenset({"-R"}),
        clusters=clusters,
        abbreviated=abbreviated,
        permuted=permuted,
    )
    assert all(operand in argv for operand in options.operands)
    plain = [w for w in argv[1:] if not w.startswith("-")]
    values = [flag.value for flag in options.flags]
    assert all(w in options.operands or w in values for w in plain)


def test_a_cluster_of_any_length_is_read_in_one_pass() -> None:
    options = Options.parse([Word("rm"), Word("-" + "v" * 60_000 + "r")])
    assert options.has("-r")
    assert len(options.flags) == 2
