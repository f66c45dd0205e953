"""`toolfold skills`: list the skills that an agent can read."""

from __future__ import annotations

import click

from toolfold.cli.app import Invocation, json_option
from toolfold.cli.output import escape_text, format_count, print_json, print_line, print_table


@click.group("skills")
def command() -> None:
    """List the skills that an agent can read: directories with instructions for a task."""


@command.command("list")
@json_option
@click.pass_obj
def list_skills(invocation: Invocation, as_json: bool) -> None:
    """List your skills and those of the project."""
    from toolfold.tools.skill_files import open_skill_library

    library = open_skill_library(invocation.load_config())
    found = library.list_skills()
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "description": each.description,
                    "from": each.origin,
                    "directory": str(each.directory),
                    "problem": each.problem,
                }
                for each in found
            ]
        )
    elif found:
        print_table(
            format_count(len(found), "skill"),
            ("skill", "from", "what it is for", "cannot be used"),
            ((each.name, each.origin, each.description, each.problem) for each in found),
            no_wrap="skill",
        )
    else:
        own = escape_text(str(library.own))
        print_line(
            f"no skills yet. A skill is a directory with a file SKILL.md, for example {own}/release/SKILL.md"
        )
