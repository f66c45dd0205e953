"""Numbered changes to the tables of the shared database, with the statements that undo them.

Applied in one transaction under a lock of the database, so that any number of processes may start at once:
one applies them, the others wait and find nothing to do. An applied migration must never be edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfold.core.errors import ConfigError
from toolfold.state.database.connections import SCHEMA, Database, RowCursor

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCK_KEY = 0x746F6F6C666F6C64
"""Number of the advisory lock: "toolfold" as ASCII."""
LOCK_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Migration:
    """One change to the database tables, and the statements that undo it."""

    number: int
    name: str
    up: str
    down: str


def _notify_on_change(table: str, topic: str) -> str:
    """Return an SQL statement for a trigger that sends a notification with `topic` on each table change."""
    return f"""
CREATE TRIGGER {table}_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('{topic}');
"""


def _notify_on_insert(table: str, topic: str) -> str:
    """Return an SQL statement for a trigger that sends a notification with `topic` on each insert."""
    return f"""
CREATE TRIGGER {table}_added AFTER INSERT ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('{topic}');
"""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1,
        "agent sessions",
        up="""
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, model TEXT NOT NULL, dialect TEXT NOT NULL, system TEXT NOT NULL,
    title TEXT NOT NULL, parent TEXT NOT NULL, toolsets TEXT NOT NULL, disabled_toolsets TEXT NOT NULL,
    state TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL,
    turns INTEGER NOT NULL, draft TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
    claimed DOUBLE PRECISION NOT NULL DEFAULT 0
);
CREATE INDEX sessions_by_use ON sessions (updated DESC) WHERE parent = '';
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent != '';
CREATE TABLE messages (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, number DOUBLE PRECISION NOT NULL,
    turn INTEGER NOT NULL, role TEXT NOT NULL, body TEXT NOT NULL, text TEXT NOT NULL, state TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL, words TSVECTOR NOT NULL, PRIMARY KEY (session_id, number)
);
CREATE INDEX messages_by_word ON messages USING gin (words);
CREATE TABLE calls (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, call_id TEXT NOT NULL,
    tool TEXT NOT NULL, finished BOOLEAN NOT NULL DEFAULT false, result TEXT,
    started BIGINT GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (session_id, call_id)
);
""",
        down="DROP TABLE calls, messages, sessions;",
    ),
    Migration(
        2,
        "usage history",
        up="""
CREATE TABLE usage (
    row BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at DOUBLE PRECISION NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL, ok INTEGER NOT NULL,
    refused INTEGER NOT NULL, ms DOUBLE PRECISION NOT NULL, tokens INTEGER NOT NULL,
    saved_tokens INTEGER NOT NULL, cost DOUBLE PRECISION NOT NULL, saved_cost DOUBLE PRECISION NOT NULL,
    content TEXT NOT NULL
);
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_key ON usage (key) WHERE key != '';
""",
        down="DROP TABLE usage;",
    ),
    Migration(
        3,
        "notices of changes",
        up="""
CREATE FUNCTION send_change_notice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('toolfold_changes', TG_ARGV[0]);
    RETURN NULL;
END
$$;
""",
        down="DROP FUNCTION send_change_notice;",
    ),
    Migration(
        4,
        "tokens of clients",
        up="""
CREATE TABLE tokens (
    row BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE,
    toolsets TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, models BOOLEAN NOT NULL, revoked TIMESTAMPTZ
);
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE revoked IS NULL;
"""
        + _notify_on_change("tokens", "tokens"),
        down="DROP TABLE tokens;",
    ),
    Migration(
        5,
        "accepted tools of MCP servers",
        up="""
CREATE TABLE pins (server TEXT PRIMARY KEY, tools TEXT NOT NULL);
"""
        + _notify_on_change("pins", "pins"),
        down="DROP TABLE pins;",
    ),
    Migration(
        6,
        "approval questions",
        up="""
CREATE TABLE questions (
    id TEXT PRIMARY KEY, replica TEXT NOT NULL, description TEXT NOT NULL, answers TEXT NOT NULL,
    asked DOUBLE PRECISION NOT NULL, expires TIMESTAMPTZ NOT NULL, answer TEXT
);
CREATE TABLE open_pages (replica TEXT PRIMARY KEY, expires TIMESTAMPTZ NOT NULL);
"""
        + _notify_on_change("questions", "questions")
        + _notify_on_change("open_pages", "open_pages"),
        down="DROP TABLE questions, open_pages;",
    ),
    Migration(
        7,
        "audit log",
        up="""
