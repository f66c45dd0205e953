"""Prediction of what programs print."""

from __future__ import annotations

import base64
import gzip
import shlex
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from shellverdict.shell.outputs import is_shell_setup_command, predict_output
from shellverdict.shell.runs import ProgramRun, Taint, TextStream
from shellverdict.shell.words import GAP, Word
from tests.cases import check_cases
from tests.thorough import try_examples


def create_run(line: str, stdin: TextStream | None = None) -> ProgramRun:
    return ProgramRun(argv=tuple(Word(word) for word in shlex.split(line)), stdin=stdin)


def run_pipeline(line: str) -> TextStream:
    """Return the predicted output of the last program in a pipeline."""
    stream: TextStream | None = None
    for part in line.split(" | "):
        stream = predict_output(create_run(part, stream))
    assert stream is not None
    return stream


@check_cases(
    ("line", "text"),
    [
        ("echo rm -rf /", "rm -rf /\n"),
        ("echo -n rm", "rm"),
        (r"echo -ne '\x72m'", "rm"),
        (r"echo '\x72m'", "\\x72m\n"),
        ('printf "rm -rf %s\\n" / /etc', "rm -rf /\nrm -rf /etc\n"),
        (r"printf '\x72\x6d\x20\x2d\x72\x66'", "rm -rf"),
        (r"printf '%b' 'r\155 -rf'", "rm -rf"),
        (r"printf '\162\155'", "rm"),
        ("echo cm0gLXJmIC8= | base64 -d", "rm -rf /"),
        ("echo cm0gLXJmIC8= | base64 --dec", "rm -rf /"),
        ("echo cm0gLXJmIC8= | base64 --d", "rm -rf /"),
        ("echo cm0gLXJmIC8= | openssl base64 -d", "rm -rf /"),
        ("echo cm0gLXJmIC8= | openssl enc -d -base64", "rm -rf /"),
        ("echo OJWSALLSMYQC6=== | base32 -d", "rm -rf /"),
        ("echo 726d202d7266202f | xxd -r -p", "rm -rf /"),
        ("echo H4sIAAAAAAACAyvKVdAtSlPQBwBcTPLsCAAAAA== | base64 -d | gunzip", "rm -rf /"),
        ('echo "/ fr- mr" | rev', "rm -rf /\n"),
        ("echo ebbg | tr a-z n-za-m", "root\n"),
        ("echo RM | tr '[:upper:]' '[:lower:]'", "rm\n"),
        ("echo rxm | tr -d x", "rm\n"),
        ('yes "rm -rf ~" | head -1', "rm -rf ~\n"),
        ("printf 'a\\nb\\nc\\n' | tail -n +2", "b\nc\n"),
        ("printf 'a\\nb\\n' | tac", "b\na\n"),
        ("echo a,rm,b | cut -d, -f2", "rm\n"),
        ("echo xxrm | cut -c3-", "rm\n"),
        ("echo foo | sed s/o/x/g", "fxx\n"),
        ("echo rm | tee copy | cat", "rm\n"),
        ("basename /usr/bin/rm", "rm\n"),
        ("dirname /etc/passwd", "/etc\n"),
        ("seq 3", "1\n2\n3\n"),
        ("which rm", f"{GAP}/rm\n"),
        ("command -v rm", f"{GAP}/rm\n"),
        ("""python3 -c 'print("rm "+"-rf /")'""", "rm -rf /\n"),
    ],
)
def test_output_of_simple_programs_is_predicted_exactly(line: str, text: str) -> None:
    assert run_pipeline(line).text == text


@check_cases(
    ("line", "taints"),
    [
        ("curl -s http://x", {Taint.NETWORK}),
        ("curl http://x | gunzip | tee f", {Taint.NETWORK, Taint.DECODED}),
        ("wget -qO- http://x | cat", {Taint.NETWORK}),
        ("gh gist view abc --raw", {Taint.NETWORK}),
        ("aws s3 cp s3://x/i.sh -", {Taint.NETWORK}),
        ("strings blob", {Taint.DECODED, Taint.UNREAD}),
        ("openssl enc -d -aes-256-cbc -in s.bin -k pw", {Taint.DECODED, Taint.UNREAD}),
        ("cat script.txt", {Taint.UNREAD}),
        ("echo cm0= | base64 -d", {Taint.DECODED}),
        ("some-program", set()),
        ("curl http://x | some-filter", {Taint.NETWORK}),
    ],
)
def test_output_of_a_pipeline_is_marked_with_its_origin_such_as_downloaded_or_decoded(
    line: str, taints: set[Taint]
) -> None:
    assert run_pipeline(line).taints == taints


def test_predicted_output_of_echo_has_a_marker_in_place_of_text_known_only_at_run_time() -> None:
    assert predict_output(ProgramRun(argv=(Word("echo"), Word(f"a{GAP}b")))).text == f"a{GAP}b\n"
    assert run_pipeline("echo x").text == "x\n"


