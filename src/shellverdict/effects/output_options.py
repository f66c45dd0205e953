"""Detect files that programs write because an option, such as `-o file`, names them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shellverdict.effects.run_context import MAX_OPERANDS, EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.shell.words import Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["OUTPUT_HANDLERS"]


_OUTPUT_OPTIONS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        split_names("sort iconv pandoc strace ltrace time gpg gpg2 age aria2c"), split_names("-o --output")
    ),
    **dict.fromkeys(split_names("gcc g++ cc c++ clang clang++ ld as tcc rustc go ar dot"), split_names("-o")),
    "wget": split_names(
        "-O --output-document -o --output-file -a --append-output --save-cookies --hsts-file --warc-file"
    ),
    "curl": split_names(
        "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --etag-save --hsts "
        "--alt-svc --libcurl"
    ),
    "shuf": split_names("-o --output"),
    "ssh": split_names("-E"),
    "tcpdump": split_names("-w"),
    "openssl": split_names("-out -keyout"),
    "nmap": split_names("-oN -oX -oG -oA"),
    "yt-dlp": split_names("-o --output"),
}
_OTHER_VALUES: dict[str, frozenset[str]] = {
    "aria2c": split_names("-x -s -j -i"),
    "sort": split_names(
        "-k --key -t --field-separator -S --buffer-size -T --temporary-directory --compress-program"
    ),
    "ssh": split_names("-B -b -c -D -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w"),
    "wget": split_names(
        "-P --directory-prefix --header --post-data --post-file --user-agent -U --method --body-data"
    ),
    "curl": split_names(
        "-d --data --data-binary --data-raw --data-urlencode -F --form -H --header -X --request -T "
        "--upload-file -u --user -A --user-agent -e --referer -b --cookie -K --config -x --proxy -m "
        "--max-time --connect-timeout -w --write-out --retry --output-dir --cacert -E --cert --key "
        "--resolve --interface --url -r --range -Y -y -z -C -t -Q -P --json"
    ),
}


_DIRECTORY_OPTIONS: dict[str, tuple[str, ...]] = {
    "curl": ("--output-dir",),
    "wget": ("-P", "--directory-prefix"),
    "aria2c": ("-d", "--dir"),
}
_REMOTE_NAME_OPTIONS = ("-O", "--remote-name", "--remote-name-all")


def _output_option_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the files named by output options (`-o file`), and downloads named after their URLs."""
    name = context.run.name.lower()
    output_options, directory_options = _OUTPUT_OPTIONS[name], _DIRECTORY_OPTIONS.get(name, ())
    whole = name in ("openssl", "nmap")
    values = output_options | _OTHER_VALUES.get(name, frozenset()) | frozenset(directory_options)
    options = Options.parse(
        context.run.argv, values, clusters=not whole, abbreviated=name in ("sort", "wget")
    )
    directory = options.value(*directory_options)
    for word in options.values(*output_options):
        if word != "-":
            path = Word(f"{directory}/{word}") if directory and not word.startswith("/") else word
            yield context.write_effect(path, *_network_traits(name))
    if _keeps_remote_names(name, options):
        yield context.write_effect(directory or Word("."), *_network_traits(name), kind=EffectKind.WRITE)
        for file in _remote_names(options):
            yield context.write_effect(
                Word(f"{directory or '.'}/{file}"), *_network_traits(name), kind=EffectKind.WRITE
            )


def _remote_names(options: Options) -> Iterator[str]:
    """Yield the last path segment of each URL, which becomes the name of the downloaded file."""
    for url in options.operands[:32]:
        path = url.partition("://")[2].partition("?")[0]
        file = path.rpartition("/")[2]
        if file:
            yield file


def _keeps_remote_names(name: str, options: Options) -> bool:
    """Return True if curl or wget saves downloads under the file names in their URLs."""
    if name == "curl":
        return options.has(*_REMOTE_NAME_OPTIONS)
    if name == "wget":
        return bool(options.operands) and not options.has("-O", "--output-document", "--spider")
    return name == "aria2c" and bool(options.operands)


def _network_traits(name: str) -> tuple[str, ...]:
    return ("network",) if name in ("curl", "wget", "aria2c", "yt-dlp") else ()


_GIT_VALUES = split_names(
    "-b --branch -o --output --output-directory --depth -c --template --prefix --format -C --origin"
)


def _git_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the files that git writes outside a repository: clones, archives, patches."""
    options = context.parse_options(_GIT_VALUES, abbreviated=False)
    verb, *rest = options.operands or (Word(""),)
    if verb == "clone" and len(rest) > 1:
        yield context.write_effect(rest[1], "created")
    else:
        short = ("-o",) if verb in ("archive", "format-patch") else ()
        for word in options.values("--output", "--output-directory", *short):
            yield context.write_effect(word)


def _objcopy_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.parse_options(split_names("--dump-section -O -I -j -R")).values("--dump-section"):
        yield context.write_effect(Word(word.partition("=")[2]))


_COMPILERS = split_names("gcc g++ cc c++ clang clang++")
_SIDE_OUTPUT_OPTIONS = ("-MF", "-MJ", "-Wl,-Map=", "-Wl,-Map,")


def _compiler_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the program that a compiler writes, and its dependency and map files."""
    yield from _output_option_effects(context)
    for option, following in pairwise((*context.run.argv[:MAX_OPERANDS], Word(""))):
        for name in _SIDE_OUTPUT_OPTIONS:
            if option.startswith(name) and (path := option[len(name) :] or following):
                yield context.write_effect(Word(path))


OUTPUT_HANDLERS: EffectHandlers = {
    **dict.fromkeys(_OUTPUT_OPTIONS, _output_option_effects),
    **dict.fromkeys(_COMPILERS, _compiler_effects),
    "git": _git_effects,
    "objcopy": _objcopy_effects,
}
