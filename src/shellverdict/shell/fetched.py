"""Files and folders that a command brings into being itself: downloads, copies, links, unpacked archives.

A command that fetches something and then runs it runs what nobody has read. The reader asks here what each
program leaves behind; only paths written in the command are known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace

from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.programs import WORTH_HIDING
from shellverdict.shell.runs import STANDARD_INPUT, Run, Stream
from shellverdict.shell.state import State
from shellverdict.shell.words import GAP, Mark, Word

__all__ = ["holds", "remember"]

CAT = Word("cat")
VALUES_OF_FETCHERS = frozenset(
    [
        "-o",
        "--output",
        "-O",
        "--output-document",
        "--out",
        "-H",
        "--header",
        "-d",
        "--data",
        "--data-raw",
        "--data-binary",
        "-X",
        "--request",
        "-u",
        "--user",
        "-A",
        "--user-agent",
        "-e",
        "--referer",
        "-b",
        "--cookie",
        "-c",
        "--cookie-jar",
        "-F",
        "--form",
        "-T",
        "--upload-file",
        "-P",
        "--directory-prefix",
        "--output-dir",
        "--dir",
        "-m",
        "--max-time",
        "--connect-timeout",
        "--retry",
        "-x",
        "--proxy",
        "-U",
        "-t",
        "--tries",
        "-w",
        "-i",
    ]
)
VALUES_OF_WGET = names(
    "-O --output-document -o --output-file -a --append-output -e --execute -i --input-file -B --base -t "
    "--tries -T --timeout -w --wait -Q --quota -P --directory-prefix -U --user-agent -l --level -A --accept "
    "-R --reject -D --domains -I -X --header --post-data --post-file --body-data --body-file --method --user "
    "--password --config"
)
WGET_TWO_LETTERS = frozenset({"-nd", "-nc", "-nv", "-np", "-nH"})
FROM_NETWORK = Stream(None, frozenset({Mark.NETWORK}))
PROGRAM_FOLDERS = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")
UNPACKERS = frozenset({"tar", "bsdtar", "unzip", "7z", "cpio", "unrar", "ar", "gunzip", "xz", "bunzip2"})


def holds(state: State, path: str) -> bool:
    """Whether a path lies in a folder that the network filled."""
    return any(path == folder or path.startswith(f"{folder}/") or folder == "." for folder in state.fetched)


def remember(run: Run, state: State, confidential: Callable[[Run], bool]) -> None:
    """Note what this program leaves on disk. `confidential` says whether what a run prints is a secret."""
    match run.name:
        case "curl":
            _fetch(run, state, ("-o", "--output"), ("-O", "--remote-name", "--remote-name-all"))
        case "wget" | "wget2":
            _fetch(run, state, ("-O", "--output-document"), ())
        case "aria2c" | "axel":
            _fetch(run, state, ("-o", "--out", "--output"), ())
        case "git" | "hg" | "svn" | "gh":
            _clone(run, state)
        case "cp" | "mv" | "install" | "ln" | "link" | "ditto" | "gcp" | "gmv" | "ginstall":
            _copy(run, state, confidential)
        case "dd":
            _copy_raw(run, state)
        case "openssl" | "gpg" | "gpg2" | "age" if _decodes(run):
            for file in Options.read(run.argv, names("-out -o --output"), clusters=False).values(
                "-out", "-o", "--output"
            ):
                state.files[state.path(file)] = Stream(None, frozenset({Mark.DECODED}))
        case "sed" | "perl" | "ruby" | "ed" | "ex" | "vim" | "patch":
            _forget_edited(run, state)
        case "tee":
            for word in _operands(run):
                state.files[state.path(word)] = run.stdin or Stream()
        case "tar" | "zip" | "7z" | "gpg" | "openssl" | "gzip" | "base64" if _packs(run, state, confidential):
            pass
        case name if name in UNPACKERS:
            _unpack(run, state)
        case "scp" | "rsync" | "sftp" | "ftp" | "aws" | "gsutil" | "rclone":
            _copied_from_afar(run, state)
            _copy_programs(run, state)


def _copy_raw(run: Run, state: State) -> None:
    """`dd if=a of=b`: what flows in, or the file that is named, is in the other one then."""
    given = dict(word.split("=", 1) for word in run.argv[1:] if "=" in word)
    if "of" in given:
        source = state.files.get(state.path(Word(given["if"]))) if "if" in given else run.stdin
        if source is not None and given.keys() & {"skip", "seek", "count", "conv", "iflag", "cbs"}:
            source = Stream(None, source.marks)  # a part of it, or another form
        state.files[state.path(Word(given["of"]))] = source or Stream()


def _decodes(run: Run) -> bool:
    return any(word in ("-d", "-D", "--decrypt", "-decrypt") for word in run.argv[1:])


def _forget_edited(run: Run, state: State) -> None:
    """A file that an editor may have changed has no known text any more; where it came from still counts."""
    for word in run.argv[1:]:
        stream = state.files.get(state.path(word))
        if stream is not None and stream.text is not None and not stream.marks:
            del state.files[state.path(word)]


def _operands(run: Run) -> list[Word]:
    return [word for word in run.argv[1:] if not word.startswith("-")]


def _fetch(run: Run, state: State, to: tuple[str, ...], own_name: tuple[str, ...]) -> None:
    """A download: to the file that is named, or to the name at the end of its address."""
    own = frozenset(own_name)  # curl's -O takes no value, wget's does
    wget = run.name.startswith("wget")
    argv = [word for word in run.argv if not wget or word not in WGET_TWO_LETTERS]
    options = Options.read(argv, VALUES_OF_WGET if wget else VALUES_OF_FETCHERS - own)
    named = options.values(*to)
    for file in named:
        state.files[state.path(file)] = FROM_NETWORK
    if named or (own_name and not options.has(*own_name)):
        return
    folder = options.value("-P", "--directory-prefix", "--output-dir", "-d", "--dir")
    for url in options.operands:
        name = url.partition("?")[0].rstrip("/").rpartition("/")[2]
        if name:
            path = posixpath.join(folder, name) if folder else name
            state.files[state.path(Word(path))] = FROM_NETWORK


def _clone(run: Run, state: State) -> None:
    operands = _operands(run)
    if "clone" not in operands[:2] and "checkout" not in operands[:1]:
        return
    rest = operands[operands.index(Word("clone")) + 1 :] if "clone" in operands else operands[1:]
    if not rest:
        return
    named = rest[1] if len(rest) > 1 else Word(rest[0].rstrip("/").rpartition("/")[2].removesuffix(".git"))
    state.fetched = (*state.fetched, state.path(named))


def _copy(run: Run, state: State, confidential: Callable[[Run], bool]) -> None:
    operands = _operands(run)
    if len(operands) < 2:
        return
    *sources, target = operands
    for source in sources:
        place = state.path(target)
        into = posixpath.join(place, source.rpartition("/")[2])
        if run.name == "ln":
            state.links[place] = state.links[into] = Word(state.path(source))
        stream = run.stdin if source in STANDARD_INPUT else state.files.get(state.path(source))
        if stream is None and confidential(replace(run, argv=(CAT, source), path=CAT)):
            stream = Stream(None, frozenset({Mark.CONFIDENTIAL}))
        if stream is not None:
            state.files[place] = state.files[into] = stream
    _copy_programs(run, state)


def _copy_programs(run: Run, state: State) -> None:
    """Note copies of programs under other names. A file with the name of a program counts as that program."""
    folders = Options.read(run.argv, names("-t --target-directory")).values("-t", "--target-directory")
    operands = [word for word in _operands(run) if word not in folders]
    *sources, target = (*operands, *folders) if folders else (operands or (Word("."),))
    for source in sources:
        name = Word(source.rstrip("/").rpartition("/")[2])
        found = source.startswith(PROGRAM_FOLDERS) or (source[:1] == GAP and name.known)
        known = state.programs.get(state.path(source))
        if known is None and (found or (name in WORTH_HIDING and state.path(source) not in state.files)):
            known = name
        if known is not None:
            place = state.path(target)
            state.programs[place] = state.programs[posixpath.join(place, name)] = known


def _packs(run: Run, state: State, confidential: Callable[[Run], bool]) -> bool:
    """Whether a secret goes into another file; every file named is marked then."""
    operands = _operands(run)
    if not any(confidential(replace(run, argv=(CAT, word), path=CAT)) for word in operands):
        return False
    for word in operands:
        state.files.setdefault(state.path(word), Stream(None, frozenset({Mark.CONFIDENTIAL})))
    return True


def _unpack(run: Run, state: State) -> None:
    """An archive from the network fills the folder it is unpacked in."""
    fetched = run.stdin is not None and Mark.NETWORK in run.stdin.marks
    for word in run.argv[1:]:
        stream = state.files.get(state.path(word))
        fetched = fetched or (stream is not None and Mark.NETWORK in stream.marks)
    if fetched:
        state.fetched = (*state.fetched, posixpath.normpath(state.cwd))


def _copied_from_afar(run: Run, state: State) -> None:
    operands = _operands(run)
    if len(operands) >= 2 and any(":" in word for word in operands[:-1]) and ":" not in operands[-1]:
        source, target = operands[-2], state.path(operands[-1])
        state.files[target] = FROM_NETWORK
        state.files[posixpath.join(target, source.rpartition("/")[2])] = FROM_NETWORK
