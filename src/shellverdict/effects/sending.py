"""Which files and words a program hands to another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.disclosing import read_files
from shellverdict.effects.hosts import here, host
from shellverdict.effects.scene import Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.places import Place
from shellverdict.shell.runs import Run
from shellverdict.shell.words import GAP, Word

__all__ = [
    "CURL_BODIES",
    "CURL_VALUES",
    "SENDERS",
    "SENDING",
    "asks_for_metadata",
    "files_sent",
    "payloads",
]


SENDERS = names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail curl wget http https "
    "xh httpie ftp tftp sftp lftp ssh aws gsutil gh websocat croc wormhole"
)
_PIPES_OUT = names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail ftp websocat ssh sbd "
    "cryptcat wscat mosquitto_pub kcat kafkacat"
)
_LOOKUPS = names("dig nslookup host drill ping ping6 traceroute")
CURL_BODIES = names(
    "-d --data --data-ascii --data-binary --data-raw --data-urlencode -F --form --form-string --json "
    "--url-query"
)
CURL_VALUES = CURL_BODIES | names(
    "-T --upload-file -H --header -X --request -o --output -u --user -A --user-agent -e --referer -b "
    "--cookie -c --cookie-jar -K --config -x --proxy -m --max-time --connect-timeout -w --write-out "
    "--retry --output-dir --cacert -E --cert --key --resolve --interface --url -r --range -D "
    "--dump-header --stderr --trace --trace-ascii"
)
_WHO_ASKS = re.compile(
    r"[\w-]*(?:auth|token|key|secret|password|cookie|session|signature|credential)", re.IGNORECASE
)
_TOLD = names(
    "finger whois snmptrap snmpget ldapsearch rlogin rsh rexec logger mosquitto_pub kcat kafkacat grpcurl "
    "websocat amqp-publish nats wscat w3m lynx links elinks"
)
_KEEPERS = names("restic rustic borg duplicity kopia duplicacy attic bup rdiff-backup tarsnap")
_KEPT_AFAR = re.compile(
    r"(?:sftp|ssh|s3|b2|gs|azure|rest|swift|rclone|ftp|http|https|webdavs?|scp|par2\+\w+):\S|[^/]+@[^/]+:"
)
_FILE = re.compile("(?:FILE|OPEN|GOPEN|CREATE):", re.IGNORECASE)
_BARE_FILE = re.compile("(?:[~.]{0,2}/|[\\w-]+/)[^:]*(?:,|\\Z)")
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

    Logins are left out, and headers by which a server knows who asks: a token sent there is what tokens
    are for.
    """
    name = run.name.lower()
    if name == "curl":
        options = Options.read(run.argv, CURL_VALUES, abbreviated=False)
        if _to_itself(*options.operands, *options.values("--url")):
            return
        yield from options.values(*CURL_BODIES, "-T", "--upload-file", "--url")
        yield from (word for word in options.values("-H", "--header") if not _WHO_ASKS.match(word))
        yield from options.operands
    elif name == "wget":
        options = Options.read(
            run.argv, names("-O -o -P --header --post-data --post-file --body-data --body-file")
        )
        if _to_itself(*options.operands):
            return
        yield from options.values("--post-data", "--body-data", "--post-file", "--body-file")
        yield from options.operands
    elif name in _LOOKUPS:
        yield from (word for word in run.argv[1:] if "." in word.partition(GAP)[2])
    elif name in _TOLD or name in ("mail", "mailx", "http", "https", "xh", "httpie", "telnet"):
        yield from run.argv[1:]


def _to_itself(*addresses: Word) -> bool:
    return bool(addresses) and all(here(host(address)) for address in addresses)


def files_sent(scene: Scene) -> Iterator[Word]:
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
    elif name == "logger":
        options = Options.read(run.argv, names("-n --server -P --port -f --file -p -t -u -i"))
        yield from options.values("-f", "--file") if options.has("-n", "--server") else ()
    elif name in _KEEPERS:
        yield from run.argv[1:] if any(_KEPT_AFAR.match(word[:256]) for word in run.argv[1:32]) else ()
    elif name in ("croc", "wormhole", "magic-wormhole", "ffsend", "transfer"):
        yield from run.argv[1:]
    elif name in ("ftp", "tftp", "lftp", "ncftpput", "smbclient"):
        yield from (Word(part) for word in run.argv[1:32] for part in word.split()[:32])
        yield Word("-")
    elif name == "socat":
        yield from (
            Word(word.partition(":")[2].partition(",")[0]) for word in run.argv[1:] if _FILE.match(word)
        )
        yield from (Word(word.partition(",")[0]) for word in run.argv[1:] if _BARE_FILE.match(word))
        yield Word("-")
    elif name in _PIPES_OUT or (name == "openssl" and run.argv[1:2] == ("s_client",)):
        yield Word("-")
    elif name in _SERVERS:
        yield from _served(run, name)
    elif "http.server" in run.argv[1:4]:
        yield (
            Options.read(run.argv[2:], names("-d --directory -b --bind -p")).value("-d", "--directory")
            or run.cwd
        )
    if any(Place.NETWORK in scene.where(r.target) for r in run.redirects[:64] if r.writes):
        yield Word("-")
        yield from read_files(scene)


_SERVERS = names(
    "serve http-server live-server miniserve dufs darkhttpd webfsd httpd php caddy simple-http-server"
)


def _served(run: Run, name: str) -> Iterator[Word]:
    """What a server of files shows to whoever asks."""
    options = Options.read(run.argv, names("-p --port -l --listen -S -t -h -r --root -a -i"))
    if name == "php":
        yield from options.values("-t") if options.has("-S") else ()
    elif name in ("httpd", "webfsd", "caddy"):
        yield from options.values("-h", "-r", "--root")
    else:
        yield from options.operands


def _sent_by_curl(run: Run) -> Iterator[Word]:
    options = Options.read(run.argv, CURL_VALUES, abbreviated=False)
    for value in options.values(*(CURL_BODIES - {"--data-raw", "--form-string"})):
        _, at, path = value.partition("@")
        if at:
            yield Word(path.partition(";")[0])
        elif "=<" in value:
            yield Word(value.partition("=<")[2])
    yield from (Word("-") if word == "." else word for word in options.values("-T", "--upload-file"))


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
    elif "put-object" in words or any(word.startswith("upload") for word in words[:4]):
        yield from words


def asks_for_metadata(run: Run) -> bool:
    """Whether it fetches from the address at which clouds hand out secrets."""
    return run.name.lower() in _FETCHERS and any(_METADATA.search(word) for word in run.argv[1:64])


SENDING = (
    SENDERS
    | _TOLD
    | _KEEPERS
    | _PIPES_OUT
    | _LOOKUPS
    | _FETCHERS
    | _UPLOADERS
    | _SERVERS
    | {"openssl"}
    | names("python python3 lftp ncftpput smbclient")
)
