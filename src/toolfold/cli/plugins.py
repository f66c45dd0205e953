"""`toolfold plugins`: what was found, what became of it, and which project folders are trusted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from toolfold.cli.app import Settings, json_option
from toolfold.cli.show import as_json, out, plain, table


@click.group("plugins", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json_: bool) -> None:
    """List plugins, and trust a project's."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_plugins, as_json_=as_json_)


@command.command("list")
@json_option
@click.pass_obj
def list_plugins(settings: Settings, as_json_: bool = False) -> None:
    """List the plugins with their state, what they bring and what went wrong."""
    with settings.runtime() as runtime:
        found = [report for report in runtime.sources if report.kind != "builtin"]
        folder = runtime.config.plugins_folder
    if as_json_:
        as_json([asdict(report) for report in found])
        return
    if not found:
        out(f"no plugins. Put one into {plain(str(folder))}, or install a package that brings one.")
        return
    table(
        f"{len(found)} plugins",
        ("plugin", "from", "state", "#tools", "hooks", "toolsets", "where"),
        (
            (
                report.name,
                report.kind,
                f"{report.state}: {report.error}" if report.error else report.state,
                str(len(report.tools)),
                ", ".join(report.hooks),
                ", ".join(report.toolsets),
                report.location,
            )
            for report in found
        ),
    )


@command.command("trust")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.pass_obj
def trust_folder(settings: Settings, folder: Path | None) -> None:
    """Let the plugins and the configuration of a project folder be used, as they are now.

    A later change of either must be trusted anew.
    """
    from toolfold.config import trust

    paths = settings.config().paths
    chosen = folder or paths.project_dir
    trust(chosen, paths)
    out(f"trusted as it is now: {plain(str(chosen))}")


@command.command("untrust")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.pass_obj
def untrust_folder(settings: Settings, folder: Path | None) -> None:
    """Take the trust back."""
    from toolfold.config import untrust

    paths = settings.config().paths
    chosen = folder or paths.project_dir
    was = untrust(chosen, paths)
    out(f"{'no longer trusted' if was else 'was not trusted'}: {plain(str(chosen))}")
