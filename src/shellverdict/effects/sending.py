"""Find the files and arguments that a program sends to another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.disclosing import read_files
from shellverdict.effects.hosts import is_loopback_host, parse_host
from shellverdict.effects.run_context import RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.paths import PathKind
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import GAP, Word

__all__ = [
    "CURL_BODIES",
    "CURL_VALUES",
    "PROGRAMS_THAT_MAY_SEND",
    "SENDING_PROGRAMS",
    "fetches_cloud_metadata",
    "sent_files",
    "sent_words",
]


SENDING_PROGRAMS = split_names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail curl wget http https "
    "xh httpie ftp tftp sftp lftp ssh aws gsutil gh websocat croc wormhole"
)
_STDIN_SENDERS = split_names(
    "nc ncat netcat socat telnet mail mailx sendmail mutt msmtp ssmtp swaks s-nail ftp websocat ssh sbd "
    "cryptcat wscat mosquitto_pub kcat kafkacat"
)
_LOOKUPS = split_names("dig nslookup host drill ping ping6 traceroute")
CURL_BODIES = split_names(
    "-d --data --data-ascii --data-binary --data-raw --data-urlencode -F --form --form-string --json "
    "--url-query"
)
CURL_VALUES = CURL_BODIES | split_names(
    "-T --upload-file -H --header -X --request -o --output -u --user -A --user-agent -e --referer -b "
    "--cookie -c --cookie-jar -K --config -x --proxy -m --max-time --connect-timeout -w --write-out "
    "--retry --output-dir --cacert -E --cert --key --resolve --interface --url -r --range -D "
    "--dump-header --stderr --trace --trace-ascii"
)
_CREDENTIAL_HEADER = re.compile(
    r"[\w-]*(?:auth|token|key|secret|password|cookie|session|signature|credential)", re.IGNORECASE
)
_ARGUMENT_SENDERS = split_names(
    "finger whois snmptrap snmpget ldapsearch rlogin rsh rexec logger mosquitto_pub kcat kafkacat grpcurl "
    "websocat amqp-publish nats wscat w3m lynx links elinks"
)
_BACKUP_PROGRAMS = split_names("restic rustic borg duplicity kopia duplicacy attic bup rdiff-backup tarsnap")
_REMOTE_BACKUP = re.compile(
    r"(?:sftp|ssh|s3|b2|gs|azure|rest|swift|rclone|ftp|http|https|webdavs?|scp|par2\+\w+):\S|[^/]+@[^/]+:"
)
_SOCAT_FILE = re.compile("(?:FILE|OPEN|GOPEN|CREATE):", re.IGNORECASE)
_SOCAT_PATH = re.compile("(?:[~.]{0,2}/|[\\w-]+/)[^:]*(?:,|\\Z)")
_METADATA_ADDRESS = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.2|100\.100\.100\.200|metadata\.google\.internal|metadata\.azure|"
    r"fd00:ec2::254|::ffff:a9fe:a9fe|(?:^|//)(?:2852039166|0xa9fea9fe|0xa9\.0xfe|0251\.0376|169\.254\.43518)",
    re.IGNORECASE,
)
_UPLOADERS = split_names(
    "scp rsync sftp rclone gsutil docker kubectl podman aws s3cmd mc az gcloud s5cmd b2 gh glab mutt croc "
    "wormhole magic-wormhole ffsend transfer"
)
_FETCHERS = split_names(
    "curl wget http https xh httpie fetch nc ncat lynx w3m links aria2c lwp-request GET POST"
)


def sent_words(run: ProgramRun) -> Iterator[Word]:
    """Yield the arguments that are sent to another machine: request bodies, URLs, names looked up in DNS.

    Logins and authentication headers are not included, because they are meant to contain a token.
    """
    name = run.name.lower()
    if name == "curl":
        options = Options.parse(run.argv, CURL_VALUES, abbreviated=False)
        if _is_local_request(*options.operands, *options.values("--url")):
            return
        yield from options.values(*CURL_BODIES, "-T", "--upload-file", "--url")
        yield from (word for word in options.values("-H", "--header") if not _CREDENTIAL_HEADER.match(word))
        yield from options.operands
    elif name == "wget":
        options = Options.parse(
            run.argv, split_names("-O -o -P --header --post-data --post-file --body-data --body-file")
        )
        if _is_local_request(*options.operands):
            return
        yield from options.values("--post-data", "--body-data", "--post-file", "--body-file")
        yield from options.operands
    elif name in _LOOKUPS:
        yield from (word for word in run.argv[1:] if "." in word.partition(GAP)[2])
    elif name in _ARGUMENT_SENDERS or name in ("mail", "mailx", "http", "https", "xh", "httpie", "telnet"):
        yield from run.argv[1:]


def _is_local_request(*addresses: Word) -> bool:
    """Return True if all addresses in a request belong to this machine."""
    return bool(addresses) and all(is_loopback_host(parse_host(address)) for address in addresses)


def sent_files(context: RunContext) -> Iterator[Word]:
    """Yield the files whose content a program sends to another machine; `-` is standard input."""
    run = context.run
    name = run.name.lower()
    if name == "curl":
        yield from _curl_files(run)
    elif name == "wget":
        options = Options.parse(
            run.argv, split_names("-O -o -P --header --post-data --post-file --body-data --body-file")
        )
        yield from options.values("--post-file", "--body-file")
    elif name in ("http", "https", "xh", "httpie"):
        yield from (Word(word.rpartition("@")[2]) for word in run.argv[1:] if "@" in word)
        yield Word("-")
    elif name in ("scp", "rsync", "sftp", "rclone", "gsutil", "docker", "kubectl", "podman"):
        yield from _remote_copy_sources(run)
    elif name in ("aws", "s3cmd", "mc", "az", "gcloud", "s5cmd", "b2"):
        yield from _cloud_upload_sources(run)
    elif name in ("gh", "glab") and len(run.argv) > 2 and run.argv[1] in ("gist", "snippet", "release"):
        yield from run.argv[2:]
    elif name in ("mail", "mailx", "mutt", "s-nail", "swaks"):
        yield from Options.parse(run.argv, split_names("-a -A -s -c -b -r -S --attach")).values(
            "-a", "-A", "--attach"
        )
        yield Word("-")
    elif name == "logger":
        options = Options.parse(run.argv, split_names("-n --server -P --port -f --file -p -t -u -i"))
        yield from options.values("-f", "--file") if options.has("-n", "--server") else ()
    elif name in _BACKUP_PROGRAMS:
        yield from run.argv[1:] if any(_REMOTE_BACKUP.match(word[:256]) for word in run.argv[1:32]) else ()
    elif name in ("croc", "wormhole", "magic-wormhole", "ffsend", "transfer"):
        yield from run.argv[1:]
    elif name in ("ftp", "tftp", "lftp", "ncftpput", "smbclient"):
        yield from (Word(part) for word in run.argv[1:32] for part in word.split()[:32])
        yield Word("-")
    elif name == "socat":
        yield from (
            Word(word.partition(":")[2].partition(",")[0]) for word in run.argv[1:] if _SOCAT_FILE.match(word)
        )
        yield from (Word(word.partition(",")[0]) for word in run.argv[1:] if _SOCAT_PATH.match(word))
        yield Word("-")
    elif name in _STDIN_SENDERS or (name == "openssl" and run.argv[1:2] == ("s_client",)):
        yield Word("-")
    elif name in _SERVERS:
        yield from _served_directories(run, name)
    elif "http.server" in run.argv[1:4]:
        yield (
            Options.parse(run.argv[2:], split_names("-d --directory -b --bind -p")).value("-d", "--directory")
            or run.cwd
        )
    if any(PathKind.NETWORK in context.classify(r.target) for r in run.redirects[:64] if r.is_output):
        yield Word("-")
        yield from read_files(context)


_SERVERS = split_names(
    "serve http-server live-server miniserve dufs darkhttpd webfsd httpd php caddy simple-http-server"
)


def _served_directories(run: ProgramRun, name: str) -> Iterator[Word]:
    """Yield the directories that a file server, such as `python -m http.server`, makes available."""
    options = Options.parse(run.argv, split_names("-p --port -l --listen -S -t -h -r --root -a -i"))
    if name == "php":
        yield from options.values("-t") if options.has("-S") else ()
    elif name in ("httpd", "webfsd", "caddy"):
        yield from options.values("-h", "-r", "--root")
    else:
        yield from options.operands


def _curl_files(run: ProgramRun) -> Iterator[Word]:
    options = Options.parse(run.argv, CURL_VALUES, abbreviated=False)
    for value in options.values(*(CURL_BODIES - {"--data-raw", "--form-string"})):
        _, at, path = value.partition("@")
        if at:
            yield Word(path.partition(";")[0])
        elif "=<" in value:
            yield Word(value.partition("=<")[2])
    yield from (Word("-") if word == "." else word for word in options.values("-T", "--upload-file"))


_TRANSFER_VALUES = split_names(
    "-i -F -o -P -J -c -l -S -e --rsh --exclude --include --password-file --kubeconfig -n --namespace "
    "--container --context --config --profile --region --endpoint-url --exclude-from --files-from "
    "--rsync-path"
)


def _remote_copy_sources(run: ProgramRun) -> Iterator[Word]:
    clustered = run.name not in ("scp", "sftp")
    values = _TRANSFER_VALUES - split_names("-o -c -l -S -P -i -F -J") if clustered else _TRANSFER_VALUES
    words = Options.parse(run.argv, values, abbreviated=False).operands
    if run.name in ("docker", "kubectl", "podman") and "cp" not in words[:4]:
        return
    if words and (":" in words[-1] or run.name == "sftp"):
        yield from words[:-1]


def _cloud_upload_sources(run: ProgramRun) -> Iterator[Word]:
    words = Options.parse(
        run.argv, split_names("--profile --region --endpoint-url"), abbreviated=False
    ).operands
    if words and re.match(r"(?:s3|gs|b2)://|[\w-]+/[\w-]+$", words[-1]):
        yield from words[:-1]
    elif "put-object" in words or any(word.startswith("upload") for word in words[:4]):
        yield from words


def fetches_cloud_metadata(run: ProgramRun) -> bool:
    """Return True if a program sends a request to the address from which clouds serve credentials."""
    return run.name.lower() in _FETCHERS and any(_METADATA_ADDRESS.search(word) for word in run.argv[1:64])


PROGRAMS_THAT_MAY_SEND = (
    SENDING_PROGRAMS
    | _ARGUMENT_SENDERS
    | _BACKUP_PROGRAMS
    | _STDIN_SENDERS
    | _LOOKUPS
    | _FETCHERS
    | _UPLOADERS
    | _SERVERS
    | {"openssl"}
    | split_names("python python3 lftp ncftpput smbclient")
)
