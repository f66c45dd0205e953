"""Clients that may use the gateway: names, permissions and token hashes.

A token is shown once, when it is created. Only its hash is stored. Knows no transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolfold.config.atomic import lock_directory
from toolfold.config.file_watch import watch_files
from toolfold.config.fingerprints import ABSENT, fingerprint_bytes
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.core.errors import ConfigError
from toolfold.core.types import ANONYMOUS_CLIENT, GrantLimit, Json, read_json
from toolfold.serving.gateway.client_records import ClientRecords
from toolfold.state.copy_report import CopyReport
from toolfold.state.database import Database, DatabaseUnavailable, SharedCopy
from toolfold.state.users import USERS_FILE, FileUserStore, SharedUserStore, User, UserStore
from toolfold.state.users.directory import NOTHING, Meter, require_valid_rules, select_tool_rules
from toolfold.state.users.quotas import Quotas, open_quotas, team_account, user_account

if TYPE_CHECKING:
    from toolfold.config import Config

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1_000_000
MAX_SHARED_TOKENS = 100_000
ANONYMOUS = ANONYMOUS_CLIENT
"""Name of clients without a token; no token can have it."""
LOGIN_CLIENT_PREFIX = "user:"
"""Start of the names of clients with an access token; no token of `toolfold token add` has such a name."""
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """A client that is allowed to connect to the gateway."""

    name: str
    toolsets: tuple[str, ...] | None = None
    """The toolsets that the client may use; None for all that the gateway offers."""
    created: float = 0.0
    may_use_keys: bool = True
    """True if its model requests may use the configured API keys of model providers."""
    user_id: str = ""
    """Id of the user that the token belongs to; empty if it belongs to none."""
    denied: tuple[str, ...] = ()
    """Toolsets, `server:NAME` and `tool:NAME` that the client may not use, even if a rule allows them."""
    is_login: bool = False
    """True if the client has no token, because its user logged in at an identity provider."""

    @property
    def id(self) -> str:
        """Return an identifier that is unique to this token, even if two tokens have the same name."""
        return f"{self.name} {self.created!r}"

    @property
    def owner(self) -> str:
        """Return whose data the client uses: the user's, with all tokens, or that of a token without one."""
        return f"user {self.user_id}" if self.user_id else f"client {self.id}"


@dataclass(frozen=True, slots=True)
class _TokensSnapshot:
    """Content of the token file when it was last read."""

    signature: tuple[int, int] | None
    fingerprint: str
    """Fingerprint of the last accepted content, to detect changes by other programs."""
    last_step: int
    clients: dict[str, GatewayClient]
    """The clients by the hashes of their tokens."""


