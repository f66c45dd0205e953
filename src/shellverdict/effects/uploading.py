"""Data that leaves for a machine outside, whether or not it is known to be secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.hosts import drop, host, numbered, outside
from shellverdict.effects.scene import Family, Scene
from shellverdict.effects.sending import CURL_BODIES, CURL_VALUES
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.shell.runs import STANDARD_INPUT, Run
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["UPLOADING"]

# Records and whole trees in one file; a form's picture or the body of a request is sent every day.
_BULK = re.compile(
    r".*\.(?:sql|dump|csv|tsv|xlsx?|parquet|jsonl|ndjson|tar|tgz|tbz2?|txz|gz|bz2|xz|zst|zip|7z|rar|bak|backup"
    r"|pcap|pcapng|db|sqlite3?|mdb|bson|rdb|ldif|core|dmp|mbox|pst)",
    re.IGNORECASE,
)
_RECORDS = re.compile(
    r".*\.(?:sql|dump|csv|tsv|db|sqlite3?|bak|pcap|pcapng|bson|rdb|ldif|mbox)(?:\.\w+)?", re.IGNORECASE
)
_NUMBERED_TARGET = re.compile(r"(?:rsync://)?(?:[^/:@]+@)?([0-9]{1,3}(?:\.[0-9]{1,3}){3})[:/]")
_LOOKED_UP = re.compile(f"(?:[\\w-]*{GAP}[^./]*\\.)+(?P<domain>[\\w-]+\\.[\\w.-]*[a-z])\\.?", re.IGNORECASE)


def _effect(scene: Scene, name: str, *traits: str) -> Effect:
    return scene.effect(Kind.EXFILTRATE, "network", "upload", *traits, target=Word(name))


def _unread(run: Run) -> bool:
    """Whether something flows in that cannot be read from the command."""
    return run.stdin is not None and run.stdin.text is None


def _pipe(scene: Scene) -> Iterator[Effect]:
    options = scene.options(
        names("-p -s -w -i -q -X -x -O -I -T -V -g -G --proxy --source --wait --idle-timeout")
    )
    if options.has("-l", "--listen", "-z", "-k", "-U") or not options.operands or not _unread(scene.run):
        return
    name = host(options.operands[0])
    if outside(name):
        yield _effect(scene, name)


def _socat(scene: Scene) -> Iterator[Effect]:
    if not _unread(scene.run):
        return
    for word in scene.run.argv[1:16]:
        kind, _, rest = word.partition(":")
        name = host(Word(rest))
        if re.fullmatch("(?:tcp|udp|openssl|ssl|sctp)[46]?(?:-connect|-sendto)?", kind.lower()) and outside(
            name
        ):
            yield _effect(scene, name)


_AFAR = frozenset({Place.INSIDE_HOME, Place.SYSTEM, Place.OUTSIDE})


def _s_client(scene: Scene) -> Iterator[Effect]:
    if scene.run.argv[1:2] != ("s_client",) or not _unread(scene.run):
        return
    for word in Options.read(scene.run.argv[1:], names("-connect -host"), clusters=False).values(
        "-connect", "-host"
    ):
        if outside(host(word)):
            yield _effect(scene, host(word))


def _copied(scene: Scene) -> Iterator[Effect]:
    """To a machine that has a number and no name: hardly one that somebody keeps copies on."""
    operands = scene.options(names("-i -F -o -P -J -c -l -S -e --rsh -p"), abbreviated=False).operands
    if len(operands) < 2:
        return
    found = _NUMBERED_TARGET.match(operands[-1])
    name = found[1] if found else host(operands[-1]) if ":" in operands[-1] else ""
    if outside(name) and (found or any(_RECORDS.fullmatch(word) for word in operands[:-1][:64])):
        yield _effect(scene, name)


def _curl(scene: Scene) -> Iterator[Effect]:
    options = Options.read(scene.run.argv, CURL_VALUES, abbreviated=False)
    found = {host(word) for word in (*options.operands, *options.values("--url"))[:32]}
    bodies = options.values(*CURL_BODIES)
    for name in sorted(filter(outside, found)):
        left = drop(name) and bool(bodies)
        told = any(_leaves(scene, word, name) for word in bodies[:64])
        if left or told or options.has("-T", "--upload-file"):
            yield _effect(scene, name)


def _leaves(scene: Scene, body: Word, name: str) -> bool:
    """Whether a body is a file full of records or one from afar, or any for a machine without a name."""
    _, at, path = body.partition("@")
    if not at and "=<" in body:
        at, path = "@", body.partition("=<")[2]
    path = path.partition(";")[0]
    if not at or numbered(name):
        return bool(at)
    return path not in STANDARD_INPUT and bool(
        _BULK.fullmatch(path) or _AFAR & scene.where(Word(path)).places
    )


def _wget(scene: Scene) -> Iterator[Effect]:
    values = names("-O -o -P --header --post-data --post-file --body-data --body-file --method -U")
    options = scene.options(values)
    files = options.values("--post-file", "--body-file")
    for name in sorted(filter(outside, {host(word) for word in options.operands[:32]})):
        left = drop(name) and options.has("--post-data", "--body-data", "--post-file", "--body-file")
        if left or any(_leaves(scene, Word("@" + word), name) for word in files):
            yield _effect(scene, name)


def _looked_up(scene: Scene) -> Iterator[Effect]:
    """A name that begins with what is only known when it runs tells that to whoever keeps the domain."""
    for word in scene.run.argv[1:32]:
        found = _LOOKED_UP.fullmatch(_plain(word))
        if found and outside(found["domain"].lower()):
            yield _effect(scene, found["domain"], "looked-up")


def _plain(word: Word) -> str:
    return re.sub("[\ufdd5-\ufdd8]", "", word)


UPLOADING: Family = {
    **dict.fromkeys(names("nc ncat netcat nc.traditional nc.openbsd telnet sbd cryptcat"), _pipe),
    "socat": _socat,
    "openssl": _s_client,
    **dict.fromkeys(names("scp rsync"), _copied),
    "curl": _curl,
    "wget": _wget,
    **dict.fromkeys(names("dig nslookup host drill ping ping6 traceroute kdig resolvectl"), _looked_up),
}
