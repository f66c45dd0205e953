"""Predict the output of programs such as `echo`, `printf` and `base64`."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.python_syntax import parse_module
from shellverdict.shell.outputs import decoders, filters
from shellverdict.shell.outputs.escapes import expand_echo_escapes, format_printf, has_numeric_escapes
from shellverdict.shell.outputs.listing import find_listed_directories
from shellverdict.shell.outputs.network import has_network_output
from shellverdict.shell.outputs.shell_setup import is_shell_setup_command
from shellverdict.shell.outputs.text_conversion import create_stream, rejoin_bytes, unknown_stream
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun, Taint, TextStream
from shellverdict.shell.words import EMPTY, GAP, MAX_TEXT_CHARS, Word

__all__ = ["FileLookup", "predict_output"]

FileLookup = Callable[[Word], TextStream | None]


def _find_no_file(_: Word) -> TextStream | None:
    return None


def predict_output(run: ProgramRun, files: FileLookup = _find_no_file) -> TextStream:
    """Predict the text that a program prints. `files` is a function that returns a file's known content."""
    if is_shell_setup_command(run):
        return TextStream(EMPTY)
    if has_network_output(run):
        return unknown_stream(Taint.NETWORK, source=run.stdin)
    if printer := _PRINTERS.get(run.name):
        return printer(run)
    if filtering := _FILTERS.get(run.name):
        printed = filtering(run, _filter_input(run, files))
        is_listing = printed.text is None and run.stdin is not None
        return (
            replace(printed, listed_directories=run.stdin.listed_directories)
            if is_listing and run.stdin
            else printed
        )
    if directories := find_listed_directories(run):
        return TextStream(
            None, run.stdin.taints if run.stdin else frozenset(), listed_directories=directories
        )
    named = _taints_of_named_files(run, files) if run.name in _SELECTING_PROGRAMS else frozenset()
    return unknown_stream(*named, source=run.stdin)


def _filter_input(run: ProgramRun, files: FileLookup) -> TextStream:
    """Return the input of a filter: the files in its arguments or, if there are none, standard input."""
    operands = _file_operands(run)
    parts = [_file_content(run, name, files) for name in operands] or [run.stdin or unknown_stream()]
    taints = _taints_of_named_files(run, files).union(*(part.taints for part in parts))
    if any(part.text is None for part in parts):
        return TextStream(None, taints)
    return create_stream("".join(part.text or "" for part in parts), taints)


def _taints_of_named_files(run: ProgramRun, files: FileLookup) -> frozenset[Taint]:
    """Return the origins (network, file …) of the data in all files that the arguments may name."""
    named = (files(word) for word in run.argv[1:] if word[:1] != "-")
    return frozenset().union(*(stream.taints for stream in named if stream is not None))


def _file_content(run: ProgramRun, name: Word, files: FileLookup) -> TextStream:
    if name in STDIN_PATHS:
        return run.stdin or unknown_stream()
    return files(name) or unknown_stream(Taint.UNREAD)


def _file_operands(run: ProgramRun) -> list[Word]:
    """Return the operands that name files, without other operands such as the pattern of `grep`."""
    values = _VALUE_OPTIONS.get(run.name, frozenset())
    skip = _LEADING_OPERANDS.get(run.name, 0)
    if run.name == "sed" and any(word.startswith(("--expression=", "--file=")) for word in run.argv[1:]):
        skip = 0
    operands: list[Word] = []
    words = iter(run.argv[1:])
    for word in words:
        if word == "--":
            operands += words
        elif word in values:
            named = next(words, None)
            if word in ("-in", "--infile") and named is not None:
                operands.append(named)
        elif word == "-" or word[:1] != "-":
            operands.append(word)
    if run.name in ("head", "tail"):
        operands = [word for word in operands if not word.startswith("+")]
    return operands[skip:]


