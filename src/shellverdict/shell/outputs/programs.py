"""Which program prints what."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.outputs import decoders, filters
from shellverdict.shell.outputs.bounds import as_stream, unknown, whole
from shellverdict.shell.outputs.escapes import formatted, hides, unescaped
from shellverdict.shell.outputs.listing import listed_folders
from shellverdict.shell.outputs.network import fetches
from shellverdict.shell.outputs.setup import prints_shell_setup
from shellverdict.shell.runs import STANDARD_INPUT, Mark, Run, Stream
from shellverdict.shell.words import EMPTY, GAP, LONGEST, Word

__all__ = ["Files", "output"]

Files = Callable[[Word], Stream | None]


def _no_files(_: Word) -> Stream | None:
    return None


def output(run: Run, files: Files = _no_files) -> Stream:
    """What the run prints. `files` tells what is known about a file's content, where anything is."""
    if prints_shell_setup(run):
        return Stream(EMPTY)
    if fetches(run):
        return unknown(Mark.NETWORK, also=run.stdin)
    if printer := _PRINTERS.get(run.name):
        return printer(run)
    if filtering := _FILTERS.get(run.name):
        printed = filtering(run, _taken(run, files))
        is_listing = printed.text is None and run.stdin is not None
        return replace(printed, folders=run.stdin.folders) if is_listing and run.stdin else printed
    if folders := listed_folders(run):
        return Stream(None, run.stdin.marks if run.stdin else frozenset(), folders=folders)
    named = _marks_of_named(run, files) if run.name in _CHOOSERS else frozenset()
    return unknown(*named, also=run.stdin)


def _taken(run: Run, files: Files) -> Stream:
    """What a filter reads: the files it is given, otherwise standard input."""
    operands = _file_operands(run)
    parts = [_content(run, name, files) for name in operands] or [run.stdin or unknown()]
    marks = _marks_of_named(run, files).union(*(part.marks for part in parts))
    if any(part.text is None for part in parts):
        return Stream(None, marks)
    return as_stream("".join(part.text or "" for part in parts), marks)


def _marks_of_named(run: Run, files: Files) -> frozenset[Mark]:
    """Where the files come from that any of its words names, whatever else the words may mean."""
    named = (files(word) for word in run.argv[1:] if word[:1] != "-")
    return frozenset().union(*(stream.marks for stream in named if stream is not None))


def _content(run: Run, name: Word, files: Files) -> Stream:
    if name in STANDARD_INPUT:
        return run.stdin or unknown()
    return files(name) or unknown(Mark.UNREAD)


def _file_operands(run: Run) -> list[Word]:
    """The operands that are files, by how many operands of another kind the program takes first."""
    values = _VALUES.get(run.name, frozenset())
    skip = _FIRST.get(run.name, 0)
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


