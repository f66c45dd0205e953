"""Record answers to list requests, which the next gateway process can send while it is loading.

There is one file for each way the gateway is started: its version, command line, working directory and
environment. The file names every input that the answers depend on (configuration, trust, lock files, listings
of servers, plugins) with a digest; if one of them has changed, the record is ignored. A record is ignored too
if it cannot be read, is too large, or could have been written by another user. Answers are stored per client,
by what it declares when it connects. Standard library only, because it is read before the rest is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolfold import __version__
from toolfold.directories import locate_directories

FORMAT = 2
MAX_RECORD_BYTES = 8_000_000
MAX_CLIENTS = 8
MAX_FILES = 32
MAX_INPUTS = 1_000
MAX_INPUT_BYTES = 32_000_000

LISTINGS: Mapping[str, str] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
}
"""Method → the kind of list in `list_changed` notifications."""
RECORDED = frozenset({"initialize", "server/discover", *LISTINGS})

_VARIABLE_PREFIXES = ("TOOLFOLD_", "XDG_")
_META, _REVISION, _PROGRESS = "_meta", "io.modelcontextprotocol/protocolVersion", "progressToken"

Answers = dict[str, str]
"""Method → its result as JSON text."""


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """List request whose answer may be recorded, and the client that made it."""

    id: int | str
    method: str
    client: str
    """Hash of what the client declares in the request; empty if it declared that in `initialize`."""

    @property
    def key(self) -> tuple[str, int | str]:
        """Return the request id with its type, so that 1 and "1" differ."""
        return type(self.id).__name__, self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStart:
    """Address of an HTTP gateway, and its access rules for clients without a token."""

    host: str
    port: int
    path: str
    hosts: tuple[str, ...]
    """Accepted values of `Host` in addition to loopback."""
    origins: tuple[str, ...]
    token_file: str
    """File whose existence means that clients need a token; empty if they never need one."""

    @classmethod
    def parse(cls, found: object) -> HttpStart | None:
        """Parse the listening address of the gateway in a record; None for stdio. Raises ValueError."""
        if found is None:
            return None
        if not isinstance(found, dict):
            raise ValueError("the file of recorded tool lists has invalid content")
        return cls(
            host=str(found["host"]),
            port=int(found["port"]),
            path=str(found["path"]),
            hosts=tuple(map(str, found["hosts"])),
            origins=tuple(map(str, found["origins"])),
            token_file=str(found["token_file"]),
        )


def parse_request(method: object, request_id: object, params: object) -> ListingRequest | None:
    """Parse an `initialize`, `ping` or list request, such as `tools/list`; None for any other message."""
    if not isinstance(method, str) or method not in (*RECORDED, "ping"):
        return None
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        return None
    if not isinstance(params, dict | None) or not isinstance(meta := (params or {}).get(_META) or {}, dict):
        return None
    if method == "initialize":
        return ListingRequest(request_id, method, digest_json(params))
    if params and params.keys() != {_META}:
        return None
    declared = {key: value for key, value in meta.items() if key != _PROGRESS}
    return ListingRequest(request_id, method, digest_json(declared) if _REVISION in meta else "")


def digest_json(value: object) -> str:
    """Return a hash of a JSON value that is independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class ListingRecord:
    """Recorded answers to list requests, per client, for later gateways with the same arguments."""

    file: Path
    clients: dict[str, Answers] = field(default_factory=dict)
    http: HttpStart | None = None
    """How an HTTP gateway was started; None for a gateway over stdio."""

    def read(self) -> bool:
        """Load the recorded answers to list requests; return False if the file is invalid or outdated."""
        try:
            found = json.loads(_private_content(self.file))
            if found["format"] != FORMAT or found["inputs"] != digest_inputs(map(Path, found["inputs"])):
                return False
            self.http = HttpStart.parse(found.get("http"))
            self.clients = {client: _check_answers(answers) for client, answers in found["clients"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def record_result(self, client: str, method: str, result: str | None) -> bool:
        """Store a client's list result, or remove it if `result` is None; return True if the record changed.

        Only the MAX_CLIENTS latest clients are kept.
        """
        answers = self.clients.pop(client, {})
        self.clients[client] = answers  # keeps the latest client last
        while len(self.clients) > MAX_CLIENTS:
            self.clients.pop(next(iter(self.clients)))
        if result is None:
            return answers.pop(method, None) is not None
        has_changed = answers.get(method) != result
        answers[method] = result
        return has_changed

    def to_json(self, inputs: Mapping[str, str]) -> str:
        """Return the record as JSON for its file, without the oldest clients if it is too long."""
        clients = dict(self.clients)
        http = asdict(self.http) if self.http else None
        while True:
            text = json.dumps({"format": FORMAT, "inputs": inputs, "http": http, "clients": clients})
            if len(text) <= MAX_RECORD_BYTES or not clients:
                return text
            clients.pop(next(iter(clients)))


def locate_record_file(arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Return the path of the record file for a gateway started with these arguments. Raises OSError.

    The file also depends on the current directory, environment variables and versions.
    """
    current = Path.cwd()
    variables = {name: value for name, value in environment.items() if _is_relevant_variable(name)}
    conditions = [__version__, sys.version, sys.prefix, list(arguments), str(current), variables]
    folder = locate_directories(environment, current).cache / "gateway"
    return folder / f"{digest_json(conditions)[:32]}.json"


def _is_relevant_variable(name: str) -> bool:
    return name == "HOME" or name.startswith(_VARIABLE_PREFIXES)


def digest_inputs(paths: Iterable[Path]) -> dict[str, str]:
    """Return a hash of each path's content. Raises ValueError if there are too many paths or bytes."""
    found: dict[str, str] = {}
    left = MAX_INPUT_BYTES
    for path in paths:
        found[str(path)], size = _digest_path(path, left)
        left -= size
        if len(found) > MAX_INPUTS or left < 0:
            raise ValueError(
                "tool lists are not recorded for a quick start:"
                " the settings and plugin files are too many or too large"
            )
    return found


def _digest_path(path: Path, limit: int) -> tuple[str, int]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            names = sorted(name for name in os.listdir(path) if name != "__pycache__")  # noqa: PTH208 - fast
            return f"folder {digest_json(names)}", 0
        if not stat.S_ISREG(mode):  # reading it could block
            return f"special {mode}", 0
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
        return f"file {hashlib.sha256(content).hexdigest()}", len(content)
    except (FileNotFoundError, NotADirectoryError):
        return "absent", 0


def _private_content(file: Path) -> bytes:
    """Return the content of a file that only this user can access. Raises OSError or ValueError."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ValueError("other users of this machine can read or write the file of recorded tool lists")
        if found.st_size > MAX_RECORD_BYTES:
            raise ValueError("the file is too large")
        return stream.read(MAX_RECORD_BYTES)


def _check_answers(answers: Mapping[str, object]) -> Answers:
    checked: Answers = {}
    for method, text in answers.items():
        if method not in RECORDED or not isinstance(text, str) or not isinstance(json.loads(text), dict):
            raise ValueError(f"the stored response to {method!r} is not a valid MCP result")
        checked[method] = text
    return checked
