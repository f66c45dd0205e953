"""Detect data sent to an external machine, whether or not it is known to be secret."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.hosts import is_drop_site, is_external_host, is_ip_address, parse_host
from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.effects.sending import CURL_BODIES, CURL_VALUES
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.shell.runs import STDIN_PATHS, ProgramRun
from shellverdict.shell.words import GAP, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["UPLOAD_HANDLERS"]

# Data files and archives. Uploads of images or request bodies are routine.
_BULK_FILE = re.compile(
    r".*\.(?:sql|dump|csv|tsv|xlsx?|parquet|jsonl|ndjson|tar|tgz|tbz2?|txz|gz|bz2|xz|zst|zip|7z|rar|bak|backup"
    r"|pcap|pcapng|db|sqlite3?|mdb|bson|rdb|ldif|core|dmp|mbox|pst)",
    re.IGNORECASE,
)
_RECORDS_FILE = re.compile(
    r".*\.(?:sql|dump|csv|tsv|db|sqlite3?|bak|pcap|pcapng|bson|rdb|ldif|mbox)(?:\.\w+)?", re.IGNORECASE
)
_NUMBERED_TARGET = re.compile(r"(?:rsync://)?(?:[^/:@]+@)?([0-9]{1,3}(?:\.[0-9]{1,3}){3})[:/]")
_DNS_NAME = re.compile(f"(?:[\\w-]*{GAP}[^./]*\\.)+(?P<domain>[\\w-]+\\.[\\w.-]*[a-z])\\.?", re.IGNORECASE)


def _upload_effect(context: RunContext, name: str, *traits: str) -> CommandEffect:
    return context.new_effect(EffectKind.EXFILTRATE, "network", "upload", *traits, target=Word(name))


def _has_unknown_input(run: ProgramRun) -> bool:
    """Return True if standard input is redirected and its content cannot be determined."""
    return run.stdin is not None and run.stdin.text is None


def _netcat_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(
        split_names("-p -s -w -i -q -X -x -O -I -T -V -g -G --proxy --source --wait --idle-timeout")
    )
    if (
        options.has("-l", "--listen", "-z", "-k", "-U")
        or not options.operands
        or not _has_unknown_input(context.run)
    ):
        return
    name = parse_host(options.operands[0])
    if is_external_host(name):
        yield _upload_effect(context, name)


def _socat_effects(context: RunContext) -> Iterator[CommandEffect]:
    if not _has_unknown_input(context.run):
        return
    for word in context.run.argv[1:16]:
        kind, _, rest = word.partition(":")
        name = parse_host(Word(rest))
        if re.fullmatch(
            "(?:tcp|udp|openssl|ssl|sctp)[46]?(?:-connect|-sendto)?", kind.lower()
        ) and is_external_host(name):
            yield _upload_effect(context, name)


_OUTSIDE_PROJECT = frozenset({PathKind.INSIDE_HOME, PathKind.SYSTEM, PathKind.OUTSIDE})


def _openssl_client_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.run.argv[1:2] != ("s_client",) or not _has_unknown_input(context.run):
        return
    for word in Options.parse(context.run.argv[1:], split_names("-connect -host"), clusters=False).values(
        "-connect", "-host"
    ):
        if is_external_host(parse_host(word)):
            yield _upload_effect(context, parse_host(word))


def _remote_copy_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield copies to another machine that may leak data: copies of data files, or to a bare IP address."""
    operands = context.parse_options(
        split_names("-i -F -o -P -J -c -l -S -e --rsh -p"), abbreviated=False
    ).operands
    if len(operands) < 2:
        return
    match = _NUMBERED_TARGET.match(operands[-1])
    name = match[1] if match else parse_host(operands[-1]) if ":" in operands[-1] else ""
    if is_external_host(name) and (
        match or any(_RECORDS_FILE.fullmatch(word) for word in operands[:-1][:64])
    ):
        yield _upload_effect(context, name)


def _curl_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = Options.parse(context.run.argv, CURL_VALUES, abbreviated=False)
    hosts = {parse_host(word) for word in (*options.operands, *options.values("--url"))[:32]}
    bodies = options.values(*CURL_BODIES)
    for name in sorted(filter(is_external_host, hosts)):
        is_dropped = is_drop_site(name) and bool(bodies)
        is_bulk = any(_is_suspicious_upload(context, word, name) for word in bodies[:64])
        if is_dropped or is_bulk or options.has("-T", "--upload-file"):
            yield _upload_effect(context, name)


def _is_suspicious_upload(context: RunContext, body: Word, name: str) -> bool:
    """Return True for an upload of a dump, of a file outside the project, or of any file to an IP address."""
    _, at, path = body.partition("@")
    if not at and "=<" in body:
        at, path = "@", body.partition("=<")[2]
    path = path.partition(";")[0]
    if not at or is_ip_address(name):
        return bool(at)
    return path not in STDIN_PATHS and bool(
        _BULK_FILE.fullmatch(path) or _OUTSIDE_PROJECT & context.classify(Word(path)).kinds
    )


def _wget_effects(context: RunContext) -> Iterator[CommandEffect]:
    values = split_names("-O -o -P --header --post-data --post-file --body-data --body-file --method -U")
    options = context.parse_options(values)
    files = options.values("--post-file", "--body-file")
    for name in sorted(filter(is_external_host, {parse_host(word) for word in options.operands[:32]})):
        is_dropped = is_drop_site(name) and options.has(
            "--post-data", "--body-data", "--post-file", "--body-file"
        )
        if is_dropped or any(_is_suspicious_upload(context, Word("@" + word), name) for word in files):
            yield _upload_effect(context, name)


def _dns_lookup_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield DNS lookups of names with an unknown part, which reveal that part to the owner of the domain."""
    for word in context.run.argv[1:32]:
        match = _DNS_NAME.fullmatch(_strip_marks(word))
        if match and is_external_host(match["domain"].lower()):
            yield _upload_effect(context, match["domain"], "looked-up")


def _strip_marks(word: Word) -> str:
    return re.sub("[\ufdd5-\ufdd8]", "", word)


UPLOAD_HANDLERS: EffectHandlers = {
    **dict.fromkeys(
        split_names("nc ncat netcat nc.traditional nc.openbsd telnet sbd cryptcat"), _netcat_effects
    ),
    "socat": _socat_effects,
    "openssl": _openssl_client_effects,
    **dict.fromkeys(split_names("scp rsync"), _remote_copy_effects),
    "curl": _curl_effects,
    "wget": _wget_effects,
    **dict.fromkeys(
        split_names("dig nslookup host drill ping ping6 traceroute kdig resolvectl"), _dns_lookup_effects
    ),
}
