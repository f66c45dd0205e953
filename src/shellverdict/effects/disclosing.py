"""Detect files and secrets that a program reads or prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from shellverdict.effects.run_context import RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathInfo, PathKind
from shellverdict.paths.known_names import kinds_below_directory
from shellverdict.shell.runs import ProgramRun, Taint
from shellverdict.shell.secret_names import is_secret_name
from shellverdict.shell.words import Word

__all__ = [
    "DATABASE_DUMPERS",
    "NON_REVEALING_PROGRAMS",
    "PRINTING_PROGRAMS",
    "ROUTINE_PRINTERS",
    "copied_secrets",
    "has_confidential_word",
    "holds_secrets",
    "is_private",
    "lists_private_directory",
    "prints_secrets",
    "read_files",
    "read_secret_files",
    "reads_confidential_input",
    "secret_search_targets",
]


_FILE_READERS = split_names(
    "cat tac head tail less more most bat batcat nl strings xxd od hexdump hd base64 base32 base58 basenc "
    "zcat cut sort uniq rev fold fmt pr paste join column expand jq yq dasel uuencode ascii85 comm sdiff "
    "iconv pv dd sqlite3 unshadow"
)
_SEARCHERS = split_names("grep egrep fgrep rg ag ack sed gsed awk gawk mawk perl zgrep")
_PACKERS = split_names("tar gtar bsdtar zip 7z 7za cpio rar zstd gzip xz")
_COPIERS = split_names("cp gcp install ditto")
NON_REVEALING_PROGRAMS = split_names(
    "wc md5sum sha1sum sha256sum sha512sum cksum sum b2sum true false test [ : ls stat file chmod chown"
)


def read_files(context: RunContext) -> Iterator[Word]:
    """Yield the files whose content a program reads."""
    run = context.run
    name = run.name.lower()
    for redirect in run.redirects:
        if redirect.operator == "<":
            yield redirect.target
    if name in _FILE_READERS or name in _PACKERS:
        yield from (word for word in run.argv[1:200] if not word.startswith("-"))
        yield from (Word(w.split("=", 1)[1]) for w in run.argv[1:50] if w.startswith("if="))
    elif name == "openssl":
        yield from _printed_keys(run)
    elif name in ("curl", "wget"):
        yield from (Word(word[7:]) for word in run.argv[1:200] if word.lower().startswith("file://"))
    elif name in _SEARCHERS and not any(
        re.match("-i|--in-place|-[a-z]*i$", word) for word in _in_place_options(run, name)
    ):
        yield from [word for word in run.argv[1:200] if not word.startswith("-")][1:]


def _printed_keys(run: ProgramRun) -> Iterator[Word]:
    """Yield the private key files that an `openssl` command prints."""
    options = Options.parse(run.argv[1:], split_names("-in -out -passin"), clusters=False)
    hidden = options.has("-out", "-noout", "-pubout", "-check")
    if run.argv[1:2] and run.argv[1] in ("rsa", "pkey", "ec", "dsa", "pkcs12", "pkcs8") and not hidden:
        yield from options.values("-in")


_LISTERS = split_names("find ls tree du locate fd")


def lists_private_directory(context: RunContext) -> bool:
    """Return True if the program lists a whole home directory or the whole file system."""
    if context.run.name.lower() not in _LISTERS:
        return False
    return any(
        is_private(context.classify(word)) for word in context.run.argv[1:20] if not word.startswith("-")
    )


_SECRET_SEARCH_PATTERN = re.compile(
    r"akia|begin[ .*\\s\w]*(?:rsa|openssh|private|pgp)|aws_secret|password|passwd|secret|api.?key",
    re.IGNORECASE,
)


def secret_search_targets(context: RunContext) -> Iterator[Word]:
    """Yield the home directories, file systems or secret files in which a command searches for passwords."""
    words = [word for word in context.run.argv[1:64] if not word.startswith("-")]
    if (
        context.run.name.lower() in _SEARCHERS
        and words
        and any(_SECRET_SEARCH_PATTERN.search(word[:256]) for word in words[:2])
    ):
        whole = {PathKind.HOME, PathKind.ROOT}
        infos = [(word, context.classify(word)) for word in words[1:]]
        yield from (word for word, info in infos if whole & info.kinds or holds_secrets(info))
    elif context.run.name.lower() == "find" and not {"-exec", "-execdir", "-ok"}.isdisjoint(context.run.argv):
        for test, word in pairwise(context.run.argv[1:64]):
            if test in ("-name", "-iname", "-path") and PathKind.SECRET in context.classify(word):
                yield word


def _in_place_options(run: ProgramRun, name: str) -> tuple[Word, ...]:
    """Return the arguments of `sed` or `perl` that may include the option `-i`; empty for other programs."""
    return run.argv[1:20] if name in ("sed", "gsed", "perl") else ()


def copied_secrets(context: RunContext) -> Iterator[Word]:
    """Yield the secret files outside the project that a program copies.

    Copying a secret file such as `.env` inside a project is routine.
    """
    if context.run.name.lower() not in _COPIERS:
        return
    for word in [w for w in context.run.argv[1:200] if not w.startswith("-")][:-1]:
        path_info = context.classify(word)
        if PathKind.SECRET in path_info and PathKind.PROJECT not in path_info:
            yield word


def read_secret_files(context: RunContext) -> Iterator[Word]:
    """Yield the secret files that a program reads, except shell history, which is harmful only if sent."""
    for word in read_files(context):
        if PathKind.SECRET in context.classify(word) and not word.endswith("history"):
            yield word


_SECRET_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gh", ("auth", "token")),
    ("glab", ("auth", "token")),
    ("aws", ("configure", "get")),
    ("aws", ("configure", "export-credentials")),
    ("aws", ("secretsmanager", "get-secret-value")),
    ("aws", ("ssm", "get-parameter")),
    ("aws", ("ssm", "get-parameters")),
    ("aws", ("ecr", "get-login-password")),
    ("aws", ("sts", "get-session-token")),
    ("aws", ("iam", "create-access-key")),
    ("gcloud", ("auth", "print-access-token")),
    ("gcloud", ("auth", "print-identity-token")),
    ("gcloud", ("secrets", "versions", "access")),
    ("az", ("account", "get-access-token")),
    ("az", ("keyvault", "secret", "show")),
    ("security", ("find-generic-password",)),
    ("security", ("find-internet-password",)),
    ("security", ("dump-keychain",)),
    ("security", ("export",)),
    ("pass", ("show",)),
    ("gopass", ("show",)),
    ("op", ("read",)),
    ("op", ("item", "get")),
    ("bw", ("get",)),
    ("lpass", ("show",)),
    ("vault", ("read",)),
    ("vault", ("kv", "get")),
    ("doppler", ("secrets",)),
    ("heroku", ("config",)),
    ("heroku", ("auth:token",)),
    ("kubectl", ("get", "secret")),
    ("kubectl", ("get", "secrets")),
    ("oc", ("get", "secret")),
    ("oc", ("whoami", "-t")),
    ("kubectl", ("config", "view", "--raw")),
    ("secret-tool", ("lookup",)),
    ("npm", ("token",)),
    ("docker-credential-desktop", ("get",)),
    ("git", ("credential", "fill")),
    ("keyring", ("get",)),
    ("terraform", ("output",)),
    ("terraform", ("state", "pull")),
    ("sops", ("-d",)),
    ("sops", ("--decrypt",)),
    ("ansible-vault", ("view",)),
    ("ansible-vault", ("decrypt",)),
    ("getent", ("shadow",)),
)
_SECRET_PROGRAMS = frozenset(program for program, _ in _SECRET_COMMANDS)
DATABASE_DUMPERS = split_names(
    "mysqldump mariadb-dump pg_dump pg_dumpall mongodump mongoexport redis-dump sqlcmd expdp slapcat"
)


_CLIPBOARDS = split_names("pbpaste wl-paste xclip xsel")
# Details of the machine and its users: harmless locally, useful to an attacker elsewhere.
_MACHINE_INFO = split_names(
    "ps id uname whoami hostname ip ifconfig netstat ss lsof w who last lastlog dmesg journalctl arp route "
    "lsblk lscpu dmidecode system_profiler systeminfo ipconfig iwconfig nmcli lshw hostnamectl sw_vers"
)


# Printing these is routine; only sending the output away is harmful.
_ENVIRONMENT_PRINTERS = split_names("env set printenv export declare typeset compgen terraform history")


def has_confidential_word(words: Iterable[Word]) -> bool:
    return any(Taint.CONFIDENTIAL in word.taints for word in words)


_SECRET_FILE_NAME = re.compile(
    r"(?:.*[._-])?(?:secrets?|passwords?|passwd|credentials?|creds|private[_-]?keys?|api[_-]?keys?|tokens?)"
    r"(?:[._-].*)?(?<!\.py)(?<!\.go)(?<!\.js)(?<!\.ts)(?<!\.rs)(?<!\.java)(?<!\.md)(?<!\.html)(?<!\.css)",
    re.IGNORECASE,
)


def holds_secrets(path_info: PathInfo) -> bool:
    """Return True if programs keep credentials in files below a directory, as in `~/.config` or `~/.kube`."""
    return PathKind.SECRET in kinds_below_directory(path_info.path.strip("/").split("/"))


def is_private(path_info: PathInfo) -> bool:
    """Return True if sending a file to another machine would be harmful, even if it contains no secret."""
    if _SECRET_FILE_NAME.fullmatch(path_info.path.rpartition("/")[2][:256]):
        return True
    if path_info.kinds & {PathKind.SECRET, PathKind.HOME, PathKind.ROOT}:
        return True
    return PathKind.SYSTEM in path_info and path_info.path.startswith(("/etc", "/private/etc", "/root"))


def reads_confidential_input(run: ProgramRun) -> bool:
    return run.stdin is not None and Taint.CONFIDENTIAL in run.stdin.taints


def prints_secrets(run: ProgramRun, name: str) -> bool:
    """Return True if a program prints secrets or private data of this machine, such as the clipboard."""
    words = run.argv[1:]
    if name in DATABASE_DUMPERS or name in _MACHINE_INFO:
        return True
    if name in _CLIPBOARDS:
        return name in ("pbpaste", "wl-paste") or not {"-o", "-out", "--output"}.isdisjoint(words)
    if name == "crontab":
        return "-l" in words
    if name in ("tcpdump", "tshark", "dumpcap"):
        return any(a == "-w" and b == "-" for a, b in pairwise(words[:64])) or "-w-" in words
    if name == "printenv":
        return not words or any(is_secret_name(word) for word in words)
    if name in ("env", "set", "compgen", "history"):
        return not words
    if name in ("export", "declare", "typeset"):
        return not words or words[0] in ("-p", "-x", "-px", "-xp")
    if name in ("gpg", "gpg2"):
        return any(word.startswith("--export-secret") for word in words)
    if name == "ssh-keygen":
        return "-y" in words
    return name in _SECRET_PROGRAMS and any(
        name == program and _contains_in_order(words, verbs) for program, verbs in _SECRET_COMMANDS
    )


def _contains_in_order(words: tuple[Word, ...], verbs: tuple[str, ...]) -> bool:
    """Return True if the first arguments contain the given subcommands in the given order."""
    wanted = iter(verbs)
    verb = next(wanted)
    for word in words[:12]:
        if word == verb or word.startswith(verb + "/"):
            following = next(wanted, None)
            if following is None:
                return True
            verb = following
    return False


ROUTINE_PRINTERS = (
    DATABASE_DUMPERS
    | _ENVIRONMENT_PRINTERS
    | _MACHINE_INFO
    | _CLIPBOARDS
    | split_names("tcpdump tshark dumpcap crontab")
)
PRINTING_PROGRAMS = (
    _FILE_READERS | _SEARCHERS | _PACKERS | _COPIERS | _SECRET_PROGRAMS | ROUTINE_PRINTERS
) | split_names("gpg gpg2 ssh-keygen echo printf print curl wget openssl find ls tree du locate fd")
