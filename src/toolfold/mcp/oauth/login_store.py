"""Stored OAuth logins: in JSON files readable only by their owner, or encrypted in the credential store.

A login belongs to one server, URL, issuer and client, and an encrypted one to one user. Tokens of one issuer
are never shown to another, and a token is only used for the URL it was issued for. An unreadable or untrusted
login counts as none. Knows nothing of the protocol and sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolfold.config.atomic import replace_file
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json, read_json
from toolfold.mcp.oauth.file_lock import hold_lock
from toolfold.mcp.oauth.unsaved_logins import UnsavedLogins
from toolfold.state.copy_report import CopyReport
from toolfold.state.credentials import CredentialStore, Lease, UnreadableCredential
from toolfold.state.database import DatabaseError

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1_000_000
_FORMAT_VERSION = 1
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_LEEWAY_S = 30.0
_LEASE_POLL_S = 0.2


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
    id: str = ""
    """Random id of the login, which stays the same when its tokens are refreshed."""

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
        """Return a copy of the login with its client registration, but without tokens."""
        return dataclasses.replace(self, tokens={}, fresh_until=None)

    def secrets(self) -> tuple[str, ...]:
        """Return the values of this login that must never be displayed or logged."""
        values = (*self.tokens.values(), self.client.get("client_secret"))
        return tuple(value for value in values if isinstance(value, str) and len(value) > 7)


def compute_fresh_until(now: float, expires_in: float | None) -> float | None:
    """Return the time at which to refresh a token, shortly before it expires."""
    return None if expires_in is None else now + expires_in - min(_MAX_LEEWAY_S, expires_in / 10)


@dataclass(frozen=True, slots=True)
class DeletedLogins:
    """Deleted logins of a server: their number, and the logins that could be read."""

    count: int
    """Number of deleted logins."""
    readable: tuple[Login, ...] = ()
    """Those that could be read, so that their tokens can be revoked."""


class LoginStore(ABC):
    """Stored OAuth logins of the installation or of one user. Its methods may block."""

    @abstractmethod
    def find(self, server: str, url: str) -> Login | None:
        """Return the latest login for this server and URL, with or without tokens. Raises ConfigError."""

    @abstractmethod
    def save(self, login: Login, *, is_new: bool = False) -> None:
        """Store a login. Raises ConfigError.

        With `is_new`, it replaces any other login of the same server. Otherwise it replaces only an older
        version of the same login: one that was deleted meanwhile is not stored again.
        """

    @abstractmethod
    def delete(self, server: str) -> DeletedLogins:
        """Delete all logins of the server, even if they cannot be decrypted. Raises ConfigError."""

    @abstractmethod
    def hold(
        self, server: str, operation: str, timeout_s: float, *, duration_s: float
    ) -> AbstractAsyncContextManager[None]:
        """Let only one process at a time perform an operation on a server's login, such as a refresh.

        Waits for other processes at most for `timeout_s`, and lets another one do it after `duration_s`.
        Raises TimeoutError, ConfigError and OSError.
        """

    @abstractmethod
    def find_version(self, server: str) -> str:
        """Return a text that changes with each login to the server; empty if there is no login."""

    @abstractmethod
    def require_keys(self) -> None:
        """Raise ConfigError if logins cannot be stored because encryption keys are missing."""


class FileLoginStore(LoginStore):
    """OAuth logins of the installation, stored as files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, server: str, url: str) -> Login | None:
        known = [login for _, login in self._iter_logins(server) if login.url == url]
        return max(known, key=lambda login: login.obtained, default=None)

    def save(self, login: Login, *, is_new: bool = False) -> None:
        self._create_directory()
        file = self._file_for(login)
        if not is_new and all(each.id != login.id for _, each in self._iter_logins(login.server)):
            return
        replace_file(file, _serialize_login(login).encode(), mode=0o600)
        for other, _ in self._iter_logins(login.server):
            if other != file:
                other.unlink(missing_ok=True)

    def delete(self, server: str) -> DeletedLogins:
        known = tuple(self._iter_logins(server))
        for file, _ in known:
            file.unlink(missing_ok=True)
        return DeletedLogins(len(known), tuple(login for _, login in known))

    @contextlib.asynccontextmanager
    async def hold(
        self, server: str, operation: str, timeout_s: float, *, duration_s: float
    ) -> AsyncIterator[None]:
        del duration_s  # the lock ends with its process
        self._create_directory()
        file = self._directory / f"{server}-{_digest(server)}.{operation}.lock"
        async with hold_lock(file, timeout_s):
            yield

    def find_version(self, server: str) -> str:
        found = [(file.name, login.id or login.obtained) for file, login in self._iter_logins(server)]
        return _digest(repr(found)) if found else ""

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

    def copy_to(self, target: EncryptedLoginStore, *, dry_run: bool) -> CopyReport:
        """Add the logins to a store that lacks one for their server; with `dry_run`, only report it."""
        report = CopyReport("logins of the installation")
        for file in sorted(self._directory.glob("*.json")):
            if (login := _read_login(file)) is None:
                report.conflicts[file.name] = "the file is damaged"
            elif known := target.find(login.server, login.url):
                report.note_known(login.server, is_same=known == login)
            elif target.find_version(login.server):
                report.note_known(login.server, is_same=False)
            else:
                try:
                    if not dry_run:
                        target.save(login, is_new=True)
                    report.copied.append(login.server)
                except ConfigError as error:  # such as missing keys
                    report.conflicts[login.server] = str(error)
        return report

    def _iter_logins(self, server: str) -> Iterator[tuple[Path, Login]]:
        with contextlib.suppress(OSError):
            for file in sorted(self._directory.glob("*.json")):
                if (
                    file.name.startswith(f"{server}-")
                    and (login := _read_login(file))
                    and login.server == server
                ):
                    yield file, login

    def require_keys(self) -> None:
        """Do nothing: files are not encrypted."""