_VALUE_OPTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "head": frozenset({"-n", "-c", "--lines", "--bytes"}),
        "tail": frozenset({"-n", "-c", "--lines", "--bytes", "-s", "--pid"}),
        "cut": frozenset({"-d", "-f", "-c", "-b"}),
        "base64": frozenset({"-w", "--wrap", "-i", "-o", "-b"}),
        "base32": frozenset({"-w", "--wrap"}),
        "basenc": frozenset({"-w", "--wrap"}),
        "xxd": frozenset({"-c", "-g", "-l", "-s", "-o", "-n"}),
        "sort": frozenset({"-k", "-t", "-o", "-S", "-T"}),
        "uniq": frozenset({"-f", "-s", "-w"}),
        "openssl": frozenset({"-in", "-out", "-k", "-K", "-iv", "-pass", "-S", "-md", "-iter"}),
        "gpg": frozenset({"-o", "-u", "-r", "--output", "--passphrase", "--passphrase-file", "--recipient"}),
        "fold": frozenset({"-w"}),
        "nl": frozenset({"-b", "-s", "-w", "-v"}),
        "paste": frozenset({"-d"}),
        "dd": frozenset(),
        "strings": frozenset({"-n", "-t", "-e"}),
    }
)
_LEADING_OPERANDS: Mapping[str, int] = MappingProxyType(
    {"tr": 99, "sed": 1, "openssl": 1, "tee": 99, "dd": 99}
)


def _predict_echo(run: ProgramRun) -> TextStream:
    words, newline, escapes = list(run.argv[1:]), True, False
    while words and words[0][:1] == "-" and len(words[0]) > 1 and set(words[0][1:]) <= set("neE"):
        newline &= "n" not in words[0]
        escapes = (escapes or "e" in words[0]) and not words[0].endswith("E")
        words.pop(0)
    text = " ".join(words) + "\n" * newline
    if run.has_unknown_operands:
        return create_stream(f"{text.rstrip()} {GAP}")
    if not escapes:
        return create_stream(text)
    written, stopped = expand_echo_escapes(" ".join(words))
    return create_stream(
        rejoin_bytes(written) + "\n" * (newline and not stopped),
        {Taint.DECODED} if has_numeric_escapes(text) else (),
    )


def _predict_printf(run: ProgramRun) -> TextStream:
    words = list(run.argv[1:])
    if words[:1] == ["-v"]:
        return TextStream(EMPTY)
    if words[:1] == ["--"]:
        words.pop(0)
    if not words:
        return TextStream(EMPTY)
    template, arguments = words[0], [str(word) for word in words[1:]]
    if run.has_unknown_operands:
        arguments.append(GAP)
    hidden = has_numeric_escapes(template) or any(has_numeric_escapes(word) for word in arguments)
    return create_stream(format_printf(template, arguments), {Taint.DECODED} if hidden else ())


