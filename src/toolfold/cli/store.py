"""`toolfold store`: show where state is stored, copy it into a shared database, migrate and recover it."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict

import click

from toolfold.cli.app import EXIT_FAILED, Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_note, print_table
from toolfold.cli.shared_database import use_database
from toolfold.cli.unused_files import warn_of_unused_files
from toolfold.core.errors import ConfigError
from toolfold.state.database.opening import LOCAL_STORE


@click.group("store")
def command() -> None:
    """Show where state is stored, copy it into a shared database, and migrate or recover it."""


@command.command("status")
@json_option
@click.pass_obj
def show_status(invocation: Invocation, as_json: bool) -> None:
    """Show where state is stored, and whether the database can be reached."""
    from toolfold.state.database import Database
    from toolfold.state.database.migrations import LATEST, find_version

    config = invocation.load_config()
    if config.store == LOCAL_STORE:
        if as_json:
            print_json({"store": LOCAL_STORE, "directory": str(config.paths.state_dir)})
        else:
            print_line(f"files on this machine: {config.paths.state_dir}")
        return
    database = Database(config.store)
    try:
        version = find_version(database)
    finally:
        database.close()
    if as_json:
        print_json({"store": database.address, "version": version, "latest": LATEST})
        return
    print_line(f"PostgreSQL database {database.address}: tables of version {version} of {LATEST}")
    if version < LATEST:
        print_note("The tables are migrated at the next start, or now with `toolfold store migrate`.")
    warn_of_unused_files(config, use_database(config) if version == LATEST else None)


@command.command("copy")
@click.option("--dry-run", is_flag=True, help="Show what would be copied; change nothing.")
@json_option
@click.pass_obj
def copy_files(invocation: Invocation, dry_run: bool, as_json: bool) -> int:
    """Copy users, teams, tokens and what belongs to them from files into the shared database.

    Also copied are accepted tools of MCP servers, credentials, logins and scheduled jobs. What the database
    already has is never changed, so the command can be repeated. The files are kept.
    """
    from toolfold.cli.store_copy import copy_state

    config = invocation.load_config()
    database = use_database(config)
    if database is None:
        raise ConfigError(
            "there is no database to copy to: state is stored in files on this machine",
            key="store",
            hint="name the database first: toolfold config set store postgresql://…",
        )
    reports = copy_state(config, database, dry_run=dry_run)
    conflicts = [(each.kind, *pair) for each in reports for pair in each.conflicts.items()]
    if as_json:
        print_json({"dry_run": dry_run, "reports": [asdict(each) for each in reports]})
        return EXIT_FAILED if conflicts else 0
    print_table(
        "Would be copied" if dry_run else "",
        ("what", "#copied", "#already there", "#conflicts"),
        [
            (each.kind, *(str(len(part)) for part in (each.copied, each.present, each.conflicts)))
            for each in reports
        ],
    )
    if conflicts:
        print_table("not copied", ("what", "name", "why"), conflicts)
    return EXIT_FAILED if conflicts else 0


@command.command("migrate")
@click.option(
    "--to",
    "target",
    type=click.IntRange(0),
    help="Version of the tables to migrate to. Default: the latest. A version lower than the current one"
    " undoes migrations and deletes the tables that they created.",
)
@click.option("--yes", is_flag=True, help="Do not ask before data is deleted.")
@click.pass_obj
def migrate_tables(invocation: Invocation, target: int | None, yes: bool) -> None:
    """Upgrade or downgrade the tables of the shared database. Safe while replicas are running."""
    from toolfold.state.database import Database
    from toolfold.state.database.migrations import LATEST, find_version, migrate

    config = invocation.load_config()
    if config.store == LOCAL_STORE:
        raise ConfigError(
            "state is stored in files on this machine, which need no migration",
            key="store",
            hint="to share state between replicas, set `store` to a postgresql:// URL",
        )
    wanted = LATEST if target is None else target
    if wanted > LATEST:
        raise click.BadParameter(f"the latest version is {LATEST}", param_hint="--to")
    database = Database(config.store)
    try:
        if wanted < find_version(database) and not yes:
            click.confirm(f"Undo the migrations after version {wanted} and delete their data?", abort=True)
        changed = migrate(database, wanted)
    finally:
        database.close()
    numbers = ", ".join(map(str, changed))
    print_line(f"migrated: {numbers}" if changed else f"nothing to do: the tables have version {wanted}")


@command.command("recover")
@click.pass_obj
def recover_files(invocation: Invocation) -> None:
    """Check the files in which state is stored; set damaged files aside and keep what can be read of them.

    Close other programs of Toolfold first.
    """
    from toolfold.state.store.recovery import find_damage, list_store_files, recover_file

    for file in list_store_files(invocation.paths().state_dir):
        try:
            if not (damage := find_damage(file)):
                print_line(f"{escape_text(str(file))} is not damaged")
                continue
            found = recover_file(file)
        except (OSError, sqlite3.Error) as error:
            raise click.ClickException(f"{file} could not be recovered: {error}") from None
        print_line(
            f"{escape_text(str(file))} was damaged ({escape_text(damage)}):"
            f" kept {format_count(found.rows, 'row')},"
            f" and the damaged file is now {escape_text(str(found.damaged))}"
        )