_VALUES: Mapping[str, frozenset[str]] = MappingProxyType(
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
_FIRST: Mapping[str, int] = MappingProxyType({"tr": 99, "sed": 1, "openssl": 1, "tee": 99, "dd": 99})


def _echo(run: Run) -> Stream:
    words, newline, escapes = list(run.argv[1:]), True, False
    while words and words[0][:1] == "-" and len(words[0]) > 1 and set(words[0][1:]) <= set("neE"):
        newline &= "n" not in words[0]
        escapes = (escapes or "e" in words[0]) and not words[0].endswith("E")
        words.pop(0)
    text = " ".join(words) + "\n" * newline
    if run.more_operands:
        return as_stream(f"{text.rstrip()} {GAP}")
    if not escapes:
        return as_stream(text)
    written, stopped = unescaped(" ".join(words))
    return as_stream(whole(written) + "\n" * (newline and not stopped), {Mark.DECODED} if hides(text) else ())


def _printf(run: Run) -> Stream:
    words = list(run.argv[1:])
    if words[:1] == ["-v"]:
        return Stream(EMPTY)
    if words[:1] == ["--"]:
        words.pop(0)
    if not words:
        return Stream(EMPTY)
    template, arguments = words[0], [str(word) for word in words[1:]]
    if run.more_operands:
        arguments.append(GAP)
    hidden = hides(template) or any(hides(word) for word in arguments)
    return as_stream(formatted(template, arguments), {Mark.DECODED} if hidden else ())


def _yes(run: Run) -> Stream:
    line = " ".join(run.argv[1:]) or "y"
    return as_stream((line + "\n") * max(1, min(64, LONGEST // (len(line) + 1))) + GAP)


def _seq(run: Run) -> Stream:
    numbers = [word for word in run.argv[1:] if word.lstrip("-").isdigit() and len(word) < 9]
    if len(numbers) != len(run.argv) - 1 or not 1 <= len(numbers) <= 3:
        return unknown()
    begin, step, end = 1, 1, int(numbers[-1])
    if len(numbers) > 1:
        begin = int(numbers[0])
    if len(numbers) == 3:
        step = int(numbers[1]) or 1
    listed = islice(range(begin, end + (1 if step > 0 else -1), step), 8192)
    return as_stream("".join(f"{number}\n" for number in listed))


def _pwd(run: Run) -> Stream:
    folder = run.folder or run.cwd
    return as_stream(f"{folder}\n" if folder.startswith("/") else f"{GAP}\n")


def _mktemp(run: Run) -> Stream:
    given = [word for word in run.argv[1:] if word[:1] != "-"]
    where = given[-1].rstrip("X") if given and "/" in given[-1] else "/tmp/"  # noqa: S108 - named, not used
    return as_stream(f"{where}{GAP}\n")


def _basename(run: Run) -> Stream:
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    if not words or GAP in words[0].rstrip("/").rpartition("/")[2]:
        return as_stream(f"{GAP}\n")
    name = words[0].rstrip("/").rpartition("/")[2] or words[0][:1]
    suffix = words[1] if len(words) > 1 else ""
    return as_stream((name.removesuffix(suffix) or name) + "\n")


def _dirname(run: Run) -> Stream:
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    if not words or (GAP in words[0] and GAP in words[0].rstrip("/").rpartition("/")[2]):
        return as_stream(f"{GAP}\n")
    place = words[0].rstrip("/").rpartition("/")
    return as_stream((place[0].rstrip("/") or ("/" if place[1] or words[0].startswith("/") else ".")) + "\n")


def _real_path(run: Run) -> Stream:
    """The paths without their dots; links are not looked at, and a path from here is not known."""
    words = [word for word in run.argv[1:] if word[:1] != "-"]
    plain = run.name.endswith("readlink") and not any(
        w[:1] == "-" and set(w) & set("fem") for w in run.argv[1:]
    )
    if plain or any(word.startswith("--relative") for word in run.argv[1:]):
        return as_stream(f"{GAP}\n")
    whole = (word.startswith("/") and word.known for word in words)
    lines = (posixpath.normpath(word) if known else GAP for word, known in zip(words, whole, strict=True))
    return as_stream("".join(f"{line}\n" for line in lines))


def _which(run: Run) -> Stream:
    names = [word for word in run.argv[1:] if word[:1] != "-"]
    return as_stream("".join(name + "\n" if "/" in name else f"{GAP}/{name}\n" for name in names))


def _command(run: Run) -> Stream:
    return _which(run) if any(word in ("-v", "-V") for word in run.argv[1:2]) else unknown(also=run.stdin)


def _type(run: Run) -> Stream:
    return _which(run) if any(word in ("-p", "-P") for word in run.argv[1:2]) else unknown()


def _literal_print(run: Run) -> Stream:
    """`python -c 'print("x")'` where the argument is nothing but literals."""
    words = run.argv[1:]
    if len(words) != 2 or words[0] != "-c" or GAP in words[1] or len(words[1]) > 4096:
        return unknown(also=run.stdin)
    try:
        tree = ast.parse(words[1].replace('\\"', '"') if '\\"' in words[1] else words[1])
        printed = list(_prints(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unknown()
    return as_stream("".join(printed)) if printed else unknown()


def _prints(tree: ast.Module) -> Iterator[str]:
    for line in tree.body:
        call = line.value if isinstance(line, ast.Expr) else None
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"):
            raise ValueError
        if call.keywords:
            raise ValueError
        yield " ".join(_folded(argument) for argument in call.args) + "\n"


def _folded(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _folded(node.left) + _folded(node.right)
    raise ValueError


_PRINTERS: Mapping[str, Callable[[Run], Stream]] = MappingProxyType(
    {
        "echo": _echo,
        "printf": _printf,
        "yes": _yes,
        "seq": _seq,
        "pwd": _pwd,
        "mktemp": _mktemp,
        "tempfile": _mktemp,
        "basename": _basename,
        "dirname": _dirname,
        **dict.fromkeys(("realpath", "readlink", "grealpath", "greadlink"), _real_path),
        "which": _which,
        "command": _command,
        "type": _type,
        "python": _literal_print,
        "python3": _literal_print,
        "true": lambda _: Stream(EMPTY),
        "false": lambda _: Stream(EMPTY),
        ":": lambda _: Stream(EMPTY),
        "sleep": lambda _: Stream(EMPTY),
        "cd": lambda _: Stream(EMPTY),
        "mkdir": lambda _: Stream(EMPTY),
        "touch": lambda _: Stream(EMPTY),
        "export": lambda _: Stream(EMPTY),
        "whoami": lambda _: unknown(),
    }
)


def _same(_: Run, taken: Stream) -> Stream:
    return taken


def _by(change: Callable[[str, list[Word]], str | None], *marks: Mark) -> Callable[[Run, Stream], Stream]:
    def filtering(run: Run, taken: Stream) -> Stream:
        known = taken.text
        text = change(known, list(run.argv[1:])) if known is not None else None
        return unknown(*marks, also=taken) if text is None else as_stream(text, taken.marks | set(marks))

    return filtering


def _tr(run: Run, _: Stream) -> Stream:
    """`tr` reads nothing but standard input; one that swaps letters hides what it says."""
    taken = run.stdin or unknown()
    sets = [word for word in run.argv[1:] if word[:1] != "-"]
    cases = {"a-z", "A-Z", "[:lower:]", "[:upper:]", "[a-z]", "[A-Z]"}
    hiding = len(sets) == 2 and "-" in sets[0] and not set(sets) <= cases
    return _by(filters.translated, *([Mark.DECODED] if hiding else []))(run, taken)


def _decoding(decoder: decoders.Decoder, *options: str) -> Callable[[Run, Stream], Stream]:
    """Decodes where one of the options is there; otherwise it packs, and who knows what that looks like."""

    def filtering(run: Run, taken: Stream) -> Stream:
        if not options or Options.read(run.argv).has(*options):
            return decoders.decoded(taken, decoder)
        return unknown(also=taken)

    return filtering


def _xxd(run: Run, taken: Stream) -> Stream:
    if not any(word in ("-r", "-revert", "--revert") or word in ("-rp", "-pr") for word in run.argv[1:]):
        return unknown(also=taken)
    plain = any(word in ("-p", "-ps", "-postscript", "-plain", "-rp", "-pr") for word in run.argv[1:])
    return decoders.decoded(taken, decoders.from_hex) if plain else unknown(Mark.DECODED, also=taken)


_CIPHERS = ("-aes", "-des", "-k", "-pass", "-K", "-bf", "-cam", "-aria", "-chacha", "-rc", "-seed", "-sm4")


def _openssl(run: Run, taken: Stream) -> Stream:
    words = run.argv[1:]
    if "-d" not in words:
        return unknown(also=taken)
    plain = words[:1] == ("base64",) or bool(set(words) & {"-base64", "-a"})
    if plain and not any(word.startswith(_CIPHERS) for word in words):
        return decoders.decoded(taken, decoders.from_base64)
    return unknown(Mark.DECODED, also=taken)


def _basenc(run: Run, taken: Stream) -> Stream:
    kinds: dict[str, decoders.Decoder] = {
        "--base64": decoders.from_base64,
        "--base64url": decoders.from_base64,
        "--base32": decoders.from_base32,
        "--base16": decoders.from_hex,
    }
    if not Options.read(run.argv).has("-d", "--decode"):
        return unknown(also=taken)
    decoder = next((kinds[word] for word in run.argv[1:] if word in kinds), None)
    return decoders.decoded(taken, decoder) if decoder else unknown(Mark.DECODED, also=taken)


def _sed(run: Run, taken: Stream) -> Stream:
    read = _file_operands(run)
    words = [word for word in run.argv[1:] if word not in ("-e", "-E", "-r") and word not in read]
    if taken.text is None or len(words) != 1 or not words[0].known:
        return unknown(also=taken)
    text = filters.sed(taken.text, words[0])
    return unknown(also=taken) if text is None else as_stream(text, taken.marks)


def _sort(_run: Run, taken: Stream) -> Stream:
    """One line stays what it is; more are sorted by rules of a place and a language."""
    if not taken.text or len(filters.lines_of(taken.text)) > 1:
        return unknown(also=taken)
    return as_stream(taken.text.rstrip("\n") + "\n", taken.marks)


def _opaque(_: Run, taken: Stream) -> Stream:
    return unknown(Mark.DECODED, also=taken)


# What these print is part of what they read.
_CHOOSERS = names("grep egrep fgrep zgrep rg awk gawk mawk nl paste fold fmt expand column shuf jq yq")
_UNPACK = ("-d", "--decompress", "--uncompress", "--decode", "-D")

_FILTERS: Mapping[str, Callable[[Run, Stream], Stream]] = MappingProxyType(
    {
        "cat": _same,
        "tee": lambda run, _: run.stdin or unknown(),
        "pv": _same,
        "sponge": _same,
        "buffer": _same,
        "head": _by(filters.head),
        "tail": _by(filters.tail),
        "rev": _by(lambda text, _: filters.reversed_lines(text), Mark.DECODED),
        "tac": _by(lambda text, _: "".join(reversed(filters.lines_of(text)))),
        "tr": _tr,
        "cut": _by(filters.cut),
        "sed": _sed,
        "sort": _sort,
        "uniq": _sort,
        "base64": _decoding(decoders.from_base64, "-d", "-D", "--decode"),
        "gbase64": _decoding(decoders.from_base64, "-d", "--decode"),
        "base32": _decoding(decoders.from_base32, "-d", "-D", "--decode"),
        "basenc": _basenc,
        "xxd": _xxd,
        "openssl": _openssl,
        "gunzip": _decoding(decoders.gzip),
        "zcat": _decoding(decoders.gzip),
        "gzcat": _decoding(decoders.gzip),
        "gzip": _decoding(decoders.gzip, *_UNPACK),
        "pigz": _decoding(decoders.gzip, *_UNPACK),
        "unpigz": _decoding(decoders.gzip),
        "xz": _decoding(decoders.xz, *_UNPACK),
        "unxz": _decoding(decoders.xz),
        "xzcat": _decoding(decoders.xz),
        "lzma": _decoding(decoders.xz, *_UNPACK),
        "unlzma": _decoding(decoders.xz),
        "lzcat": _decoding(decoders.xz),
        "bzip2": _decoding(decoders.bzip2, *_UNPACK),
        "bunzip2": _decoding(decoders.bzip2),
        "bzcat": _decoding(decoders.bzip2),
        "ascii85": _decoding(decoders.ascii85, "-d"),
        "qprint": _decoding(decoders.quoted, "-d"),
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
            _opaque,
        ),
    }
)