CREATE TABLE audit (
    number BIGINT PRIMARY KEY, previous TEXT NOT NULL, hash TEXT NOT NULL, line TEXT NOT NULL
);
""",
        down="DROP TABLE audit;",
    ),
    Migration(
        8,
        "example messages of tools",
        up="""
CREATE TABLE example_messages (
    checksum TEXT PRIMARY KEY, line TEXT NOT NULL, row BIGINT GENERATED ALWAYS AS IDENTITY
);
"""
        + _notify_on_change("example_messages", "example_messages"),
        down="DROP TABLE example_messages;",
    ),
    Migration(
        9,
        "messages learned from use",
        up="""
CREATE TABLE learned (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client TEXT NOT NULL, server TEXT NOT NULL,
    tool TEXT NOT NULL, name TEXT NOT NULL, checksum TEXT NOT NULL, sketch TEXT NOT NULL, text TEXT NOT NULL,
    origin TEXT NOT NULL, uses INTEGER NOT NULL, misses INTEGER NOT NULL,
    first_used DOUBLE PRECISION NOT NULL, last_used DOUBLE PRECISION NOT NULL,
    model TEXT NOT NULL DEFAULT '', vector BYTEA NOT NULL DEFAULT '', UNIQUE (client, server, tool, text)
);
CREATE TABLE learned_totals (
    client TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, uses INTEGER NOT NULL,
    PRIMARY KEY (client, server, tool)
);
"""
        + _notify_on_change("learned", "learned"),
        down="DROP TABLE learned, learned_totals;",
    ),
    Migration(
        10,
        "users and teams",
        up="""
CREATE TABLE users (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, issuer TEXT NOT NULL, subject TEXT NOT NULL,
    admin BOOLEAN NOT NULL, disabled BOOLEAN NOT NULL, created DOUBLE PRECISION NOT NULL
);
CREATE UNIQUE INDEX users_by_identity ON users (issuer, subject) WHERE subject != '';
CREATE TABLE teams (
    name TEXT PRIMARY KEY, share_learned BOOLEAN NOT NULL, created DOUBLE PRECISION NOT NULL
);
CREATE TABLE team_members (
    team TEXT NOT NULL REFERENCES teams (name) ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE, PRIMARY KEY (team, user_id)
);
ALTER TABLE tokens ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
"""
        + _notify_on_change("users", "users")
        + _notify_on_change("teams", "users")
        + _notify_on_change("team_members", "users"),
        down="""
DELETE FROM tokens WHERE user_id != '';
ALTER TABLE tokens DROP COLUMN user_id;
DROP TABLE team_members, teams, users;
""",
    ),
    Migration(
        11,
        "vectors of tools",
        up="""
CREATE TABLE tool_vectors (
    model TEXT NOT NULL, checksum BYTEA NOT NULL, numbers BYTEA NOT NULL, scale REAL NOT NULL,
    used DATE NOT NULL DEFAULT CURRENT_DATE, PRIMARY KEY (model, checksum)
);
"""
        + _notify_on_insert("tool_vectors", "tool_vectors"),
        down="DROP TABLE tool_vectors;",
    ),
    Migration(
        12,
        "sessions of MCP clients",
        up="""
CREATE TABLE mcp_sessions (
    id TEXT PRIMARY KEY, client TEXT NOT NULL, opening BYTEA NOT NULL, used DOUBLE PRECISION NOT NULL,
    ended BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX mcp_sessions_by_use ON mcp_sessions (used);
CREATE INDEX mcp_sessions_by_client ON mcp_sessions (client, used);
""",
        down="DROP TABLE mcp_sessions;",
    ),
    Migration(
        13,
        "scheduled jobs",
        up="""
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, prompt TEXT NOT NULL, schedule TEXT NOT NULL,
    times TEXT NOT NULL, zone TEXT NOT NULL, limits TEXT NOT NULL, toolsets TEXT NOT NULL,
    send_to TEXT NOT NULL, missed TEXT NOT NULL, model TEXT NOT NULL, directory TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL, created_by TEXT NOT NULL, state TEXT NOT NULL,
    next_run DOUBLE PRECISION, owner TEXT NOT NULL, claimed DOUBLE PRECISION NOT NULL, client TEXT NOT NULL
);
CREATE INDEX jobs_by_time ON jobs (next_run) WHERE state = 'active';
CREATE TABLE runs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    planned DOUBLE PRECISION NOT NULL, started DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION,
    state TEXT NOT NULL, session_id TEXT NOT NULL, result TEXT NOT NULL, error TEXT NOT NULL,
    delivery TEXT NOT NULL
);
CREATE INDEX runs_by_job ON runs (job_id, number);
CREATE TABLE services (owner TEXT PRIMARY KEY, seen DOUBLE PRECISION NOT NULL);
""",
        down="DROP TABLE services, runs, jobs;",
    ),
    Migration(
        14,
        "access rules of users, teams and tokens",
        up="""
