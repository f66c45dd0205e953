"""Programs that say with an option what they write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shellverdict.effects.scene import MOST_OPERANDS, Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.words import Word
from shellverdict.verdict import Effect, Kind

__all__ = ["OUTPUTS"]


_OUTPUTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(names("sort iconv pandoc strace ltrace time gpg gpg2 age aria2c"), names("-o --output")),
    **dict.fromkeys(names("gcc g++ cc c++ clang clang++ ld as tcc rustc go ar dot"), names("-o")),
    "wget": names(
        "-O --output-document -o --output-file -a --append-output --save-cookies --hsts-file --warc-file"
    ),
    "curl": names(
        "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --etag-save --hsts "
        "--alt-svc --libcurl"
    ),
    "shuf": names("-o --output"),
    "ssh": names("-E"),
    "tcpdump": names("-w"),
    "openssl": names("-out -keyout"),
    "nmap": names("-oN -oX -oG -oA"),
    "yt-dlp": names("-o --output"),
}
_OTHER_VALUES: dict[str, frozenset[str]] = {
    "aria2c": names("-x -s -j -i"),
    "sort": names(
        "-k --key -t --field-separator -S --buffer-size -T --temporary-directory --compress-program"
    ),
    "ssh": names("-B -b -c -D -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w"),
    "wget": names(
        "-P --directory-prefix --header --post-data --post-file --user-agent -U --method --body-data"
    ),
    "curl": names(
        "-d --data --data-binary --data-raw --data-urlencode -F --form -H --header -X --request -T "
        "--upload-file -u --user -A --user-agent -e --referer -b --cookie -K --config -x --proxy -m "
        "--max-time --connect-timeout -w --write-out --retry --output-dir --cacert -E --cert --key "
        "--resolve --interface --url -r --range -Y -y -z -C -t -Q -P --json"
    ),
}


_INTO: dict[str, tuple[str, ...]] = {
    "curl": ("--output-dir",),
    "wget": ("-P", "--directory-prefix"),
    "aria2c": ("-d", "--dir"),
}
_NAMED_REMOTELY = ("-O", "--remote-name", "--remote-name-all")


def _outputs(scene: Scene) -> Iterator[Effect]:
    """Programs that say with an option what they write."""
    name = scene.run.name.lower()
    asked, into = _OUTPUTS[name], _INTO.get(name, ())
    whole = name in ("openssl", "nmap")
    values = asked | _OTHER_VALUES.get(name, frozenset()) | frozenset(into)
    options = Options.read(scene.run.argv, values, clusters=not whole, abbreviated=name in ("sort", "wget"))
    directory = options.value(*into)
    for word in options.values(*asked):
        if word != "-":
            path = Word(f"{directory}/{word}") if directory and not word.startswith("/") else word
            yield scene.write(path, *_fetched(name))
    if _keeps_names(name, options):
        yield scene.write(directory or Word("."), *_fetched(name), kind=Kind.WRITE)
        for file in _remote_names(options):
            yield scene.write(Word(f"{directory or '.'}/{file}"), *_fetched(name), kind=Kind.WRITE)


def _remote_names(options: Options) -> Iterator[str]:
    """The last part of each address, which is the name of the file that is made."""
    for url in options.operands[:32]:
        path = url.partition("://")[2].partition("?")[0]
        file = path.rpartition("/")[2]
        if file:
            yield file


def _keeps_names(name: str, options: Options) -> bool:
    """Whether files get the names they had where they were fetched."""
    if name == "curl":
        return options.has(*_NAMED_REMOTELY)
    if name == "wget":
        return bool(options.operands) and not options.has("-O", "--output-document", "--spider")
    return name == "aria2c" and bool(options.operands)


def _fetched(name: str) -> tuple[str, ...]:
    return ("network",) if name in ("curl", "wget", "aria2c", "yt-dlp") else ()


_GIT_VALUES = names(
    "-b --branch -o --output --output-directory --depth -c --template --prefix --format -C --origin"
)


def _git(scene: Scene) -> Iterator[Effect]:
    """What git writes elsewhere than in a repository: clones, archives, patches."""
    options = scene.options(_GIT_VALUES, abbreviated=False)
    verb, *rest = options.operands or (Word(""),)
    if verb == "clone" and len(rest) > 1:
        yield scene.write(rest[1], "created")
    else:
        short = ("-o",) if verb in ("archive", "format-patch") else ()
        for word in options.values("--output", "--output-directory", *short):
            yield scene.write(word)


def _dumped(scene: Scene) -> Iterator[Effect]:
    for word in scene.options(names("--dump-section -O -I -j -R")).values("--dump-section"):
        yield scene.write(Word(word.partition("=")[2]))


_COMPILERS = names("gcc g++ cc c++ clang clang++")
_WRITTEN_BESIDE = ("-MF", "-MJ", "-Wl,-Map=", "-Wl,-Map,")


def _compiled(scene: Scene) -> Iterator[Effect]:
    """The program, and the lists of dependencies and symbols that are written beside it."""
    yield from _outputs(scene)
    for option, following in pairwise((*scene.run.argv[:MOST_OPERANDS], Word(""))):
        for name in _WRITTEN_BESIDE:
            if option.startswith(name) and (path := option[len(name) :] or following):
                yield scene.write(Word(path))


OUTPUTS: Family = {
    **dict.fromkeys(_OUTPUTS, _outputs),
    **dict.fromkeys(_COMPILERS, _compiled),
    "git": _git,
    "objcopy": _dumped,
}
