"""Who may use the gateway: names, what each was granted, and the hash of each one's token.

A token is shown once, when it is made. What is kept cannot be turned back into it. Knows no transport.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from toolfold.config.atomic import locked
from toolfold.config.fingerprints import ABSENT, fingerprint_of
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.errors import ConfigError
from toolfold.model import ANONYMOUS_CLIENT, Json, read_json

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1_000_000
ANYBODY = ANONYMOUS_CLIENT
"""Who comes without a token: a name that no token can have."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who is let in."""

    name: str
    toolsets: tuple[str, ...] | None = None
    """What it may use; None for all that the gateway offers."""
    created: float = 0.0

    @property
    def id(self) -> str:
        """Another one when the token is another, though the name be the same."""
        return f"{self.name} {self.created!r}"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The file as it was last read."""

    signature: tuple[int, int] | None
    fingerprint: str
    """What later changes must lead from."""
    last_step: int
    clients: dict[str, Client]
    """By the hash of their tokens."""


class Tokens:
    """The tokens of one user's gateway, in one file."""

    def __init__(self, file: Path, record: SettingsRecord | None = None) -> None:
        """`record` tells Toolfold's own changes of the file from others, which let nobody in."""
        self._file, self._record = file, record
        self._read: _Snapshot | None = None
        self._were_in_use = False

    def add(self, name: str, toolsets: Iterable[str] | None = None) -> str:
        """Let somebody in. Gives the token, which is nowhere else."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a client", hint="it may have letters, digits, - _ and ."
            )
        token = f"tf_{secrets.token_urlsafe(32)}"
        with locked(self._file.parent):
            known = self._load()
            if name in known:
                raise ConfigError(
                    f"there is a client {name!r} already",
                    hint=f"take another name, or first: toolfold token revoke {name}",
                )
            granted = None if toolsets is None else list(toolsets)
            known[name] = {"hash": _hashed(token), "toolsets": granted, "created": time.time()}
            self._store(known)
        return token

    def revoke(self, name: str) -> bool:
        """Let somebody in no more. False if nobody has that name."""
        with locked(self._file.parent):
            known = self._load()
            found = known.pop(name, None)
            if found is not None:
                self._store(known)
        return found is not None

    def all(self) -> list[Client]:
        """Everybody who is let in, by name."""
        return [_client(name, each) for name, each in sorted(self._load().items())]

    def are_in_use(self) -> bool:
        """Whether a token was ever made here.

        Neither revoking the last token nor deleting the file lets clients in without a token again.
        """
        self._were_in_use = self._were_in_use or self._file_exists() or self._is_recorded()
        return self._were_in_use

    def _file_exists(self) -> bool:
        try:
            self._file.lstat()
        except FileNotFoundError:
            return False
        except OSError:  # it is there, whatever keeps us from it
            return True
        return True

    def _is_recorded(self) -> bool:
        try:
            return self._record is not None and self._record.knows(self._file)
        except ConfigError as error:
            log.error("%s; until it can be read, every client needs a token", error)
            return True

    def find(self, token: str) -> Client | None:
        """Whose token this is. A token that was revoked a moment ago is nobody's."""
        return self._by_hash().get(_hashed(token))

    def _by_hash(self) -> dict[str, Client]:
        signature: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            found = self._file.stat()
            signature = (found.st_mtime_ns, found.st_ino)
        if self._read is None or self._read.signature != signature:
            self._read = self._read_again(signature)
        return self._read.clients

    def _read_again(self, signature: tuple[int, int] | None) -> _Snapshot:
        """Read the file. Tokens added by another program are ignored; removed ones are removed."""
        last_step = 0 if self._record is None else self._record.last_step()
        content = self._content()
        fingerprint = ABSENT if content is None else fingerprint_of(content)
        clients = {each["hash"]: _client(name, each) for name, each in self._parse(content).items()}
        before = self._read
        if (
            before is None
            or self._record is None
            or self._record.is_own_change(self._file, before.fingerprint, fingerprint, since=before.last_step)
        ):
            return _Snapshot(signature, fingerprint, last_step, clients)
        log.error("%s was changed, and not by Toolfold: new tokens in it are not accepted", self._file)
        kept = {each: client for each, client in clients.items() if before.clients.get(each) == client}
        return replace(before, signature=signature, clients=kept)

    def _load(self) -> dict[str, Json]:
        return self._parse(self._content())

    def _content(self) -> bytes | None:
        """Return the content of the file; None where there is none."""
        try:
            with self._file.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from None
        if len(content) > MAX_FILE_BYTES:
            raise self._unreadable(f"it has more than {MAX_FILE_BYTES:,} bytes")
        return content

    def _parse(self, content: bytes | None) -> dict[str, Json]:
        if content is None:
            return {}
        try:
            known = read_json(content.decode("utf-8"))
            for name, each in known.items():
                _client(name, each), each["hash"].encode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error) from None
        return dict(known)

    def _unreadable(self, why: object) -> ConfigError:
        problem = f"the tokens of the gateway cannot be read: {why}"
        return ConfigError(problem, file=str(self._file), hint="repair it, or delete it and make new ones")

    def _store(self, known: dict[str, Json]) -> None:
        content = (json.dumps(known, indent=1, sort_keys=True) + "\n").encode()
        write_settings(self._file, content, self._record, mode=0o600)


def _client(name: str, said: Json) -> Client:
    toolsets = said["toolsets"]
    return Client(name, None if toolsets is None else tuple(map(str, toolsets)), float(said["created"]))


def _hashed(token: str) -> str:
    """One round is enough: nobody guesses 256 random bits."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