ALTER TABLE users ADD COLUMN allowed TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE users ADD COLUMN denied TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE teams ADD COLUMN allowed TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE teams ADD COLUMN denied TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE tokens ADD COLUMN denied TEXT[] NOT NULL DEFAULT '{}';
""",
        down="""
UPDATE users SET disabled = true WHERE allowed != '{}' OR denied != '{}' OR id IN (
    SELECT user_id FROM team_members JOIN teams ON name = team WHERE allowed != '{}' OR denied != '{}'
);
DELETE FROM tokens WHERE denied != '{}';
ALTER TABLE tokens DROP COLUMN denied;
ALTER TABLE teams DROP COLUMN allowed, DROP COLUMN denied;
ALTER TABLE users DROP COLUMN allowed, DROP COLUMN denied;
""",
    ),
    Migration(
        15,
        "search index of tools",
        up="""
CREATE TABLE catalog (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, checksum BYTEA NOT NULL UNIQUE, name TEXT NOT NULL,
    toolset BIGINT NOT NULL, server BIGINT NOT NULL, spellings TEXT[] NOT NULL, words TSVECTOR NOT NULL
);
CREATE INDEX catalog_by_word ON catalog USING gin (words) WITH (fastupdate = off);
CREATE INDEX catalog_by_spelling ON catalog USING gin (spellings) WITH (fastupdate = off);
CREATE TABLE catalog_uses (
    tool BIGINT PRIMARY KEY REFERENCES catalog (id) ON DELETE CASCADE, used DATE NOT NULL DEFAULT CURRENT_DATE
);
CREATE TABLE catalog_terms (term TEXT PRIMARY KEY, tools BIGINT NOT NULL);
CREATE TABLE catalog_fields (field TEXT PRIMARY KEY, length DOUBLE PRECISION NOT NULL);
CREATE TABLE nearest_tables (
    model TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, width INTEGER NOT NULL, ready BOOLEAN NOT NULL
);
"""
        + _notify_on_insert("catalog", "catalog")
        + _notify_on_change("nearest_tables", "catalog"),
        # The tables of vectors are created when they are needed, because their type is an extension's.
        down="""
DO $$
DECLARE each TEXT;
BEGIN
    FOR each IN SELECT name FROM nearest_tables LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I', each);
    END LOOP;
END
$$;
DROP TABLE nearest_tables, catalog_fields, catalog_terms, catalog_uses, catalog;
""",
    ),
    Migration(
        16,
        "credentials of users",
        up="""
CREATE TABLE credentials (
    user_id TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    updated DOUBLE PRECISION NOT NULL, PRIMARY KEY (user_id, server, name)
);
"""
        + _notify_on_change("credentials", "credentials"),
        down="DROP TABLE credentials;",
    ),
    Migration(
        17,
        "limits of users and teams",
        up="""
ALTER TABLE users ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
ALTER TABLE teams ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
CREATE TABLE quota_use (
    account TEXT NOT NULL, meter TEXT NOT NULL, window_start BIGINT NOT NULL, used DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (account, meter, window_start)
);
""",
        down="""
UPDATE users SET disabled = true WHERE limits != '{}' OR id IN (
    SELECT user_id FROM team_members JOIN teams ON name = team WHERE teams.limits != '{}'
);
DROP TABLE quota_use;
ALTER TABLE teams DROP COLUMN limits;
ALTER TABLE users DROP COLUMN limits;
""",
    ),
    Migration(
        18,
        "usage history of users",
        up="""
ALTER TABLE usage ADD COLUMN user_id TEXT NOT NULL DEFAULT '';
CREATE INDEX usage_user ON usage (user_id, at) WHERE user_id != '';
""",
        down="ALTER TABLE usage DROP COLUMN user_id;",
    ),
    Migration(
        19,
        "tool lists of MCP servers",
        # Only another list is a change: that a server still lists the same is not announced.
        up="""
CREATE TABLE tool_listings (
    server TEXT NOT NULL, settings TEXT NOT NULL, checksum TEXT NOT NULL, content TEXT NOT NULL,
    listed TIMESTAMPTZ NOT NULL, used DATE NOT NULL DEFAULT CURRENT_DATE, PRIMARY KEY (server, settings)
);
CREATE TRIGGER tool_listings_changed AFTER INSERT OR UPDATE OF checksum OR DELETE OR TRUNCATE ON tool_listings
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('tool_listings');
""",
        down="DROP TABLE tool_listings;",
    ),
    Migration(
        20,
        "logins at MCP servers",
        # The name of a login is another one after each login; refreshed tokens are not announced.
        up="""
