"""Parsing of arguments into options, values and operands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shellverdict.options import Options
from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR, Word
from tests.cases import check_cases

WORDS = st.text(st.sampled_from([*"-=rRf/. ~é", GAP, STAR, ANY, OPEN, CLOSE]), max_size=12).map(Word)


def parse_line(
    line: str, *takes_value: str, clusters: bool = True, abbreviated: bool = True, permuted: bool = True
) -> Options:
    return Options.parse(
        [Word(w) for w in line.split()],
        frozenset(takes_value),
        clusters=clusters,
        abbreviated=abbreviated,
        permuted=permuted,
    )


@check_cases(
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
def test_recursive_option_is_found_in_a_cluster_or_abbreviated_or_after_operands(
    line: str,
) -> None:
    options = parse_line(line)
    assert options.has("-r", "-R", "--recursive")
    assert options.operands == ("/",)


@check_cases("line", ["rm -f x", "rm -- -r", "rm --recursively x", "rm -", "rm --force x"])
def test_recursive_option_is_not_found_in_command_lines_that_do_not_contain_it(line: str) -> None:
    assert not parse_line(line).has("-r", "-R", "--recursive")


def test_words_after_double_dash_are_operands_even_if_they_look_like_options() -> None:
    assert parse_line("rm -f -- -rf x -- y").operands == ("-rf", "x", "--", "y")


@check_cases("line", ["sort -o out in", "sort -oout in", "sort -uo out in", "sort in --output=out"])
def test_option_value_is_found_attached_to_the_option_or_in_the_next_word(line: str) -> None:
    options = parse_line(line, "-o", "--output")
    assert options.value("-o", "--output") == "out"
    assert options.operands == ("in",)


def test_word_after_an_abbreviated_long_option_is_parsed_as_the_option_value() -> None:
    options = parse_line("sort --outp out in", "--output")
    assert (options.value("--output"), options.operands) == ("out", ("in",))


def test_values_of_a_repeated_option_are_all_returned_in_order() -> None:
    options = parse_line("sed -e a -e b f", "-e")
    assert options.values("-e") == ("a", "b")
    assert options.value("-e") == "b"


def test_option_with_an_attached_value_does_not_consume_the_next_word() -> None:
    options = Options.parse([Word(w) for w in ("sed", "-i", "s/a/b/", "f")], attached=frozenset({"-i"}))
    assert options.has("-i")
    assert options.operands == ("s/a/b/", "f")
    assert Options.parse([Word("sed"), Word("-i.rf")], attached=frozenset({"-i"})).value("-i") == ".rf"


def test_long_name_after_a_single_dash_is_one_option_if_clusters_of_short_options_are_disabled() -> None:
    options = parse_line("find . -name x -delete", "-name", clusters=False)
    assert options.has("-delete")
    assert not options.has("-d")
    assert options.value("-name") == "x"
    assert parse_line("terraform -target=a", clusters=False).value("-target") == "a"


def test_words_after_the_first_operand_of_a_wrapper_command_are_operands_and_not_options() -> None:
    options = parse_line("nice -n 5 rm -r x", "-n", permuted=False)
    assert options.operands == ("rm", "-r", "x")


def test_abbreviated_long_option_is_not_matched_if_abbreviations_are_disabled() -> None:
    assert not parse_line("kubectl --al", abbreviated=False).has("--all")


def test_option_parser_reports_an_option_whose_name_is_known_only_at_run_time() -> None:
    assert Options.parse([Word("rm"), Word("-" + GAP), Word("/")]).has_unknown_option
    assert not Options.parse([Word("rm"), Word("-r"), Word(GAP)]).has_unknown_option


def test_search_for_options_with_the_prefix_delete_finds_the_option_delete_after() -> None:
    assert parse_line("rsync --delete-after a b").has_prefix("--delete")
    assert not parse_line("rsync -a a b").has_prefix("--delete")


@given(st.lists(WORDS, max_size=8), st.booleans(), st.booleans(), st.booleans())
def test_parsing_arbitrary_options_never_raises_an_exception_or_loses_a_word(
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


def test_short_option_repeated_60000_times_is_listed_once() -> None:
    options = Options.parse([Word("rm"), Word("-" + "v" * 60_000 + "r")])
    assert options.has("-r")
    assert len(options.flags) == 2
