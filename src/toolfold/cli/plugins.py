"""`toolfold plugins`: what was found, what became of it, and which project folders are trusted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.show import as_json, counted, out, plain, table


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
def list_plugins(invocation: Invocation, as_json_: bool = False) -> None:
    """List the plugins with their state, what they bring and what went wrong."""
    with invocation.runtime() as runtime:
        found = [report for report in runtime.sources if report.kind != "builtin"]
        folder = runtime.config.plugins_folder
    if as_json_:
        as_json([asdict(report) for report in found])
        return
    if not found:
        out(f"no plugins. Put one into {plain(str(folder))}, or install a package that brings one.")
        return
    table(
        counted(len(found), "plugin"),
        ("plugin", "from", "state", "#tools", "brings also"),
        (
            (
                report.name,
                report.kind,
                report.state,
                str(len(report.tools)),
                ", ".join((*report.hooks, *(f"toolset {name}" for name in report.toolsets))),
            )
            for report in found
        ),
        whole="plugin",
    )
    for report in found:
        if report.error:
            out(f"[bold]{plain(report.name)}[/bold] ({plain(report.location)})\n  {plain(report.error)}")


@command.command("trust")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.pass_obj
def trust_folder(invocation: Invocation, folder: Path | None) -> None:
    """Let the plugins and the configuration of a project folder be used, as they are now.

    A later change of either must be trusted anew.
    """
    from toolfold.config import PROJECT_FILE, trust

    paths = invocation.paths()
    chosen = folder or paths.project_dir
    found = [path for path in (chosen / PROJECT_FILE, *_plugin_files(chosen)) if path.exists()]
    if not found:
        raise click.ClickException(f"there is nothing to trust in {chosen}: no {PROJECT_FILE}, no plugins")
    trust(chosen, paths)
    out(f"trusted as they are now, in {plain(str(chosen))}:")
    for path in found:
        out(f"  {plain(str(path.relative_to(chosen)))}")


@command.command("untrust")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.pass_obj
def untrust_folder(invocation: Invocation, folder: Path | None) -> None:
    """Take the trust back."""
    from toolfold.config import untrust

    paths = invocation.paths()
    chosen = folder or paths.project_dir
    was = untrust(chosen, paths)
    out(f"{'no longer trusted' if was else 'was not trusted'}: {plain(str(chosen))}")


def _plugin_files(project: Path) -> list[Path]:
    folder = project / ".toolfold" / "plugins"
    return sorted(path for path in folder.rglob("*") if path.is_file())
