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
from dataclasses import dataclass
from pathlib import Path

from toolfold.config.atomic import locked
from toolfold.config.fingerprints import fingerprint
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.errors import ConfigError
from toolfold.model import Json, read_json

log = logging.getLogger(__name__)

LARGEST = 1_000_000
ANYBODY = "(local)"
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


class Tokens:
    """The tokens of one user's gateway, in one file."""

    def __init__(self, file: Path, record: SettingsRecord | None = None) -> None:
        """`record` tells Toolfold's own changes of the file from others, which let nobody in."""
        self._file, self._record = file, record
        self._read: tuple[tuple[int, int] | None, str, dict[str, Client]] | None = None

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
        """Whether a token was ever made here. Revoking the last one does not let everybody in again."""
        try:
            self._file.stat()
        except FileNotFoundError:
            return False
        except OSError:  # it is there, whatever keeps us from it
            return True
        return True

    def find(self, token: str) -> Client | None:
        """Whose token this is. A token that was revoked a moment ago is nobody's."""
        return self._by_hash().get(_hashed(token))

    def _by_hash(self) -> dict[str, Client]:
        seen: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            found = self._file.stat()
            seen = (found.st_mtime_ns, found.st_ino)
        if self._read is None or self._read[0] != seen:
            self._read = seen, *self._read_again()
        return self._read[2]

    def _read_again(self) -> tuple[str, dict[str, Client]]:
        """Return the fingerprint that later changes must lead from, and who is let in.

        Whoever was let in by something else than Toolfold is not; whoever was taken out, is out.
        """
        found = fingerprint(self._file)
        now = {each["hash"]: _client(name, each) for name, each in self._load().items()}
        if self._read is None or self._record is None:
            return found, now
        _, known, before = self._read
        if self._record.leads(self._file, known, found):
            return found, now
        log.error("%s was changed, and not by Toolfold: new tokens in it are not accepted", self._file)
        return known, {each: client for each, client in now.items() if before.get(each) == client}

    def _load(self) -> dict[str, Json]:
        try:
            if self._file.stat().st_size > LARGEST:
                raise ValueError("too large")
            known = read_json(self._file.read_text("utf-8"))
            for name, each in known.items():
                _client(name, each), each["hash"].encode()
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"the tokens of the gateway cannot be read: {error}"
            raise ConfigError(
                problem, file=str(self._file), hint="mend it, or delete it and make new ones"
            ) from None
        return dict(known)

    def _store(self, known: dict[str, Json]) -> None:
        content = (json.dumps(known, indent=1, sort_keys=True) + "\n").encode()
        write_settings(self._file, content, self._record, mode=0o600)


def _client(name: str, said: Json) -> Client:
    toolsets = said["toolsets"]
    return Client(name, None if toolsets is None else tuple(map(str, toolsets)), float(said["created"]))


def _hashed(token: str) -> str:
    """One round is enough: nobody guesses 256 random bits."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
