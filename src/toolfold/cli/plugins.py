"""`toolfold plugins`: list and create plugins, and trust project directories."""

from __future__ import annotations

import keyword
import re
from dataclasses import asdict
from pathlib import Path

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_table

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@click.group("plugins", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List plugins, create one; trust a project's plugins and settings."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_plugins, as_json=as_json)


@command.command("list", short_help="List the plugins, their state and their errors.")
@json_option
@click.pass_obj
def list_plugins(invocation: Invocation, as_json: bool = False) -> None:
    """List the plugins with their state, what they provide, and their errors."""
    with invocation.open_runtime() as runtime:
        found = [report for report in runtime.sources if report.kind != "builtin"]
        directory = runtime.config.plugins_folder
    if as_json:
        print_json([asdict(report) for report in found])
        return
    if not found:
        print_line(
            f"no plugins found. Put one into {escape_text(str(directory))}, or install a package"
            " that provides one."
        )
        return
    print_table(
        format_count(len(found), "plugin"),
        ("plugin", "from", "state", "#tools", "also provides"),
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
        no_wrap="plugin",
    )
    for report in found:
        if report.error:
            print_line(
                f"[bold]{escape_text(report.name)}[/bold] ({escape_text(report.location)})\n "
                f" {escape_text(report.error)}"
            )


@command.command("new", short_help="Create a plugin to start from.")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to create. Default: toolfold-NAME in the current directory.",
)
def create_plugin(name: str, directory: Path | None) -> None:
    """Create a plugin to start from: a package with one tool, an entry point and a test.

    NAME is the name of the Python package, such as `weather`.
    """
    from toolfold.cli.plugin_template import render_plugin

    if not _PLUGIN_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise click.UsageError(f"{name!r} must be a Python name of lower-case letters, digits and _")
    chosen = directory or Path(f"toolfold-{name.replace('_', '-')}")
    try:
        chosen.mkdir(parents=True)
        for path, text in render_plugin(name).items():
            (chosen / path).parent.mkdir(parents=True, exist_ok=True)
            (chosen / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise click.ClickException(f"{chosen} already exists. Choose another --directory.") from None
    except OSError as error:
        raise click.ClickException(f"{chosen} cannot be created: {error.strerror}") from None
    shown = escape_text(str(chosen))
    print_line(
        f"created: {shown}\ntest it: (cd {shown} && python -m pytest)\ninstall it: pip install -e {shown}"
    )


@command.command("trust", short_help="Trust the plugins and settings of a project.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.pass_obj
def trust_directory(invocation: Invocation, directory: Path | None) -> None:
    """Trust the plugins and settings of a project directory in their current state.

    After a later change to either, they must be trusted again.
    """
    from toolfold.config import PROJECT_FILE, trust_project

    paths = invocation.paths()
    chosen = directory or paths.project_dir
    found = [path for path in (chosen / PROJECT_FILE, *_plugin_files(chosen)) if path.exists()]
    if not found:
        raise click.ClickException(f"nothing to trust in {chosen}: it has no {PROJECT_FILE} and no plugins")
    trust_project(chosen, paths)
    print_line(f"trusted in their current state, in {escape_text(str(chosen))}:")
    for path in found:
        print_line(f"  {escape_text(str(path.relative_to(chosen)))}")


@command.command("untrust", short_help="Stop trusting a project.")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.pass_obj
def untrust_directory(invocation: Invocation, directory: Path | None) -> None:
    """Stop trusting the plugins and settings of a project directory."""
    from toolfold.config import untrust_project

    paths = invocation.paths()
    chosen = directory or paths.project_dir
    was_trusted = untrust_project(chosen, paths)
    print_line(f"{'no longer trusted' if was_trusted else 'was not trusted'}: {escape_text(str(chosen))}")


def _plugin_files(project: Path) -> list[Path]:
    directory = project / ".toolfold" / "plugins"
    return sorted(path for path in directory.rglob("*") if path.is_file())
