"""Which files and secrets a program takes in and shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from shellverdict.effects.scene import Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place, Where
from shellverdict.shell.runs import Mark, Run
from shellverdict.shell.secret_names import secret_name
from shellverdict.shell.words import Word

__all__ = [
    "COUNTERS",
    "DUMPS",
    "SHOWING",
    "UNREMARKABLE",
    "any_confidential",
    "copied_elsewhere",
    "lists_private",
    "private",
    "read_files",
    "secret_files",
    "sought",
    "taken_in",
    "tells_secrets",
]


_READERS = names(
    "cat tac head tail less more most bat batcat nl strings xxd od hexdump hd base64 base32 base58 basenc "
    "zcat cut sort uniq rev fold fmt pr paste join column expand jq yq dasel uuencode ascii85 comm sdiff "
    "iconv pv dd sqlite3 unshadow"
)
_SEARCHERS = names("grep egrep fgrep rg ag ack sed gsed awk gawk mawk perl zgrep")
_PACKERS = names("tar gtar bsdtar zip 7z 7za cpio rar zstd gzip xz")
_COPIERS = names("cp gcp install ditto")
COUNTERS = names(
    "wc md5sum sha1sum sha256sum sha512sum cksum sum b2sum true false test [ : ls stat file chmod chown"
)


def read_files(scene: Scene) -> Iterator[Word]:
    """The files whose content a program takes in."""
    run = scene.run
    name = run.name.lower()
    for redirect in run.redirects:
        if redirect.operator == "<":
            yield redirect.target
    if name in _READERS or name in _PACKERS:
        yield from (word for word in run.argv[1:200] if not word.startswith("-"))
        yield from (Word(w.split("=", 1)[1]) for w in run.argv[1:50] if w.startswith("if="))
    elif name == "openssl":
        yield from _keys_shown(run)
    elif name in ("curl", "wget"):
        yield from (Word(word[7:]) for word in run.argv[1:200] if word.lower().startswith("file://"))
    elif name in _SEARCHERS and not any(
        re.match("-i|--in-place|-[a-z]*i$", word) for word in _edits(run, name)
    ):
        yield from [word for word in run.argv[1:200] if not word.startswith("-")][1:]


def _keys_shown(run: Run) -> Iterator[Word]:
    options = Options.read(run.argv[1:], names("-in -out -passin"), clusters=False)
    hidden = options.has("-out", "-noout", "-pubout", "-check")
    if run.argv[1:2] and run.argv[1] in ("rsa", "pkey", "ec", "dsa", "pkcs12", "pkcs8") and not hidden:
        yield from options.values("-in")


_LISTERS = names("find ls tree du locate fd")


def lists_private(scene: Scene) -> bool:
    """Whether it tells what is in a whole home or on a whole machine."""
    if scene.run.name.lower() not in _LISTERS:
        return False
    return any(private(scene.where(word)) for word in scene.run.argv[1:20] if not word.startswith("-"))


_SOUGHT = re.compile(
    r"akia|begin[ .*\\s\w]*(?:rsa|openssh|private|pgp)|aws_secret|password|passwd|secret|api.?key",
    re.IGNORECASE,
)


def sought(scene: Scene) -> Iterator[Word]:
    """A whole home or machine that is searched for secrets."""
    words = [word for word in scene.run.argv[1:64] if not word.startswith("-")]
    if (
        scene.run.name.lower() in _SEARCHERS
        and words
        and any(_SOUGHT.search(word[:256]) for word in words[:2])
    ):
        whole = {Place.HOME, Place.ROOT}
        yield from (word for word in words[1:] if whole & scene.where(word).places)
    elif scene.run.name.lower() == "find" and not {"-exec", "-execdir", "-ok"}.isdisjoint(scene.run.argv):
        for test, word in pairwise(scene.run.argv[1:64]):
            if test in ("-name", "-iname", "-path") and Place.SECRET in scene.where(word):
                yield word


def _edits(run: Run, name: str) -> tuple[Word, ...]:
    """The options among which an in-place one would be; for others `-i` means upper and lower case."""
    return run.argv[1:20] if name in ("sed", "gsed", "perl") else ()


def copied_elsewhere(scene: Scene) -> Iterator[Word]:
    """Secrets that leave the place where they belong; an `.env` is copied within a project every day."""
    if scene.run.name.lower() not in _COPIERS:
        return
    for word in [w for w in scene.run.argv[1:200] if not w.startswith("-")][:-1]:
        where = scene.where(word)
        if Place.SECRET in where and Place.PROJECT not in where:
            yield word


def secret_files(scene: Scene) -> Iterator[Word]:
    """What nobody should look at; people look at their own history, so that only sending it away counts."""
    for word in read_files(scene):
        if Place.SECRET in scene.where(word) and not word.endswith("history"):
            yield word


_TELLS: tuple[tuple[str, tuple[str, ...]], ...] = (
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
_TELLERS = frozenset(program for program, _ in _TELLS)
DUMPS = names(
    "mysqldump mariadb-dump pg_dump pg_dumpall mongodump mongoexport redis-dump sqlcmd expdp slapcat"
)


_CLIPBOARDS = names("pbpaste wl-paste xclip xsel")
# What a machine is and who works on it: nothing to hide from those who sit there, a find for others.
_OF_THE_MACHINE = names(
    "ps id uname whoami hostname ip ifconfig netstat ss lsof w who last lastlog dmesg journalctl arp route "
    "lsblk lscpu dmidecode system_profiler systeminfo ipconfig iwconfig nmcli lshw hostnamectl sw_vers"
)


# Everybody looks at these; only where the words go can make it wrong.
_SURROUNDINGS = names("env set printenv export declare typeset compgen terraform history")


def any_confidential(words: Iterable[Word]) -> bool:
    return any(Mark.CONFIDENTIAL in word.marks for word in words)


_SPOKEN_OF = re.compile(
    r"(?:.*[._-])?(?:secrets?|passwords?|passwd|credentials?|creds|private[_-]?keys?|api[_-]?keys?|tokens?)"
    r"(?:[._-].*)?(?<!\.py)(?<!\.go)(?<!\.js)(?<!\.ts)(?<!\.rs)(?<!\.java)(?<!\.md)(?<!\.html)(?<!\.css)",
    re.IGNORECASE,
)


def private(where: Where) -> bool:
    """Whether nobody outside should have it: more than what nobody should look at."""
    if _SPOKEN_OF.fullmatch(where.path.rpartition("/")[2][:256]):
        return True
    if where.places & {Place.SECRET, Place.HOME, Place.ROOT}:
        return True
    return Place.SYSTEM in where and where.path.startswith(("/etc", "/private/etc", "/root"))


def taken_in(run: Run) -> bool:
    return run.stdin is not None and Mark.CONFIDENTIAL in run.stdin.marks


def tells_secrets(run: Run, name: str) -> bool:
    words = run.argv[1:]
    if name in DUMPS or name in _OF_THE_MACHINE:
        return True
    if name in _CLIPBOARDS:
        return name in ("pbpaste", "wl-paste") or not {"-o", "-out", "--output"}.isdisjoint(words)
    if name == "crontab":
        return "-l" in words
    if name in ("tcpdump", "tshark", "dumpcap"):
        return any(a == "-w" and b == "-" for a, b in pairwise(words[:64])) or "-w-" in words
    if name == "printenv":
        return not words or any(secret_name(word) for word in words)
    if name in ("env", "set", "compgen", "history"):
        return not words
    if name in ("export", "declare", "typeset"):
        return not words or words[0] in ("-p", "-x", "-px", "-xp")
    if name in ("gpg", "gpg2"):
        return any(word.startswith("--export-secret") for word in words)
    if name == "ssh-keygen":
        return "-y" in words
    return name in _TELLERS and any(name == program and _begins(words, verbs) for program, verbs in _TELLS)


def _begins(words: tuple[Word, ...], verbs: tuple[str, ...]) -> bool:
    """The verbs in order among the first words, options between them skipped."""
    wanted = iter(verbs)
    verb = next(wanted)
    for word in words[:12]:
        if word == verb or word.startswith(verb + "/"):
            following = next(wanted, None)
            if following is None:
                return True
            verb = following
    return False


UNREMARKABLE = DUMPS | _SURROUNDINGS | _OF_THE_MACHINE | _CLIPBOARDS | names("tcpdump tshark dumpcap crontab")
SHOWING = (_READERS | _SEARCHERS | _PACKERS | _COPIERS | _TELLERS | UNREMARKABLE) | names(
    "gpg gpg2 ssh-keygen echo printf print curl wget openssl find ls tree du locate fd"
)