def test_output_of_base64_decoding_partly_unknown_text_is_unknown_and_marked_as_decoded() -> None:
    stream = predict_output(create_run("base64 -d", TextStream(Word(f"cm0{GAP}"))))
    assert stream == TextStream(None, frozenset({Taint.DECODED}))


def test_predicted_output_of_cat_is_the_known_file_content() -> None:
    predicted = predict_output(
        create_run("cat notes"), lambda name: TextStream(Word("text")) if name == "notes" else None
    )
    assert predicted.text == "text"


@check_cases(
    "line",
    [
        "direnv hook bash",
        "ssh-agent -s",
        "pyenv init -",
        "brew shellenv",
        "starship init zsh",
        "conda shell.bash hook",
        "kubectl completion bash",
        "dircolors -b",
        "minikube docker-env",
    ],
)
def test_output_of_shell_setup_commands_such_as_direnv_hook_is_treated_as_empty(line: str) -> None:
    assert is_shell_setup_command(create_run(line))
    assert predict_output(create_run(line)) == TextStream(Word(""))


@check_cases("line", ["ssh-agent bash", "curl completion", "direnv exec . sh", "kubectl get pods"])
def test_commands_similar_to_shell_setup_commands_are_not_recognized_as_shell_setup(line: str) -> None:
    assert not is_shell_setup_command(create_run(line))


def test_predicted_output_of_gunzip_for_a_decompression_bomb_is_truncated_at_a_size_limit() -> None:
    bomb = base64.b64encode(gzip.compress(b"\0" * 50_000_000)).decode()
    text = run_pipeline(f"echo {bomb[:60000]} | base64 -d | gunzip").text
    assert text is not None
    assert len(text) < 70_000
    assert text.endswith(GAP)


_PROGRAMS = [
    "echo",
    "printf",
    "tr",
    "cut",
    "sed",
    "head",
    "tail",
    "base64",
    "xxd",
    "gunzip",
    "rev",
    "seq",
    "openssl",
]


@try_examples(150)
@given(
    st.sampled_from(_PROGRAMS),
    st.lists(st.text(alphabet="-ndec%s\\x0b19,[:alnum:]/a*.'" + GAP, max_size=8), max_size=4),
    st.text(st.characters(exclude_categories=()), max_size=60),
)
def test_output_prediction_for_arbitrary_arguments_and_input_raises_no_exception(
    program: str, words: list[str], text: str
) -> None:
    run = ProgramRun(argv=(Word(program), *map(Word, words)), stdin=TextStream(Word(text)))
    assert isinstance(predict_output(run), TextStream)


_FORMATS = st.lists(
    st.sampled_from(
        [
            "%s",
            "%d",
            "%b",
            "%5s",
            "%-4s|",
            "%.2s",
            "%x",
            "%o",
            "%c",
            "%%",
            r"\n",
            r"\x41",
            r"\101",
            r"\0101",
            "a",
            r"\c",
            "%05d",
        ]
    ),
    max_size=4,
).map("".join)
_ARGUMENTS = st.lists(
    st.sampled_from(["a", "b c", "3", "-5", r"x\n", r"\x42", r"\0101", "", "0x1f", "010"]), max_size=3
)


@try_examples(60)
@given(
    st.one_of(
        st.tuples(st.just("printf"), _FORMATS, _ARGUMENTS).map(
            lambda made: [made[0], "x" + made[1], *made[2]]
        ),
        st.lists(
            st.sampled_from(["-n", "-e", "-ne", "-x", "a", r"\x41", r"\101", r"\0101", r"\c", "--"]),
            max_size=4,
        ).map(lambda words: ["echo", *words]),
    )
)
def test_predicted_output_of_echo_and_printf_equals_the_real_output_of_bash(argv: list[str]) -> None:
    predicted = predict_output(ProgramRun(argv=tuple(map(Word, argv)))).text
    line = " ".join(shlex.quote(word) for word in argv)
    printed = subprocess.run(["bash", "-c", line], capture_output=True, check=False).stdout.decode(
        "utf-8", "surrogateescape"
    )
    assert predicted is not None
    assert predicted == printed or GAP in predicted


@try_examples(60)
@given(
    st.sampled_from(
        [
            *(
                "tr a-z A-Z",
                "tr -d a",
                "tr -s a-z",
                "tr abc de",
                "tr -cd a-z",
                "tr a-z n-za-m",
                "rev",
                "tac",
                "cat",
                "sort",
            ),
            *(
                "head -n1",
                "head -c3",
                "head -n -1",
                "tail -n +2",
                "tail -c3",
                "tail -1",
                "cut -d, -f2",
                "cut -c2-",
            ),
            *("sed s/a/b/g", "base64 -d"),
        ]
    ),
    st.text(alphabet="abcxyz,  \n=é", max_size=30),
)
def test_predicted_output_of_filters_such_as_tr_and_cut_equals_their_real_output(
    line: str, text: str
) -> None:
    predicted = predict_output(create_run(line, TextStream(Word(text)))).text
    run = subprocess.run(["bash", "-c", line], input=text.encode(), capture_output=True, check=False)
    assert predicted is None or run.returncode or predicted == run.stdout.decode("utf-8", "surrogateescape")