class TokenStore(ABC):
    """Client tokens of a gateway and all its replicas. Thread-safe."""

    def __init__(self, users: UserStore) -> None:
        """Create the store; `users` are the users to whom tokens may belong."""
        self.users = users
        self.quotas: Quotas | None = None
        """Limits how much users use; None if nothing is counted."""
        self.records: ClientRecords | None = None
        """What is stored about clients besides tokens; None if nothing is."""
        users.on_user_removed = self._forget_user
        users.on_team_removed = self._forget_team

    async def require_quota(self, client: GatewayClient, meters: Sequence[Meter]) -> None:
        """Count one call or search for the client's user. Raises QuotaExceeded if a limit is reached.

        Raises OSError if that cannot be checked because the database cannot be reached.
        """
        if self.quotas is None or not client.user_id:
            return
        if not self.quotas.try_require(client.user_id, meters):
            await asyncio.to_thread(self.quotas.require, client.user_id, meters)

    def add(
        self,
        name: str,
        toolsets: Iterable[str] | None = None,
        *,
        may_use_keys: bool | None = None,
        user_id: str = "",
        denied: Iterable[str] = (),
    ) -> str:
        """Create a token for a new client and return it. The token cannot be displayed again.

        By default, a token that is limited to toolsets may not use the configured keys of model providers.
        `user_id` is the user that the token belongs to; it is refused while that user is disabled.
        """
        if not _NAME_PATTERN.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a client",
                hint="a client name has up to 64 letters, digits, -, _ and ., and starts "
                "with a letter or digit",
            )
        token = f"tf_{secrets.token_urlsafe(32)}"
        granted = None if toolsets is None else list(toolsets)
        entry: Json = {
            "hash": _hash_token(token),
            "toolsets": granted,
            "created": time.time(),
            "models": granted is None if may_use_keys is None else may_use_keys,
            **({"user_id": user_id} if user_id else {}),
            **({"denied": refused} if (refused := list(denied)) else {}),
        }
        require_valid_rules(refused)
        if len(select_tool_rules(rules := [*(granted or ()), *refused])) != len(rules):
            raise ConfigError(
                "a token cannot have model: or key: rules; set them for its user or a team",
                hint="set rules about models for the token's user: toolfold user allow|deny "
                "NAME model:PATTERN, or use --no-models",
            )
        if not self._insert(name, entry):
            raise ConfigError(
                f"a client named {name!r} already has a token",
                hint=f"choose another name, or revoke the existing token with `toolfold token revoke {name}`",
            )
        return token

    def revoke(self, name: str) -> bool:
        """Delete a client's token, jobs, allowed tools and learned messages; return False if it is unknown.

        Raises RecordsRemain if the token was deleted and something else was not.
        """
        is_known = self._delete(name)
        if is_known and self.records is not None:
            self.records.remove_clients({name})
        return is_known

    @abstractmethod
    def are_in_use(self) -> bool:
        """Return True if a token was ever created for this gateway.

        Neither revoking the last token nor deleting the file lets clients connect without a token again.
        """

    def list_clients(self) -> list[GatewayClient]:
        """Return all clients that have a token, sorted by name."""
        return [_parse_client(name, each) for name, each in sorted(self._load_entries().items())]

    def find(self, token: str) -> GatewayClient | None:
        """Return the client of a token; None if it is unknown or revoked, or its user is disabled.

        Does not block. Raises DatabaseUnavailable if revoked tokens may not be known here.
        """
        client = self._clients_by_hash().get(_hash_token(token))
        return client if client is not None and self._has_active_user(client) else None

    def describe_refusal(self, token: str) -> str:
        """Return why an existing token is refused, for the log; empty if the token does not exist."""
        client = self._clients_by_hash().get(_hash_token(token))
        if client is None or self._has_active_user(client):
            return ""
        user = self.users.directory().users.get(client.user_id)
        why = "its user was removed" if user is None else f"its user {user.name!r} is disabled"
        return f"the token of the client {client.name!r} is refused: {why}"

    def is_valid(self, client: GatewayClient) -> bool:
        """Return True if the token of a client found earlier still exists and is unchanged.

        For a client with a login, return True if its user is active.
        """
        try:
            if client.is_login:
                return self._has_active_user(client)
            return client in self._clients_by_hash().values() and self._has_active_user(client)
        except (DatabaseUnavailable, ConfigError):  # it may have been revoked
            return False

    def list_limits(self, client: GatewayClient) -> tuple[GrantLimit, GrantLimit]:
        """Return the limits on a client's permissions: those of its user and those of its token."""
        own = GrantLimit(client.toolsets, client.denied)
        if not client.user_id:
            return GrantLimit(), own
        try:
            return self.users.directory().find_limit(client.user_id), own
        except (DatabaseUnavailable, ConfigError) as error:
            log.warning("the permissions of client %r cannot be determined now: %s", client.name, error)
            return NOTHING, own

    def limits_models(self, client: GatewayClient) -> bool:
        """Return True if rules restrict the models or provider keys that a client's user may use.

        Raises DatabaseUnavailable if rules may have been changed that are not known here.
        """
        return bool(client.user_id) and self.users.directory().limits_models(client.user_id)

    def explain_model_refusal(self, client: GatewayClient, model: str, provider: str = "") -> str:
        """Return the rule that forbids a model to a client's user; empty if the model is allowed.

        `provider` is the one whose configured key would be used; empty if the client sends its own key.
        """
        if not client.user_id:
            return ""
        return self.users.directory().explain_model_refusal(client.user_id, model, provider)

    def explain_key_refusal(self, client: GatewayClient, provider: str) -> str:
        """Return the rule that forbids a provider's configured key to a client's user; empty if none does."""
        if not client.user_id:
            return ""
        return self.users.directory().explain_key_refusal(client.user_id, provider)

    def is_unlimited(self, client: GatewayClient) -> bool:
        """Return True if a client's token has no limits and belongs to an administrator or to no user."""
        if client.toolsets is not None or client.denied:
            return False
        user = self.users.directory().find_active(client.user_id) if client.user_id else None
        return user.is_admin if user is not None else not client.user_id

    @abstractmethod
    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register a function to be called in a separate thread after tokens, users or teams have changed.

        Returns a function that ends that.
        """

    def _forget_user(self, user: User) -> None:
        """Delete all data of a removed user. Raises RecordsRemain if some data could not be deleted."""
        own = {each.name for each in self.list_clients() if each.user_id == user.id}
        for name in own:
            self._delete(name)
        if self.records is not None:
            self.records.remove_user(user.id, {LOGIN_CLIENT_PREFIX + user.name, *own})
        if self.quotas is not None:
            self.quotas.forget(user_account(user.id))

    def _forget_team(self, name: str) -> None:
        if self.quotas is not None:
            self.quotas.forget(team_account(name))

    @abstractmethod
    def _delete(self, name: str) -> bool:
        """Delete a client's token; return False if no client has this name."""

    def _has_active_user(self, client: GatewayClient) -> bool:
        """Return False if a token belongs to a removed or disabled user."""
        if not client.user_id:
            return True
        return self.users.directory().find_active(client.user_id) is not None

    @abstractmethod
    def _insert(self, name: str, entry: Json) -> bool:
        """Store the token of a new client; return False if a client of this name already has a token."""

    @abstractmethod
    def _load_entries(self) -> dict[str, Json]:
        """Return the stored tokens by client name."""

    @abstractmethod
    def _clients_by_hash(self) -> dict[str, GatewayClient]:
        """Return the current clients by the hashes of their tokens."""