class _LeaseRequest:
    """Request for a lease (exclusive use of a login) that can be withdrawn at any time. Thread-safe."""

    def __init__(self, open_credentials: Callable[[], CredentialStore], lease: Lease, seconds: float) -> None:
        self._open_credentials, self._lease, self._seconds = open_credentials, lease, seconds
        self._lock = threading.Lock()
        self._is_taken = self._is_withdrawn = False

    def take(self) -> bool:
        """Try to take the lease; release it again if the request was withdrawn meanwhile."""
        taken = self._open_credentials().take_lease(self._lease, self._seconds)
        with self._lock:
            self._is_taken = taken
            is_unwanted = taken and self._is_withdrawn
        if is_unwanted:
            self.release()
        return taken and not is_unwanted

    def withdraw(self) -> bool:
        """Withdraw the request; return True if the lease was taken already and must be released."""
        with self._lock:
            self._is_withdrawn = True
            return self._is_taken

    def release(self) -> None:
        """Release the lease. If the database fails, the lease expires later."""
        with contextlib.suppress(DatabaseError, ConfigError):
            self._open_credentials().end_lease(self._lease)


class EncryptedLoginStore(LoginStore):
    """OAuth logins of one user or the installation, stored with the encrypted credentials. Thread-safe."""

    def __init__(
        self,
        open_credentials: Callable[[], CredentialStore],
        user_id: str,
        unsaved: UnsavedLogins | None = None,
    ) -> None:
        """Create the store; `open_credentials` is called when the credentials are needed.

        `unsaved` keeps refreshed logins that cannot be stored; the stores of several users can share it.
        """
        self._open_credentials, self._user_id = open_credentials, user_id
        self._unsaved = UnsavedLogins() if unsaved is None else unsaved

    def find(self, server: str, url: str) -> Login | None:
        with self._report_errors("read"):
            found = self._read(server)
        unsaved = self._unsaved.find(self._user_id, server)
        if unsaved and found and unsaved.id == found.id and unsaved.obtained >= found.obtained:
            found = unsaved
        return found if found is not None and found.url == url else None

    def save(self, login: Login, *, is_new: bool = False) -> None:
        self._unsaved.drop(self._user_id, login.server)
        try:
            self._write(login, is_new=is_new)
        except (DatabaseError, ConfigError) as error:
            if is_new and isinstance(error, ConfigError):
                raise
            if is_new:
                raise ConfigError("the login cannot be stored now: the database does not answer") from None
            log.warning("the refreshed login for MCP server %r will be stored later: %s", login.server, error)
            self._unsaved.add(self._user_id, login, self._save_again)

    def delete(self, server: str) -> DeletedLogins:
        with self._report_errors("deleted"):
            try:
                found = self._read(server)
            except ConfigError as error:  # without the keys it can be deleted, but not revoked
                log.warning("the login for MCP server %r is deleted without being read: %s", server, error)
                found = None
            is_deleted = self._open_credentials().remove_login(self._user_id, server)
        self._unsaved.drop(self._user_id, server)
        return DeletedLogins(int(is_deleted), (found,) if found else ())

    @contextlib.asynccontextmanager
    async def hold(
        self, server: str, operation: str, timeout_s: float, *, duration_s: float
    ) -> AsyncIterator[None]:
        lease = Lease(self._user_id, server, operation, secrets.token_hex(8))
        with self._report_errors("changed"):
            async with asyncio.timeout(timeout_s):
                while not await self._take_lease(lease, duration_s):  # noqa: ASYNC110
                    await asyncio.sleep(_LEASE_POLL_S)
        try:
            yield
        finally:
            with contextlib.suppress(DatabaseError, ConfigError):  # it ends by itself
                await asyncio.shield(asyncio.to_thread(self._open_credentials().end_lease, lease))

    def find_version(self, server: str) -> str:
        return self._open_credentials().find_version(self._user_id, server)

    def require_keys(self) -> None:
        self._open_credentials().reload_keys()

    async def _take_lease(self, lease: Lease, seconds: float) -> bool:
        request = _LeaseRequest(self._open_credentials, lease, seconds)
        try:
            return await asyncio.to_thread(request.take)
        except BaseException:  # a timeout or a cancellation: the thread may still get the lease
            if request.withdraw():
                asyncio.get_running_loop().run_in_executor(None, request.release)
            raise

    def _save_again(self, login: Login) -> None:
        """Store a refreshed login that could not be stored before, unless a newer login is already stored."""
        found = self._read(login.server)
        if found is None or found.obtained <= login.obtained:  # one that cannot be decrypted is replaced
            self._write(login, is_new=False)

    def _read(self, server: str) -> Login | None:
        try:
            stored = self._open_credentials().load_login(self._user_id, server)
        except UnreadableCredential as error:
            log.warning("the stored login for MCP server %r cannot be used: %s", server, error)
            return None
        if stored is None:
            return None
        try:
            login = _parse_login(stored[1])
        except _PARSE_ERRORS as error:
            log.warning(
                "the stored login for MCP server %r is damaged (%s); log in again",
                server,
                type(error).__name__,
            )
            return None
        return login if (login.server, login.id) == (server, stored[0]) else None

    def _write(self, login: Login, *, is_new: bool) -> None:
        text = _serialize_login(login)
        self._open_credentials().save_login(self._user_id, login.server, login.id, text, is_new=is_new)

    @contextlib.contextmanager
    def _report_errors(self, action: str) -> Iterator[None]:
        """Raise ConfigError if the database fails within a `with` block."""
        try:
            yield
        except DatabaseError:
            raise ConfigError(f"logins cannot be {action} now: the database does not answer") from None


_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def _serialize_login(login: Login) -> str:
    return json.dumps({"version": _FORMAT_VERSION, **dataclasses.asdict(login)}, indent=1, sort_keys=True)


def _parse_login(text: str) -> Login:
    """Return the login in a JSON text. Raises one of _PARSE_ERRORS."""
    fields = read_json(text)
    if fields.pop("version") != _FORMAT_VERSION:
        raise ValueError("the stored login has an unsupported format version")
    return _check_types(Login(**fields))


def _read_login(file: Path) -> Login | None:
    try:
        return _parse_login(_read_content(file).decode())
    except FileNotFoundError:
        return None
    except (OSError, *_PARSE_ERRORS) as error:
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
    texts = (login.server, login.url, login.issuer, login.wanted, login.id)
    values: tuple[Any, ...] = (*texts, *login.tokens.values())
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
