"""Stored OAuth logins: one JSON file each, readable only by its owner.

A file belongs to one server, URL, issuer and client. Tokens of one issuer are never shown to another, and a
token is only used for the URL it was issued for. An unreadable or untrusted file counts as no login. Knows
nothing of the protocol and sends nothing.
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

from toolfold.config.atomic import replace_file
from toolfold.errors import ConfigError
from toolfold.model import Json, read_json

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1_000_000
_FORMAT_VERSION = 1
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_LEEWAY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Client registration and tokens that a server's OAuth issuer granted.

    The field names are the file format.
    """

    server: str
    url: str
    issuer: str
    client: Json = field(repr=False)
    """Client registration at the issuer."""
    tokens: Json = field(repr=False)
    """Token response; empty once the issuer has revoked it."""
    obtained: float
    fresh_until: float | None = None
    """Time to refresh the token; None if the issuer stated no expiry."""
    metadata: Json = field(default_factory=dict, repr=False)
    """Authorization server metadata."""
    resource: Json = field(default_factory=dict, repr=False)
    """Protected resource metadata."""
    wanted: str = ""
    """Scopes that the server has required since the login, to be requested at the next login."""

    @property
    def token(self) -> str:
        """Return the access token; empty if there is none."""
        return str(self.tokens.get("access_token") or "")

    @property
    def refresh_token(self) -> str:
        """Return the refresh token; empty if there is none."""
        return str(self.tokens.get("refresh_token") or "")

    @property
    def scopes(self) -> tuple[str, ...]:
        """Return the granted OAuth scopes."""
        return tuple(str(self.tokens.get("scope") or "").split())

    def without_tokens(self) -> Login:
        """Return a copy of the login without its revoked tokens; the client registration is kept."""
        return dataclasses.replace(self, tokens={}, fresh_until=None)

    def secrets(self) -> tuple[str, ...]:
        """Return the values of this login that must never be shown or logged."""
        values = (*self.tokens.values(), self.client.get("client_secret"))
        return tuple(value for value in values if isinstance(value, str) and len(value) > 7)


def compute_fresh_until(now: float, expires_in: float | None) -> float | None:
    """Return when to refresh a token: shortly before it expires."""
    return None if expires_in is None else now + expires_in - min(_MAX_LEEWAY_S, expires_in / 10)


class LoginStore:
    """Directory of stored OAuth logins."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, server: str, url: str) -> Login | None:
        """Return the latest login for this server and URL, with or without tokens."""
        known = [login for _, login in self._iter_logins(server) if login.url == url]
        return max(known, key=lambda login: login.obtained, default=None)

    def save(self, login: Login) -> None:
        """Store the login, replacing any other login of the same server. Raises ConfigError."""
        self._create_directory()
        file = self._file_for(login)
        content = json.dumps(
            {"version": _FORMAT_VERSION, **dataclasses.asdict(login)}, indent=1, sort_keys=True
        )
        replace_file(file, content.encode(), mode=0o600)
        for other, _ in self._iter_logins(login.server):
            if other != file:
                other.unlink(missing_ok=True)

    def delete(self, server: str) -> tuple[Login, ...]:
        """Delete all logins of the server and return them."""
        known = tuple(self._iter_logins(server))
        for file, _ in known:
            file.unlink(missing_ok=True)
        return tuple(login for _, login in known)

    def lock_file(self, server: str, operation: str) -> Path:
        """Return the file to lock while the login of this server is read or changed."""
        self._create_directory()
        return self._directory / f"{server}-{_digest(server)}.{operation}.lock"

    def _create_directory(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._directory.stat().st_mode & _GROUP_AND_OTHERS:
                self._directory.chmod(0o700)
        except OSError as error:
            raise ConfigError(
                f"logins cannot be stored: {error.strerror}", file=str(self._directory)
            ) from None

    def _file_for(self, login: Login) -> Path:
        client = str(login.client.get("client_id"))
        return (
            self._directory / f"{login.server}-{_digest(login.server, login.url, login.issuer, client)}.json"
        )

    def _iter_logins(self, server: str) -> Iterator[tuple[Path, Login]]:
        with contextlib.suppress(OSError):
            for file in sorted(self._directory.glob("*.json")):
                if (
                    file.name.startswith(f"{server}-")
                    and (login := _read_login(file))
                    and login.server == server
                ):
                    yield file, login


def _read_login(file: Path) -> Login | None:
    try:
        fields = read_json(_read_content(file).decode())
        if fields.pop("version") != _FORMAT_VERSION:
            raise ValueError("the stored login has an unsupported format version")
        return _check_types(Login(**fields))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("the stored login %s cannot be read (%s); log in again", file, type(error).__name__)
        return None


def _read_content(file: Path) -> bytes:
    """Return the file's content. Raises OSError if another user owns it, ValueError if it is too large."""
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as stream:
        info = os.fstat(handle)
        if hasattr(os, "getuid") and info.st_uid != os.getuid():
            raise PermissionError
        if hasattr(os, "fchmod") and info.st_mode & _GROUP_AND_OTHERS:
            log.warning("%s was readable by other users; its permissions are now restricted", file)
            os.fchmod(handle, 0o600)
        content = stream.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError("too large")
    return content


def _check_types(login: Login) -> Login:
    values: tuple[Any, ...] = (login.server, login.url, login.issuer, login.wanted, *login.tokens.values())
    if not all(isinstance(value, (str, int, float, type(None))) for value in values):
        raise ValueError("a field of the stored login has the wrong type")
    for block in (login.client, login.tokens, login.metadata, login.resource):
        if not isinstance(block, dict):
            raise TypeError("a field of the stored login has the wrong type")
    if not isinstance(login.obtained, (int, float)) or not isinstance(
        login.fresh_until, (int, float, type(None))
    ):
        raise TypeError("a field of the stored login has the wrong type")
    return login


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
