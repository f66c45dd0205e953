"""Record files and directories that a command creates: downloads, copies, links, unpacked archives.

A command that downloads a file and then runs it runs code that was not reviewed. The reader records here what
each program creates; only paths written in the command are known.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace

from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.shell.programs import SENSITIVE_PROGRAMS
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.words import GAP, Taint, Word

__all__ = ["is_downloaded", "record_created_files"]

CAT = Word("cat")
DOWNLOADER_VALUE_OPTIONS = frozenset(
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
WGET_VALUE_OPTIONS = split_names(
    "-O --output-document -o --output-file -a --append-output -e --execute -i --input-file -B --base -t "
    "--tries -T --timeout -w --wait -Q --quota -P --directory-prefix -U --user-agent -l --level -A --accept "
    "-R --reject -D --domains -I -X --header --post-data --post-file --body-data --body-file --method --user "
    "--password --config"
)
WGET_TWO_LETTER_FLAGS = frozenset({"-nd", "-nc", "-nv", "-np", "-nH"})
DOWNLOADED_STREAM = TextStream(None, frozenset({Taint.NETWORK}))
PROGRAM_DIRECTORIES = ("/bin/", "/usr/bin/", "/sbin/", "/usr/sbin/", "/usr/local/bin/")
UNPACKING_PROGRAMS = frozenset(
    {"tar", "bsdtar", "unzip", "7z", "cpio", "unrar", "ar", "gunzip", "xz", "bunzip2"}
)


def is_downloaded(state: ShellState, path: str) -> bool:
    """Return True if a path is in a directory into which the command has downloaded files."""
    return any(
        path == directory or path.startswith(f"{directory}/") or directory == "."
        for directory in state.downloaded_directories
    )


def record_created_files(
    run: ProgramRun, state: ShellState, is_confidential: Callable[[ProgramRun], bool]
) -> None:
    """Record the files that a program creates, so that later programs that use them can be judged."""
    match run.name:
        case "curl":
            _record_download(run, state, ("-o", "--output"), ("-O", "--remote-name", "--remote-name-all"))
        case "wget" | "wget2":
            _record_download(run, state, ("-O", "--output-document"), ())
        case "aria2c" | "axel":
            _record_download(run, state, ("-o", "--out", "--output"), ())
        case "git" | "hg" | "svn" | "gh":
            _record_clone(run, state)
        case "cp" | "mv" | "install" | "ln" | "link" | "ditto" | "gcp" | "gmv" | "ginstall":
            _record_copy(run, state, is_confidential)
        case "dd":
            _record_dd(run, state)
        case "openssl" | "gpg" | "gpg2" | "age" | "base64" | "base32" if _is_decrypting(run):
            for file in Options.parse(run.argv, split_names("-out -o --output"), clusters=False).values(
                "-out", "-o", "--output"
            ):
                state.written_files[state.resolve_path(file)] = TextStream(None, frozenset({Taint.DECODED}))
        case "sed" | "perl" | "ruby" | "ed" | "ex" | "vim" | "patch":
            _forget_edited_files(run, state)
        case "sort" | "shuf":
            named = Options.parse(
                run.argv, split_names("-o --output -k --key -t -S -T --files0-from")
            ).values("-o", "--output")
            _record_filtered(run, state, [word for word in _run_operands(run) if word not in named], named)
        case "mkfifo" | "mknod":  # somebody else writes to a pipe, perhaps later
            for word in _run_operands(run):
                state.written_files[state.resolve_path(word)] = TextStream(None, frozenset({Taint.DECODED}))
        case "uniq":
            words = [word for word in run.argv[1:] if word == "-" or not word.startswith("-")]
            _record_filtered(run, state, words[:1], words[1:2])
        case "split" | "csplit":
            _record_pieces(run, state)
        case "tee" | "sponge":
            for word in _run_operands(run):
                state.written_files[state.resolve_path(word)] = run.stdin or TextStream()
        case "tar" | "zip" | "7z" | "gpg" | "openssl" | "gzip" | "base64" if _record_packed_secret(
            run, state, is_confidential
        ):
            pass
        case name if name in UNPACKING_PROGRAMS:
            _record_unpacking(run, state)
        case "scp" | "rsync" | "sftp" | "ftp" | "aws" | "gsutil" | "rclone":
            _record_remote_copy(run, state)
            _record_program_copies(run, state)


def _record_filtered(
    run: ProgramRun, state: ShellState, sources: Sequence[Word], targets: Sequence[Word]
) -> None:
    """Record files into which a program such as `sort` writes the lines of its input."""
    stream = run.stdin
    for source in sources:
        stream = state.written_files.get(state.resolve_path(source), stream)
    for target in targets:
        state.written_files[state.resolve_path(target)] = stream or TextStream()


def _record_pieces(run: ProgramRun, state: ShellState) -> None:
    """Record the first files into which a text is split; each may have any part of the text."""
    by_pattern = run.name == "csplit"
    valued = "-f --prefix -b --suffix-format -n --digits" if by_pattern else "-a -b -C -l -n --bytes --lines"
    options = Options.parse(run.argv, split_names(valued))
    prefix = options.value("-f", "--prefix") or "xx" if by_pattern else (*options.operands, "", "x", "x")[1]
    targets = [Word(f"{prefix or 'x'}{each}") for each in ("aa", "ab", "ac", "00", "01", "02")]
    _record_filtered(run, state, options.operands[:1], targets)


def _record_dd(run: ProgramRun, state: ShellState) -> None:
    """Record the file written by `dd`: a copy of its input file or standard input."""
    operands = dict(word.split("=", 1) for word in run.argv[1:] if "=" in word)
    if "of" in operands:
        source = state.find_file(state.resolve_path(Word(operands["if"]))) if "if" in operands else run.stdin
        if source is not None and operands.keys() & {"skip", "seek", "count", "conv", "iflag", "cbs"}:
            source = TextStream(None, source.taints)  # a part of the input, or converted
        state.written_files[state.resolve_path(Word(operands["of"]))] = source or TextStream()


def _is_decrypting(run: ProgramRun) -> bool:
    return any(word in ("-d", "-D", "--decrypt", "-decrypt", "--decode") for word in run.argv[1:])


def _forget_edited_files(run: ProgramRun, state: ShellState) -> None:
    """Forget the text written to files if an editor may have changed them since.

    Files whose data has a recorded origin, such as the network, are not forgotten.
    """
    for word in run.argv[1:]:
        path = state.resolve_path(word)
        stream = state.find_file(path)
        if stream is not None and stream.text is not None and not stream.taints:
            state.written_files.pop(path, None)
            state.edited_files.add(path)


def _run_operands(run: ProgramRun) -> list[Word]:
    return [word for word in run.argv[1:] if not word.startswith("-")]


def _record_download(
    run: ProgramRun, state: ShellState, output_options: tuple[str, ...], own_name_options: tuple[str, ...]
) -> None:
    """Record a downloaded file, which is named by an option or by the last part of the URL."""
    own_name_set = frozenset(own_name_options)  # curl's -O takes no value, wget's does
    wget = run.name.startswith("wget")
    argv = [word for word in run.argv if not wget or word not in WGET_TWO_LETTER_FLAGS]
    options = Options.parse(argv, WGET_VALUE_OPTIONS if wget else DOWNLOADER_VALUE_OPTIONS - own_name_set)
    named_files = options.values(*output_options)
    for file in named_files:
        state.written_files[state.resolve_path(file)] = DOWNLOADED_STREAM
    if named_files or (own_name_options and not options.has(*own_name_options)):
        return
    directory = options.value("-P", "--directory-prefix", "--output-dir", "-d", "--dir")
    for url in options.operands:
        name = url.partition("?")[0].rstrip("/").rpartition("/")[2]
        if name:
            path = posixpath.join(directory, name) if directory else name
            state.written_files[state.resolve_path(Word(path))] = DOWNLOADED_STREAM


def _record_clone(run: ProgramRun, state: ShellState) -> None:
    operands = _run_operands(run)
    if "clone" not in operands[:2] and "checkout" not in operands[:1]:
        return
    rest = operands[operands.index(Word("clone")) + 1 :] if "clone" in operands else operands[1:]
    if not rest:
        return
    named_files = (
        rest[1] if len(rest) > 1 else Word(rest[0].rstrip("/").rpartition("/")[2].removesuffix(".git"))
    )
    state.downloaded_directories = (*state.downloaded_directories, state.resolve_path(named_files))


def _record_copy(run: ProgramRun, state: ShellState, is_confidential: Callable[[ProgramRun], bool]) -> None:
    operands = _run_operands(run)
    if len(operands) < 2:
        return
    *sources, target = operands
    for source in sources:
        place = state.resolve_path(target)
        into = posixpath.join(place, source.rpartition("/")[2])
        if run.name == "ln":
            state.symlinks[place] = state.symlinks[into] = Word(state.resolve_path(source))
        stream = run.stdin if source in STDIN_PATHS else state.find_file(state.resolve_path(source))
        if stream is None and is_confidential(replace(run, argv=(CAT, source), path=CAT)):
            stream = TextStream(None, frozenset({Taint.CONFIDENTIAL}))
        if stream is not None:
            state.written_files[place] = state.written_files[into] = stream
    _record_program_copies(run, state)


def _record_program_copies(run: ProgramRun, state: ShellState) -> None:
    """Record copies of programs, because running a copy runs the program under another name."""
    directories = Options.parse(run.argv, split_names("-t --target-directory")).values(
        "-t", "--target-directory"
    )
    operands = [word for word in _run_operands(run) if word not in directories]
    *sources, target = (*operands, *directories) if directories else (operands or (Word("."),))
    for source in sources:
        name = Word(source.rstrip("/").rpartition("/")[2])
        found = source.startswith(PROGRAM_DIRECTORIES) or (source[:1] == GAP and name.is_known)
        known = state.program_copies.get(state.resolve_path(source))
        if known is None and (
            found or (name in SENSITIVE_PROGRAMS and state.resolve_path(source) not in state.written_files)
        ):
            known = name
        if known is not None:
            place = state.resolve_path(target)
            state.program_copies[place] = state.program_copies[posixpath.join(place, name)] = known


def _record_packed_secret(
    run: ProgramRun, state: ShellState, is_confidential: Callable[[ProgramRun], bool]
) -> bool:
    """Mark an archive as confidential if a secret file is packed into it; return True if so."""
    operands = _run_operands(run)
    if not any(is_confidential(replace(run, argv=(CAT, word), path=CAT)) for word in operands):
        return False
    for word in operands:
        state.written_files.setdefault(
            state.resolve_path(word), TextStream(None, frozenset({Taint.CONFIDENTIAL}))
        )
    return True


def _record_unpacking(run: ProgramRun, state: ShellState) -> None:
    """Record that the working directory has downloaded files if an archive from the network is unpacked."""
    fetched = run.stdin is not None and Taint.NETWORK in run.stdin.taints
    for word in run.argv[1:]:
        stream = state.find_file(state.resolve_path(word))
        fetched = fetched or (stream is not None and Taint.NETWORK in stream.taints)
    if fetched:
        state.downloaded_directories = (*state.downloaded_directories, posixpath.normpath(state.cwd))


def _record_remote_copy(run: ProgramRun, state: ShellState) -> None:
    operands = _run_operands(run)
    if len(operands) >= 2 and any(":" in word for word in operands[:-1]) and ":" not in operands[-1]:
        source, target = operands[-2], state.resolve_path(operands[-1])
        state.written_files[target] = DOWNLOADED_STREAM
        name = source.rpartition("/")[2].rpartition(":")[2]
        state.written_files[posixpath.normpath(posixpath.join(target, name))] = DOWNLOADED_STREAM
