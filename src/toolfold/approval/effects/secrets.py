"""Keys, tokens and passwords read, and sent away.

`confidential` says that what a run prints is secret, so that whoever follows the pipe can mark it;
`payloads` says which words a run hands to another machine, so that whoever knows where a word comes from can
judge it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from toolfold.approval.effects.scene import Scene, names
from toolfold.approval.options import Options
from toolfold.approval.places import Place, Places, Where
from toolfold.approval.shell.runs import Mark, Run
from toolfold.approval.shell.words import Word
from toolfold.approval.verdict import Effect, Kind

__all__ = ["confidential", "payloads", "secret_effects", "secret_name"]

_ANYWHERE = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "APIKEY", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")
_LAST_WORDS = names("TOKEN KEY PASS PAT DSN CREDENTIAL CREDENTIALS COOKIE AUTH")
_WHOLE_NAMES = names("DATABASE_URL REDIS_URL MONGO_URI MONGO_URL MONGODB_URI MONGODB_URL PGPASS MYSQL_PWD")


def secret_name(name: str) -> bool:
    """Whether a variable of this name holds what nobody else should know."""
    upper = name[:128].upper()
    if upper in _WHOLE_NAMES or any(part in upper for part in _ANYWHERE):
        return True
    return upper.rpartition("_")[2] in _LAST_WORDS


# --- what is read ----------------------------------------------------------------------------------------

_READERS = names(
    "cat tac head tail less more most bat batcat nl strings xxd od hexdump hd base64 base32 base58 basenc "
    "zcat cut sort uniq rev fold fmt pr paste join column expand jq yq dasel uuencode ascii85 comm sdiff "
    "iconv pv dd sqlite3 unshadow"
)
_SEARCHERS = names("grep egrep fgrep rg ag ack sed gsed awk gawk mawk perl zgrep")
_PACKERS = names("tar gtar bsdtar zip 7z 7za cpio rar zstd gzip xz")
_COPIERS = names("cp gcp install ditto")
_COUNTERS = names(
    "wc md5sum sha1sum sha256sum sha512sum cksum sum b2sum true false test [ : ls stat file chmod chown"
)


def _read_files(scene: Scene) -> Iterator[Word]:
    """The files whose content a program takes in."""
    run = scene.run
    name = run.name.lower()
    for redirect in run.redirects:
        if redirect.operator == "<":
            yield redirect.target
    if name in _READERS or name in _PACKERS:
        yield from (word for word in run.argv[1:200] if not word.startswith("-"))
        yield from (Word(w.split("=", 1)[1]) for w in run.argv[1:50] if w.startswith("if="))
    elif name in ("curl", "wget"):
        yield from (Word(word[7:]) for word in run.argv[1:200] if word.lower().startswith("file://"))
    elif name in _SEARCHERS and not any(
        re.match("-i|--in-place|-[a-z]*i$", word) for word in _edits(run, name)
    ):
        yield from [word for word in run.argv[1:200] if not word.startswith("-")][1:]


def _edits(run: Run, name: str) -> tuple[Word, ...]:
    """The options among which an in-place one would be; for others `-i` means upper and lower case."""
    return run.argv[1:20] if name in ("sed", "gsed", "perl") else ()


def _copied_elsewhere(scene: Scene) -> Iterator[Word]:
    """Secrets that leave the place where they belong; an `.env` is copied within a project every day."""
    if scene.run.name.lower() not in _COPIERS:
        return
    for word in [w for w in scene.run.argv[1:200] if not w.startswith("-")][:-1]:
        where = scene.where(word)
        if Place.SECRET in where and Place.PROJECT not in where:
            yield word


def _secret_files(scene: Scene) -> Iterator[Word]:
    for word in _read_files(scene):
        if Place.SECRET in scene.where(word):
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
_DUMPS = names(
    "mysqldump mariadb-dump pg_dump pg_dumpall mongodump mongoexport redis-dump sqlcmd expdp slapcat"
)


# Everybody looks at these; only where the words go can make it wrong.
_SURROUNDINGS = names("env set printenv export declare typeset compgen terraform history")


def confidential(run: Run, places: Places) -> bool:
    """Whether what this run prints is a secret, as far as its words tell."""
    scene = Scene(run, places.away() if run.elsewhere else places)
    name = run.name.lower()
    if name in _COUNTERS or not _concerned(run, name):
        return False
    if _taken_in(run):
        return not _SENDERS_ONLY & {name}
    if name in ("echo", "printf", "print") and _any_confidential(run.argv):
        return True
    return _tells_secrets(run, name) or any(_private(scene.where(word)) for word in _read_files(scene))


def _any_confidential(words: Iterable[Word]) -> bool:
    return any(Mark.CONFIDENTIAL in word.marks for word in words)


def _private(where: Where) -> bool:
    """Whether nobody outside should have it: more than what nobody should look at."""
    if where.places & {Place.SECRET, Place.HOME, Place.ROOT}:
        return True
    return Place.SYSTEM in where and where.path.startswith(("/etc", "/private/etc", "/root"))


def _taken_in(run: Run) -> bool:
    return run.stdin is not None and Mark.CONFIDENTIAL in run.stdin.marks


def _tells_secrets(run: Run, name: str) -> bool:
    words = run.argv[1:]
    if name in _DUMPS:
        return True
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


# --- what is sent ----------------------------------------------------------------------------------------

_SENDERS_ONLY = names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail curl wget http https "
    "xh httpie ftp tftp sftp lftp ssh aws gsutil gh websocat croc wormhole"
)
_PIPES_OUT = names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail ftp websocat ssh"
)
_LOOKUPS = names("dig nslookup host drill ping ping6 traceroute")
_CURL_BODIES = names(
    "-d --data --data-ascii --data-binary --data-raw --data-urlencode -F --form --form-string --json "
    "--url-query"
)
_CURL_VALUES = _CURL_BODIES | names(
    "-T --upload-file -H --header -X --request -o --output -u --user -A --user-agent -e --referer -b "
    "--cookie -c --cookie-jar -K --config -x --proxy -m --max-time --connect-timeout -w --write-out "
    "--retry --output-dir --cacert -E --cert --key --resolve --interface --url -r --range -D "
    "--dump-header --stderr --trace --trace-ascii"
)
_STDIN = ("-", ".", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_FILE = re.compile("(?:FILE|OPEN|GOPEN|CREATE):", re.IGNORECASE)
_METADATA = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.2|100\.100\.100\.200|metadata\.google\.internal|metadata\.azure|"
    r"fd00:ec2::254|::ffff:a9fe:a9fe|(?:^|//)(?:2852039166|0xa9fea9fe|0xa9\.0xfe|0251\.0376|169\.254\.43518)",
    re.IGNORECASE,
)
_UPLOADERS = names(
    "scp rsync sftp rclone gsutil docker kubectl podman aws s3cmd mc az gcloud s5cmd b2 gh glab mutt croc "
    "wormhole magic-wormhole ffsend transfer"
)
_FETCHERS = names("curl wget http https xh httpie fetch nc ncat lynx w3m links aria2c lwp-request GET POST")


def payloads(run: Run) -> Iterator[Word]:
    """The words of a run that another machine receives as content: bodies, addresses, names looked up.

    Headers and logins are left out: a token sent there is what tokens are for.
    """
    name = run.name.lower()
    if name == "curl":
        options = Options.read(run.argv, _CURL_VALUES, abbreviated=False)
        yield from options.values(*_CURL_BODIES, "-T", "--upload-file", "--url")
        yield from options.operands
    elif name == "wget":
        options = Options.read(
            run.argv, names("-O -o -P --header --post-data --post-file --body-data --body-file")
        )
        yield from options.values("--post-data", "--body-data", "--post-file", "--body-file")
        yield from options.operands
    elif name in _LOOKUPS or name in ("mail", "mailx", "http", "https", "xh", "httpie", "telnet"):
        yield from run.argv[1:]


def _files_sent(scene: Scene) -> Iterator[Word]:
    """The files whose content leaves, `-` for what flows in."""
    run = scene.run
    name = run.name.lower()
    if name == "curl":
        yield from _sent_by_curl(run)
    elif name == "wget":
        options = Options.read(
            run.argv, names("-O -o -P --header --post-data --post-file --body-data --body-file")
        )
        yield from options.values("--post-file", "--body-file")
    elif name in ("http", "https", "xh", "httpie"):
        yield from (Word(word.rpartition("@")[2]) for word in run.argv[1:] if "@" in word)
        yield Word("-")
    elif name in ("scp", "rsync", "sftp", "rclone", "gsutil", "docker", "kubectl", "podman"):
        yield from _copied_away(run)
    elif name in ("aws", "s3cmd", "mc", "az", "gcloud", "s5cmd", "b2"):
        yield from _uploaded(run)
    elif name in ("gh", "glab") and len(run.argv) > 2 and run.argv[1] in ("gist", "snippet", "release"):
        yield from run.argv[2:]
    elif name in ("mail", "mailx", "mutt", "s-nail", "swaks"):
        yield from Options.read(run.argv, names("-a -A -s -c -b -r -S --attach")).values(
            "-a", "-A", "--attach"
        )
        yield Word("-")
    elif name in ("croc", "wormhole", "magic-wormhole", "ffsend", "transfer"):
        yield from run.argv[1:]
    elif name in ("ftp", "tftp", "lftp", "ncftpput"):
        yield from (Word(part) for word in run.argv[1:32] for part in word.split()[:32])
        yield Word("-")
    elif name == "socat":
        yield from (
            Word(word.partition(":")[2].partition(",")[0]) for word in run.argv[1:] if _FILE.match(word)
        )
        yield Word("-")
    elif name in _PIPES_OUT:
        yield Word("-")
    elif "http.server" in run.argv[1:4]:
        yield (
            Options.read(run.argv[2:], names("-d --directory -b --bind -p")).value("-d", "--directory")
            or run.cwd
        )
    if any(Place.NETWORK in scene.where(r.target) for r in run.redirects[:64] if r.writes):
        yield Word("-")
        yield from _read_files(scene)


def _sent_by_curl(run: Run) -> Iterator[Word]:
    options = Options.read(run.argv, _CURL_VALUES, abbreviated=False)
    for value in options.values(*(_CURL_BODIES - {"--data-raw", "--form-string"})):
        _, at, path = value.partition("@")
        if at:
            yield Word(path.partition(";")[0])
        elif "=<" in value:
            yield Word(value.partition("=<")[2])
    yield from options.values("-T", "--upload-file")


_TRANSFER_VALUES = names(
    "-i -F -o -P -J -c -l -S -e --rsh --exclude --include --password-file --kubeconfig -n --namespace "
    "--container --context --config --profile --region --endpoint-url --exclude-from --files-from "
    "--rsync-path"
)


def _copied_away(run: Run) -> Iterator[Word]:
    clustered = run.name not in ("scp", "sftp")
    values = _TRANSFER_VALUES - names("-o -c -l -S -P -i -F -J") if clustered else _TRANSFER_VALUES
    words = Options.read(run.argv, values, abbreviated=False).operands
    if run.name in ("docker", "kubectl", "podman") and "cp" not in words[:4]:
        return
    if words and (":" in words[-1] or run.name == "sftp"):
        yield from words[:-1]


def _uploaded(run: Run) -> Iterator[Word]:
    words = Options.read(run.argv, names("--profile --region --endpoint-url"), abbreviated=False).operands
    if words and re.match(r"(?:s3|gs|b2)://|[\w-]+/[\w-]+$", words[-1]):
        yield from words[:-1]
    elif "upload" in words or "put-object" in words or "upload-batch" in words:
        yield from words


_CONCERNED = (
    (
        _READERS
        | _SEARCHERS
        | _PACKERS
        | _COPIERS
        | _TELLERS
        | _DUMPS
        | _SURROUNDINGS
        | _SENDERS_ONLY
        | _PIPES_OUT
    )
    | (_LOOKUPS | _FETCHERS | _UPLOADERS)
    | names("gpg gpg2 ssh-keygen echo printf print python python3 lftp ncftpput")
)


def _concerned(run: Run, name: str) -> bool:
    """Most programs neither show nor send; they are let go at once."""
    return name in _CONCERNED or bool(run.redirects) or _taken_in(run)


def secret_effects(scene: Scene) -> Iterator[Effect]:
    """Secrets read, secrets sent, and the address at which clouds hand out secrets."""
    run = scene.run
    if not _concerned(run, run.name.lower()):
        return
    sent = list(_files_sent(scene))[:400]
    flows_in = any(word in _STDIN for word in sent)
    redirected = [r.target for r in run.redirects if r.operator == "<" and flows_in]
    for word in (*sent, *redirected):
        if word in _STDIN:
            if _taken_in(run):
                yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
            continue
        where = scene.where(word)
        if _private(where):
            yield scene.effect(Kind.EXFILTRATE, "network", *where.traits, target=where.path)
    if _any_confidential(payloads(run)):
        yield scene.effect(Kind.EXFILTRATE, "network", "in:secret")
    if not sent:
        for word in (*_secret_files(scene), *_copied_elsewhere(scene)):
            where = scene.where(word)
            yield scene.effect(Kind.DISCLOSE, *where.traits, target=where.path)
        if _tells_secrets(run, run.name.lower()) and run.name not in _DUMPS | _SURROUNDINGS:
            system = ("in:secret", "in:system") if run.name == "getent" else ("told",)
            yield scene.effect(Kind.DISCLOSE, *system)
    if run.name.lower() in _FETCHERS and any(_METADATA.search(word) for word in run.argv[1:64]):
        yield scene.effect(Kind.DISCLOSE, "metadata", "network", "in:secret")
