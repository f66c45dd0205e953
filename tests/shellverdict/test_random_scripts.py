"""Random scripts of assignments, quoting, loops and functions: predicted against really started programs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shellverdict.shell.reader import read_command
from tests.shellverdict.recording import RecordingShell
from tests.shellverdict.run_comparison import find_unpredicted_runs, format_runs
from tests.thorough import count_examples

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(alphabet="ab -/.,*'\"\\$", max_size=6)
PLAIN = st.text(alphabet="ab-/.,", min_size=1, max_size=5)


def single_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def double_quote(text: str) -> str:
    return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'


def ansi_quote(text: str) -> str:
    return "$'" + "".join(f"\\x{ord(c):02x}" for c in text) + "'"


def word_parts() -> st.SearchStrategy[str]:
    """Return a strategy for parts of a word."""
    used = NAMES.flatmap(
        lambda n: st.sampled_from(
            [
                *(f"${n}", f'"${n}"', f"${{{n}}}", f'"${{{n}}}"', f"${{{n}:-d e}}", f'"${{{n}:-d e}}"'),
                *(
                    f"${{{n}#a}}",
                    f"${{{n}%b}}",
                    f'"${{{n}//a/x y}}"',
                    f"${{{n}:1:2}}",
                    f"${{{n}^^}}",
                    f"${{#{n}}}",
                ),
                *(f'"${{{n}[@]}}"', f"${{{n}[0]}}", f"${{{n}/b}}", f"$((${{#{n}}}+1))", f"${{{n}+s}}"),
                *(
                    f"$(echo ${n})",
                    f'"$(printf "%s" "${n}")"',
                    f"`echo ${n}`",
                    '"$@"',
                    "$1",
                    "$#",
                    '"$*"',
                    "$*",
                ),
            ]
        )
    )
    quoted = TEXTS.flatmap(
        lambda text: st.sampled_from([single_quote(text), double_quote(text), ansi_quote(text)])
    )
    return st.one_of(
        PLAIN, used, quoted, st.sampled_from(["{a,b}", "{1..3}", "~/", "\\ ", "a\\\nb", "$(echo a b)"])
    )


def words() -> st.SearchStrategy[str]:
    return st.lists(word_parts(), min_size=1, max_size=3).map("".join)


def assignments() -> st.SearchStrategy[str]:
    array = st.lists(words(), max_size=3).map(lambda items: f"({' '.join(items)})")
    return st.one_of(
        st.tuples(NAMES, st.sampled_from(["=", "+="]), words()).map("".join),
        st.tuples(NAMES, st.sampled_from(["=", "+="]), array).map("".join),
        st.tuples(NAMES, words()).map(lambda each: f"read -r {each[0]} <<< {each[1]}"),
        st.tuples(NAMES, words()).map(lambda each: f"printf -v {each[0]} %s {each[1]}"),
        st.tuples(NAMES, words()).map(lambda each: f"export {each[0]}={each[1]}"),
        st.lists(words(), max_size=3).map(lambda items: f"set -- {' '.join(items)}"),
        NAMES.map(lambda name: f"unset {name}"),
        st.sampled_from(["IFS=,", "IFS=' '", "IFS=", "unset IFS", "shift", "cd /"]),
    )


def program_calls() -> st.SearchStrategy[str]:
    arguments = st.lists(words(), max_size=3).map(" ".join)
    return st.tuples(
        st.sampled_from(["rm", "foo", "'r'm", "r\\m", "command rm", "env rm", "f"]), arguments
    ).map(" ".join)


def extend_statements(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map("; ".join),
        pair.map("\n".join),
        pair.map(" && ".join),
        pair.map(" || ".join),
        pair.map(lambda two: f"if {two[0]}; then {two[1]}; else {two[0]}; fi"),
        pair.map(lambda two: f"f() {{ {two[0]}; }}\n{two[1]}"),
        st.tuples(NAMES, words(), words(), inner).map(
            lambda t: f"for {t[0]} in {t[1]} {t[2]}; do {t[3]}; done"
        ),
        st.tuples(words(), inner).map(lambda two: f"case {two[0]} in a*) {two[1]};; *) {two[1]};; esac"),
        inner.map(lambda one: f"( {one} )"),
        inner.map(lambda one: f"{{ {one}; }}"),
        inner.map(lambda one: f"a=$( {one} )"),
        inner.map(lambda one: f"eval {single_quote(one)}"),
        inner.map(lambda one: f"bash -c {single_quote(one)} x y"),
        inner.map(lambda one: f"bash <<'E'\n{one}\nE\n"),
        pair.map(lambda two: f"{{ {two[0]}; }} | {{ {two[1]}; }}"),
    )


STATEMENTS = st.recursive(st.one_of(assignments(), program_calls()), extend_statements, max_leaves=4)
SCRIPTS = st.lists(STATEMENTS, min_size=2, max_size=6).map("\n".join)


@settings(
    max_examples=count_examples(200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=SCRIPTS)
def test_analysis_predicts_the_programs_that_random_scripts_start_in_bash(
    script: str, shell: RecordingShell
) -> None:
    reading = read_command(script, home=str(shell.home), cwd=str(shell.work))
    starts = shell.run(script, seconds=60).starts
    assert find_unpredicted_runs(starts, reading) == [], format_runs(reading.runs)