class Tokens(TokenStore):
    """Client tokens of one user's gateway, stored in one file."""

    def __init__(
        self, file: Path, record: SettingsRecord | None = None, *, denies_by_default: bool = False
    ) -> None:
        """Open the token file and the users file beside it; reject tokens added by other programs.

        With `denies_by_default`, users may use nothing that no rule allows.
        """
        users = FileUserStore(file.with_name(USERS_FILE), record, denies_by_default=denies_by_default)
        super().__init__(users)
        self._file, self._path, self._record = file, str(file), record
        self._cache: _TokensSnapshot | None = None
        self._were_in_use = False

    def _delete(self, name: str) -> bool:
        with lock_directory(self._file.parent):
            entries = self._load_entries()
            entry = entries.pop(name, None)
            if entry is not None:
                self._write_entries(entries)
        return entry is not None

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        return watch_files([self._file, self._file.with_name(USERS_FILE)], callback)

    def are_in_use(self) -> bool:
        self._were_in_use = self._were_in_use or self._file_exists() or self._is_recorded()
        return self._were_in_use

    def _insert(self, name: str, entry: Json) -> bool:
        with lock_directory(self._file.parent):
            entries = self._load_entries()
            if name in entries:
                return False
            entries[name] = entry
            self._write_entries(entries)
        return True

    def _file_exists(self) -> bool:
        try:
            os.lstat(self._path)  # as text, because it is done for every request
        except FileNotFoundError:
            return False
        except OSError:  # it exists but cannot be examined
            return True
        return True

    def _is_recorded(self) -> bool:
        try:
            return self._record is not None and self._record.has_entry(self._file)
        except ConfigError as error:
            log.error("%s; until this problem is fixed, every client needs a token", error)
            return True

    def _clients_by_hash(self) -> dict[str, GatewayClient]:
        signature: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            found = self._file.stat()
            signature = (found.st_mtime_ns, found.st_ino)
        if self._cache is None or self._cache.signature != signature:
            self._cache = self._reload(signature)
        return self._cache.clients

    def _reload(self, signature: tuple[int, int] | None) -> _TokensSnapshot:
        """Read the token file again; reject tokens added by other programs."""
        last_step = 0 if self._record is None else self._record.last_step()
        content = self._read_content()
        fingerprint = ABSENT if content is None else fingerprint_bytes(content)
        clients = {
            each["hash"]: _parse_client(name, each) for name, each in self._parse_entries(content).items()
        }
        before = self._cache
        if (
            before is None
            or self._record is None
            or self._record.is_own_change(self._file, before.fingerprint, fingerprint, since=before.last_step)
        ):
            return _TokensSnapshot(signature, fingerprint, last_step, clients)
        log.error(
            "%s was changed by another program: tokens that the program added are not accepted", self._file
        )
        unchanged = {each: client for each, client in clients.items() if before.clients.get(each) == client}
        return replace(before, signature=signature, clients=unchanged)

    def _load_entries(self) -> dict[str, Json]:
        return self._parse_entries(self._read_content())

    def _read_content(self) -> bytes | None:
        """Return the content of the token file; None if the file does not exist."""
        try:
            with self._file.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable_error(error) from None
        if len(content) > MAX_FILE_BYTES:
            raise self._unreadable_error(f"it has more than {MAX_FILE_BYTES:,} bytes")
        return content

    def _parse_entries(self, content: bytes | None) -> dict[str, Json]:
        if content is None:
            return {}
        try:
            known = read_json(content.decode("utf-8"))
            for name, each in known.items():
                _parse_client(name, each), each["hash"].encode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable_error(error) from None
        return dict(known)

    def _unreadable_error(self, why: object) -> ConfigError:
        problem = f"the file with the gateway's tokens cannot be read: {why}"
        return ConfigError(
            problem,
            file=str(self._file),
            hint="repair the file, or delete it and create new tokens with `toolfold token add NAME`",
        )

    def _write_entries(self, entries: dict[str, Json]) -> None:
        content = (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode()
        write_settings(self._file, content, self._record, mode=0o600)


class SharedTokens(TokenStore):
    """Client tokens of all replicas, stored in a database.

    They are in memory and follow changes of other replicas. While the database cannot be reached, the last
    known ones are accepted for a limited time.
    """

    def __init__(self, database: Database, *, denies_by_default: bool = False) -> None:
        """Read the tokens and users from the database. Raises DatabaseError.

        With `denies_by_default`, users may use nothing that no rule allows.
        """
        super().__init__(SharedUserStore(database, denies_by_default=denies_by_default))
        self._database = database
        self._were_in_use = False
        self._copy = SharedCopy(database, "tokens", self._read_clients, "tokens")

    def _delete(self, name: str) -> bool:
        statement = "UPDATE tokens SET revoked = now() WHERE name = %s AND revoked IS NULL"
        is_known = bool(_NAME_PATTERN.fullmatch(name)) and self._database.execute(statement, (name,)) > 0
        self._copy.reload()
        return is_known

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        ends = [self._database.on_change("tokens", callback), self.users.on_change(callback)]

        def end() -> None:
            for each in ends:
                each()

        return end

    def are_in_use(self) -> bool:
        return self._were_in_use

    def _insert(self, name: str, entry: Json) -> bool:
        added = self._database.execute(
            "INSERT INTO tokens (name, hash, toolsets, created, models, user_id, denied) VALUES"
            " (%(name)s, %(hash)s, %(toolsets)s, %(created)s, %(models)s, %(user_id)s, %(denied)s)"
            " ON CONFLICT (name) WHERE revoked IS NULL DO NOTHING",
            {"user_id": "", "denied": [], **entry, "name": name, "toolsets": json.dumps(entry["toolsets"])},
        )
        self._copy.reload()
        return added > 0

    def _load_entries(self) -> dict[str, Json]:
        rows = self._database.query(
            "SELECT name, hash, toolsets, created, models, user_id, denied FROM tokens"
            " WHERE revoked IS NULL LIMIT %s",
            (MAX_SHARED_TOKENS,),
        )
        entries: dict[str, Json] = {}
        for row in rows:
            try:
                entry = {**row, "toolsets": read_json(row["toolsets"])}
                _parse_client(row["name"], entry)
            except (ValueError, TypeError, RecursionError) as error:
                log.error(
                    "the token of the client %r is refused: its entry is damaged: %s", row["name"], error
                )
            else:
                entries[row["name"]] = entry
        return entries

    def copy_from(self, source: Tokens, user_ids: Collection[str], *, dry_run: bool) -> CopyReport:
        """Add the tokens of a file that the database lacks; with `dry_run`, only report it.

        A token that was revoked in the database is not added again, nor one whose user is not in `user_ids`.
        """
        report, known = CopyReport("tokens"), self._load_entries()
        rows = self._database.query("SELECT hash FROM tokens WHERE revoked IS NOT NULL")
        revoked = {row["hash"] for row in rows}
        for name, entry in source._load_entries().items():
            client = _parse_client(name, entry)
            if name in known:
                is_same = known[name]["hash"] == entry["hash"] and _parse_client(name, known[name]) == client
                report.note_known(name, is_same=is_same)
            elif entry["hash"] in revoked:
                report.conflicts[name] = "was revoked in the database"
            elif client.user_id and client.user_id not in user_ids:
                report.conflicts[name] = "its user is not in the database"
            elif dry_run or self._insert(name, {**entry, "models": client.may_use_keys}):
                report.copied.append(name)
        return report

    def _clients_by_hash(self) -> dict[str, GatewayClient]:
        return self._copy.require_recent()

    def _read_clients(self) -> dict[str, GatewayClient]:
        found = self._database.query("SELECT EXISTS (SELECT 1 FROM tokens) AS found")
        self._were_in_use = self._were_in_use or bool(found[0]["found"])
        return {each["hash"]: _parse_client(name, each) for name, each in self._load_entries().items()}


def open_tokens(config: Config, database: Database | None) -> TokenStore:
    """Open the gateway's tokens and users: in the database shared by replicas or, without one, in files."""
    state, denies = config.paths.state_dir, config.gateway.default_access == "deny"
    tokens: TokenStore
    if database is not None:
        tokens = SharedTokens(database, denies_by_default=denies)
    else:
        file = state / "gateway" / "tokens.json"
        tokens = Tokens(file, SettingsRecord(state), denies_by_default=denies)
    tokens.quotas = open_quotas(state, database, tokens.users.directory)
    tokens.records = ClientRecords(config, database)
    return tokens


def _parse_client(name: str, entry: Json) -> GatewayClient:
    toolsets = entry["toolsets"]
    if not isinstance(toolsets, list | tuple | None):
        raise TypeError("toolsets must be a list")
    return GatewayClient(
        name,
        None if toolsets is None else tuple(map(str, toolsets)),
        float(entry["created"]),
        bool(entry.get("models", toolsets is None)),
        str(entry.get("user_id", "")),
        tuple(map(str, entry.get("denied", ()))),
    )


def _hash_token(token: str) -> str:
    """Return the hash of a token; a fast hash is safe, because tokens have 256 random bits."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