def _predict_yes(run: ProgramRun) -> TextStream:
    line = " ".join(run.argv[1:]) or "y"
    return create_stream((line + "\n") * max(1, min(64, MAX_TEXT_CHARS // (len(line) + 1))) + GAP)


def _predict_seq(run: ProgramRun) -> TextStream:
    numbers = [word for word in run.argv[1:] if word.lstrip("-").isdigit() and len(word) < 9]
    if len(numbers) != len(run.argv) - 1 or not 1 <= len(numbers) <= 3:
        return unknown_stream()
    begin, step, end = 1, 1, int(numbers[-1])
    if len(numbers) > 1:
        begin = int(numbers[0])
    if len(numbers) == 3:
        step = int(numbers[1]) or 1
    listed = islice(range(begin, end + (1 if step > 0 else -1), step), 8192)
    return create_stream("".join(f"{number}\n" for number in listed))


def _predict_pwd(run: ProgramRun) -> TextStream:
    directory = run.absolute_cwd or run.cwd
    return create_stream(f"{directory}\n" if directory.startswith("/") else f"{GAP}\n")


def _predict_mktemp(run: ProgramRun) -> TextStream:
    operands = [word for word in run.argv[1:] if word[:1] != "-"]
    where = operands[-1].rstrip("X") if operands and "/" in operands[-1] else "/tmp/"  # noqa: S108 - only printed
    return create_stream(f"{where}{GAP}\n")


def _predict_basename(run: ProgramRun) -> TextStream:
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    if not words or GAP in words[0].rstrip("/").rpartition("/")[2]:
        return create_stream(f"{GAP}\n")
    name = words[0].rstrip("/").rpartition("/")[2] or words[0][:1]
    suffix = words[1] if len(words) > 1 else ""
    return create_stream((name.removesuffix(suffix) or name) + "\n")


def _predict_dirname(run: ProgramRun) -> TextStream:
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    if not words or (GAP in words[0] and GAP in words[0].rstrip("/").rpartition("/")[2]):
        return create_stream(f"{GAP}\n")
    place = words[0].rstrip("/").rpartition("/")
    return create_stream(
        (place[0].rstrip("/") or ("/" if place[1] or words[0].startswith("/") else ".")) + "\n"
    )


def _predict_realpath(run: ProgramRun) -> TextStream:
    """Predict what `realpath` prints: normalized absolute paths, and unknown text for relative paths."""
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    plain = run.name.endswith("readlink") and not any(
        w[:1] == "-" and set(w) & set("fem") for w in run.argv[1:]
    )
    if plain or any(word.startswith("--relative") for word in run.argv[1:]):
        return create_stream(f"{GAP}\n")
    is_absolute = (word.startswith("/") and word.is_known for word in words)
    lines = (
        posixpath.normpath(word) if known else GAP for word, known in zip(words, is_absolute, strict=True)
    )
    return create_stream("".join(f"{line}\n" for line in lines))


def _predict_which(run: ProgramRun) -> TextStream:
    names = [word for word in run.argv[1:] if word[:1] != "-"]
    return create_stream("".join(name + "\n" if "/" in name else f"{GAP}/{name}\n" for name in names))


def _predict_command(run: ProgramRun) -> TextStream:
    return (
        _predict_which(run)
        if any(word in ("-v", "-V") for word in run.argv[1:2])
        else unknown_stream(source=run.stdin)
    )


def _predict_type(run: ProgramRun) -> TextStream:
    return _predict_which(run) if any(word in ("-p", "-P") for word in run.argv[1:2]) else unknown_stream()


def _predict_python_print(run: ProgramRun) -> TextStream:
    """Return the output of `python -c 'print("x")'` if the argument consists of literals."""
    words = run.argv[1:]
    if len(words) != 2 or words[0] != "-c" or GAP in words[1] or len(words[1]) > 4096:
        return unknown_stream(source=run.stdin)
    try:
        tree = parse_module(words[1].replace('\\"', '"') if '\\"' in words[1] else words[1])
        printed = list(_printed_texts(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unknown_stream()
    return create_stream("".join(printed)) if printed else unknown_stream()


def _printed_texts(tree: ast.Module) -> Iterator[str]:
    for line in tree.body:
        call = line.value if isinstance(line, ast.Expr) else None
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"):
            raise ValueError
        if call.keywords:
            raise ValueError
        yield " ".join(_fold_string(argument) for argument in call.args) + "\n"


def _fold_string(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _fold_string(node.left) + _fold_string(node.right)
    raise ValueError


_PRINTERS: Mapping[str, Callable[[ProgramRun], TextStream]] = MappingProxyType(
    {
        "echo": _predict_echo,
        "printf": _predict_printf,
        "yes": _predict_yes,
        "seq": _predict_seq,
        "pwd": _predict_pwd,
        "mktemp": _predict_mktemp,
        "tempfile": _predict_mktemp,
        "basename": _predict_basename,
        "dirname": _predict_dirname,
        **dict.fromkeys(("realpath", "readlink", "grealpath", "greadlink"), _predict_realpath),
        "which": _predict_which,
        "command": _predict_command,
        "type": _predict_type,
        "python": _predict_python_print,
        "python3": _predict_python_print,
        "true": lambda _: TextStream(EMPTY),
        "false": lambda _: TextStream(EMPTY),
        ":": lambda _: TextStream(EMPTY),
        "sleep": lambda _: TextStream(EMPTY),
        "cd": lambda _: TextStream(EMPTY),
        "mkdir": lambda _: TextStream(EMPTY),
        "touch": lambda _: TextStream(EMPTY),
        "export": lambda _: TextStream(EMPTY),
        "whoami": lambda _: unknown_stream(),
    }
)


def _pass_through(_: ProgramRun, text_input: TextStream) -> TextStream:
    return text_input


def _create_text_filter(
    change: Callable[[str, list[Word]], str | None], *taints: Taint
) -> Callable[[ProgramRun, TextStream], TextStream]:
    def filtering(run: ProgramRun, text_input: TextStream) -> TextStream:
        known = text_input.text
        text = change(known, list(run.argv[1:])) if known is not None else None
        return (
            unknown_stream(*taints, source=text_input)
            if text is None
            else create_stream(text, text_input.taints | set(taints))
        )

    return filtering


def _filter_tr(run: ProgramRun, _: TextStream) -> TextStream:
    """Return the output of `tr`. The text is marked as decoded if letters are swapped, as in rot13."""
    text_input = run.stdin or unknown_stream()
    sets = [word for word in run.argv[1:] if word[:1] != "-"]
    cases = {"a-z", "A-Z", "[:lower:]", "[:upper:]", "[a-z]", "[A-Z]"}
    hiding = len(sets) == 2 and "-" in sets[0] and not set(sets) <= cases
    return _create_text_filter(filters.translate_characters, *([Taint.DECODED] if hiding else []))(
        run, text_input
    )


def _create_decoder_filter(
    decoder: decoders.Decoder, *options: str
) -> Callable[[ProgramRun, TextStream], TextStream]:
    """Return a function that predicts the output of a program that decodes its input if given an option."""

    def filtering(run: ProgramRun, text_input: TextStream) -> TextStream:
        if not options or Options.parse(run.argv).has(*options):
            return decoders.decode_stream(text_input, decoder)
        return unknown_stream(source=text_input)

    return filtering


def _filter_xxd(run: ProgramRun, text_input: TextStream) -> TextStream:
    if not any(word in ("-r", "-revert", "--revert") or word in ("-rp", "-pr") for word in run.argv[1:]):
        return unknown_stream(source=text_input)
    plain = any(word in ("-p", "-ps", "-postscript", "-plain", "-rp", "-pr") for word in run.argv[1:])
    return (
        decoders.decode_stream(text_input, decoders.decode_hex)
        if plain
        else unknown_stream(Taint.DECODED, source=text_input)
    )


_CIPHER_OPTIONS = (
    "-aes",
    "-des",
    "-k",
    "-pass",
    "-K",
    "-bf",
    "-cam",
    "-aria",
    "-chacha",
    "-rc",
    "-seed",
    "-sm4",
)


def _filter_openssl(run: ProgramRun, text_input: TextStream) -> TextStream:
    words = run.argv[1:]
    if "-d" not in words:
        return unknown_stream(source=text_input)
    plain = words[:1] == ("base64",) or bool(set(words) & {"-base64", "-a"})
    if plain and not any(word.startswith(_CIPHER_OPTIONS) for word in words):
        return decoders.decode_stream(text_input, decoders.decode_base64)
    return unknown_stream(Taint.DECODED, source=text_input)


def _filter_basenc(run: ProgramRun, text_input: TextStream) -> TextStream:
    kinds: dict[str, decoders.Decoder] = {
        "--base64": decoders.decode_base64,
        "--base64url": decoders.decode_base64,
        "--base32": decoders.decode_base32,
        "--base16": decoders.decode_hex,
    }
    if not Options.parse(run.argv).has("-d", "--decode"):
        return unknown_stream(source=text_input)
    decoder = next((kinds[word] for word in run.argv[1:] if word in kinds), None)
    return (
        decoders.decode_stream(text_input, decoder)
        if decoder
        else unknown_stream(Taint.DECODED, source=text_input)
    )


def _filter_sed(run: ProgramRun, text_input: TextStream) -> TextStream:
    read = _file_operands(run)
    words = [word for word in run.argv[1:] if word not in ("-e", "-E", "-r") and word not in read]
    if text_input.text is None or len(words) != 1 or not words[0].is_known:
        return unknown_stream(source=text_input)
    text = filters.substitute_text(text_input.text, words[0])
    return unknown_stream(source=text_input) if text is None else create_stream(text, text_input.taints)


def _filter_sort(_run: ProgramRun, text_input: TextStream) -> TextStream:
    """Predict the output of `sort`: known only for a single line, because the order depends on the locale."""
    if not text_input.text or len(filters.split_lines(text_input.text)) > 1:
        return unknown_stream(source=text_input)
    return create_stream(text_input.text.rstrip("\n") + "\n", text_input.taints)


def _decode_unknown(_: ProgramRun, text_input: TextStream) -> TextStream:
    return unknown_stream(Taint.DECODED, source=text_input)


# Programs whose output is part of their input.
_SELECTING_PROGRAMS = split_names(
    "grep egrep fgrep zgrep rg awk gawk mawk nl paste fold fmt expand column shuf jq yq"
)
_DECOMPRESS_OPTIONS = ("-d", "--decompress", "--uncompress", "--decode", "-D")

_FILTERS: Mapping[str, Callable[[ProgramRun, TextStream], TextStream]] = MappingProxyType(
    {
        "cat": _pass_through,
        "tee": lambda run, _: run.stdin or unknown_stream(),
        "pv": _pass_through,
        "sponge": _pass_through,
        "buffer": _pass_through,
        "head": _create_text_filter(filters.take_head),
        "tail": _create_text_filter(filters.take_tail),
        "rev": _create_text_filter(lambda text, _: filters.reverse_lines(text), Taint.DECODED),
        "tac": _create_text_filter(lambda text, _: "".join(reversed(filters.split_lines(text)))),
        "tr": _filter_tr,
        "cut": _create_text_filter(filters.cut_fields),
        "sed": _filter_sed,
        "sort": _filter_sort,
        "uniq": _filter_sort,
        "base64": _create_decoder_filter(decoders.decode_base64, "-d", "-D", "--decode"),
        "gbase64": _create_decoder_filter(decoders.decode_base64, "-d", "--decode"),
        "base32": _create_decoder_filter(decoders.decode_base32, "-d", "-D", "--decode"),
        "basenc": _filter_basenc,
        "xxd": _filter_xxd,
        "openssl": _filter_openssl,
        "gunzip": _create_decoder_filter(decoders.decompress_gzip),
        "zcat": _create_decoder_filter(decoders.decompress_gzip),
        "gzcat": _create_decoder_filter(decoders.decompress_gzip),
        "gzip": _create_decoder_filter(decoders.decompress_gzip, *_DECOMPRESS_OPTIONS),
        "pigz": _create_decoder_filter(decoders.decompress_gzip, *_DECOMPRESS_OPTIONS),
        "unpigz": _create_decoder_filter(decoders.decompress_gzip),
        "xz": _create_decoder_filter(decoders.decompress_xz, *_DECOMPRESS_OPTIONS),
        "unxz": _create_decoder_filter(decoders.decompress_xz),
        "xzcat": _create_decoder_filter(decoders.decompress_xz),
        "lzma": _create_decoder_filter(decoders.decompress_xz, *_DECOMPRESS_OPTIONS),
        "unlzma": _create_decoder_filter(decoders.decompress_xz),
        "lzcat": _create_decoder_filter(decoders.decompress_xz),
        "bzip2": _create_decoder_filter(decoders.decompress_bzip2, *_DECOMPRESS_OPTIONS),
        "bunzip2": _create_decoder_filter(decoders.decompress_bzip2),
        "bzcat": _create_decoder_filter(decoders.decompress_bzip2),
        "ascii85": _create_decoder_filter(decoders.decode_ascii85, "-d"),
        "qprint": _create_decoder_filter(decoders.decode_quoted_printable, "-d"),
        **dict.fromkeys(
            [
                "strings",
                "uudecode",
                "gpg",
                "gpg2",
                "age",
                "rage",
                "zstd",
                "unzstd",
                "zstdcat",
                "lz4",
                "lz4cat",
                "unlz4",
                "brotli",
                "uncompress",
                "zless",
                "ccrypt",
                "mcrypt",
                "7z",
                "7za",
                "unzip",
                "funzip",
                "bsdcat",
                "basE91",
                "steghide",
                "uudeview",
                "lzop",
                "zpaq",
                "hexdump",
                "od",
            ],
            _decode_unknown,
        ),
    }
)
