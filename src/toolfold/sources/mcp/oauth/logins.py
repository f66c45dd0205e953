"""Logins on disk: one file each, for its owner's eyes alone.

A file belongs to one server, one address, one issuer and one client: what was given by one issuer is never
shown to another, and a token is only ever read for the address it was given for. A file that cannot be
trusted or read counts as no login. Knows no protocol and sends nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold.config.atomic import replace
from toolfold.errors import ConfigError
from toolfold.model import Json, read_json

log = logging.getLogger(__name__)

_LARGEST = 1_000_000
_VERSION = 1
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LONGEST_LEEWAY = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a server's issuer gave us."""

    server: str
    url: str
    issuer: str
    client: Json = field(repr=False)
    """The client as it is registered at the issuer."""
    tokens: Json = field(repr=False)
    """The token response; empty when what was given is no longer good."""
    obtained: float
    fresh_until: float | None = None
    """When to renew it; None where nobody said."""
    metadata: Json = field(default_factory=dict, repr=False)
    """What the issuer says of itself."""
    resource: Json = field(default_factory=dict, repr=False)
    """What the server says of its protection."""
    wanted: str = ""
    """Rights the server has asked for since, to be requested at the next login."""

    @property
    def token(self) -> str:
        """What opens the server, or nothing."""
        return str(self.tokens.get("access_token") or "")

    @property
    def renewal(self) -> str:
        """What a new token is got with, or nothing."""
        return str(self.tokens.get("refresh_token") or "")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The rights that were given."""
        return tuple(str(self.tokens.get("scope") or "").split())

    def without_tokens(self) -> Login:
        """The same after its issuer has taken it back; the client stays registered."""
        return dataclasses.replace(self, tokens={}, fresh_until=None)

    def secrets(self) -> tuple[str, ...]:
        """What must appear nowhere."""
        given = (*self.tokens.values(), self.client.get("client_secret"))
        return tuple(each for each in given if isinstance(each, str) and len(each) > 7)


def fresh_until(now: float, expires_in: float | None) -> float | None:
    """When to renew: a little before it is due, for requests take time and clocks differ."""
    return None if expires_in is None else now + expires_in - min(_LONGEST_LEEWAY, expires_in / 10)


class Logins:
    """The folder of all logins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, server: str, url: str) -> Login | None:
        """The latest login at this address, with or without tokens."""
        known = [login for _, login in self._of(server) if login.url == url]
        return max(known, key=lambda login: login.obtained, default=None)

    def keep(self, login: Login) -> None:
        """Write it in place of any other of the same server. Raises ConfigError."""
        self._prepare()
        file = self._file(login)
        content = json.dumps({"version": _VERSION, **dataclasses.asdict(login)}, indent=1, sort_keys=True)
        replace(file, content.encode(), mode=0o600)
        for other, _ in self._of(login.server):
            if other != file:
                other.unlink(missing_ok=True)

    def forget(self, server: str) -> tuple[Login, ...]:
        """Remove every login of the server, and tell which there were."""
        known = tuple(self._of(server))
        for file, _ in known:
            file.unlink(missing_ok=True)
        return tuple(login for _, login in known)

    def turn(self, server: str, what: str) -> Path:
        """The file to lock while something is done for the server. Raises ConfigError."""
        self._prepare()
        return self._folder / f"{server}-{_digest(server)}.{what}.lock"

    def _prepare(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder.stat().st_mode & _OTHERS:
                self._folder.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"logins cannot be kept: {error.strerror}", file=str(self._folder)) from None

    def _file(self, login: Login) -> Path:
        client = str(login.client.get("client_id"))
        return self._folder / f"{login.server}-{_digest(login.server, login.url, login.issuer, client)}.json"

    def _of(self, server: str) -> Iterator[tuple[Path, Login]]:
        with contextlib.suppress(OSError):
            for file in sorted(self._folder.glob("*.json")):
                if file.name.startswith(f"{server}-") and (login := _read(file)) and login.server == server:
                    yield file, login


def _read(file: Path) -> Login | None:
    try:
        said = read_json(_content(file).decode())
        if said.pop("version") != _VERSION:
            raise ValueError("another version")
        return _checked(Login(**said))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("the login in %s cannot be used (%s)", file, type(error).__name__)
        return None


def _content(file: Path) -> bytes:
    """Raises OSError where the file is not ours, and ValueError where it is too large."""
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as stream:
        facts = os.fstat(handle)
        if hasattr(os, "getuid") and facts.st_uid != os.getuid():
            raise PermissionError
        if hasattr(os, "fchmod") and facts.st_mode & _OTHERS:
            log.warning("%s could be read by others; now it cannot", file)
            os.fchmod(handle, 0o600)
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError("too large")
    return content


def _checked(login: Login) -> Login:
    texts: tuple[Any, ...] = (login.server, login.url, login.issuer, login.wanted, *login.tokens.values())
    if not all(isinstance(each, (str, int, float, type(None))) for each in texts):
        raise ValueError("not a login")
    for block in (login.client, login.tokens, login.metadata, login.resource):
        if not isinstance(block, dict):
            raise TypeError("not a login")
    if not isinstance(login.obtained, (int, float)) or not isinstance(
        login.fresh_until, (int, float, type(None))
    ):
        raise TypeError("not a login")
    return login


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