CREATE TABLE logins (
    user_id TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    updated DOUBLE PRECISION NOT NULL, PRIMARY KEY (user_id, server)
);
CREATE TRIGGER logins_changed AFTER INSERT OR UPDATE OF name OR DELETE OR TRUNCATE ON logins
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('credentials');
CREATE TABLE login_leases (
    user_id TEXT NOT NULL, server TEXT NOT NULL, operation TEXT NOT NULL, owner TEXT NOT NULL,
    expires TIMESTAMPTZ NOT NULL, PRIMARY KEY (user_id, server, operation)
);
CREATE TABLE login_links (
    hash TEXT PRIMARY KEY, user_id TEXT NOT NULL, server TEXT NOT NULL, expires TIMESTAMPTZ NOT NULL
);
CREATE INDEX login_links_by_user ON login_links (user_id, expires);
""",
        down="DROP TABLE login_links, login_leases, logins;",
    ),
    Migration(
        21,
        "separate notices of logins",
        # A login must not make every replica read all credentials again.
        up="""
DROP TRIGGER logins_changed ON logins;
CREATE TRIGGER logins_changed AFTER INSERT OR UPDATE OF name OR DELETE OR TRUNCATE ON logins
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('logins');
CREATE INDEX login_links_by_end ON login_links (expires);
""",
        down="""
DROP INDEX login_links_by_end;
DROP TRIGGER logins_changed ON logins;
CREATE TRIGGER logins_changed AFTER INSERT OR UPDATE OF name OR DELETE OR TRUNCATE ON logins
    FOR EACH STATEMENT EXECUTE FUNCTION send_change_notice('credentials');
""",
    ),
)
LATEST = MIGRATIONS[-1].number


def find_version(database: Database) -> int:
    """Return the number of the last migration applied to a database; 0 for an empty database."""
    return database.run(_read_version)


def upgrade(database: Database) -> tuple[int, ...]:
    """Apply all pending migrations to the database, and return their numbers.

    Raises ConfigError if a newer version of Toolfold has changed the tables.
    """
    if find_version(database) == LATEST:
        return ()
    return migrate(database, LATEST)


def migrate(database: Database, target: int, migrations: Sequence[Migration] = MIGRATIONS) -> tuple[int, ...]:
    """Apply or undo migrations until `target` is the last applied one; return their numbers."""

    def change(cursor: RowCursor) -> tuple[int, ...]:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_S}s",))
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", (f"{LOCK_TIMEOUT_S}s",))
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied TIMESTAMPTZ NOT NULL DEFAULT now())"
        )
        version = _read_version(cursor)
        _require_known_version(version, migrations, database.address)
        if version <= target:
            return _apply(cursor, [each for each in migrations if version < each.number <= target])
        return _undo(cursor, [each for each in reversed(migrations) if target < each.number <= version])

    return database.run(change)


def _apply(cursor: RowCursor, migrations: Sequence[Migration]) -> tuple[int, ...]:
    for each in migrations:
        cursor.execute(each.up.encode())
        cursor.execute("INSERT INTO migrations (number, name) VALUES (%s, %s)", (each.number, each.name))
    return tuple(each.number for each in migrations)


def _undo(cursor: RowCursor, migrations: Sequence[Migration]) -> tuple[int, ...]:
    for each in migrations:
        cursor.execute(each.down.encode())
        cursor.execute("DELETE FROM migrations WHERE number = %s", (each.number,))
    return tuple(each.number for each in migrations)


def _read_version(cursor: RowCursor) -> int:
    found = cursor.execute(
        "SELECT to_regclass(%s) IS NOT NULL AS found", (f"{SCHEMA}.migrations",)
    ).fetchone()
    if not found or not found["found"]:
        return 0
    row = cursor.execute("SELECT coalesce(max(number), 0) AS version FROM migrations").fetchone()
    return int(row["version"]) if row else 0


def _require_known_version(version: int, migrations: Sequence[Migration], address: str) -> None:
    latest = max((each.number for each in migrations), default=0)
    if version > latest:
        raise ConfigError(
            f"the tables in the database {address} have version {version}, but this version of Toolfold "
            f"supports versions up to {latest}",
            key="store",
            hint="update Toolfold, or undo the newer migrations with the Toolfold version "
            f"that made them: toolfold store migrate --to {latest}",
        )
