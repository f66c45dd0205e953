"""Reference pages of the documentation site, written from the program itself when the site is built.

Each function returns the Markdown of one page: the Python names, the commands, the settings, the events. The
pages have no files in the repository, so they cannot become outdated.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click

import toolfold
from toolfold.cli.app import COMMANDS, app
from toolfold.config.describe import Setting, describe_settings
from toolfold.core import events

FIELD_NOTE = re.compile(r'^    (\w+): [^\n]*\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
HIDDEN_DEFAULT = re.compile(r"<(?:factory|function|built-in)[^>]*>+")
QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
MAX_SIGNATURE_CHARS = 90


def render_api() -> str:
    """Return the page about the public Python names."""
    parts = [
        "# Python names",
        "All names that `toolfold` exports, from their docstrings. They are [recorded](../api.txt), so that"
        " they do not change by accident. [Tools](../tools.md) and [The agent](../agent.md) show how they are"
        " used.",
    ]
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in toolfold.__all__:
        value = getattr(toolfold, name)
        is_error = inspect.isclass(value) and issubclass(value, BaseException)
        kinds["Errors" if is_error else "Classes" if inspect.isclass(value) else "Functions"].append(name)
    for title, names in kinds.items():
        parts.append(f"## {title}")
        parts += itertools.chain.from_iterable(describe_name(name, getattr(toolfold, name)) for name in names)
    return join_parts(parts)


def describe_name(name: str, value: Any) -> Iterator[str]:
    """Yield the heading, the signature, the docstring and the members of a public name."""
    yield f"### {name}"
    if inspect.isclass(value):
        yield format_code(describe_class(name, value))
        yield read_docstring(value)
        yield from describe_fields(value)
        yield from describe_methods(value)
    else:
        yield format_code(format_signature(name, value))
        yield read_docstring(value)


def describe_methods(cls: type) -> Iterator[str]:
    """Yield a paragraph about every public method and property of a class."""
    for name, member in collect_members(cls).items():
        member = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(member, property):
            yield f"**`{name}`**{format_rest(read_docstring(member))}"
        elif inspect.isfunction(inspect.unwrap(member) if callable(member) else member):
            signature = format_signature(name, member, one_line=True)
            yield f"**`{signature}`**{format_rest(read_docstring(member))}"


def collect_members(cls: type) -> dict[str, Any]:
    """Return the public members of a class that it, or a base class in this package, defines."""
    owners = [each for each in cls.__mro__ if each.__module__.startswith("toolfold")]
    fields = {each.name for each in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return {
        name: member
        for owner in reversed(owners)
        for name, member in vars(owner).items()
        if not name.startswith(("_", "model_")) and name not in fields
    }


def describe_class(name: str, cls: type) -> str:
    """Return the constructor's signature of a class, its base classes, or the values of an enumeration."""
    if issubclass(cls, enum.Enum):
        return f"class {name}: {', '.join(repr(each.value) for each in cls)}"
    own_constructor = any(
        "__init__" in vars(each) for each in cls.__mro__ if each.__module__.startswith("toolfold")
    )
    if not own_constructor or issubclass(cls, BaseException) or getattr(cls, "_is_protocol", False):
        return f"class {name}({', '.join(base.__name__ for base in cls.__bases__)})"
    return format_signature(name, cls.__init__).removesuffix(" -> None")


def describe_fields(cls: type) -> Iterator[str]:
    """Yield a table of the fields of a data class, with the notes below them in the source."""
    if not dataclasses.is_dataclass(cls):
        return
    notes = read_field_notes(cls)
    rows = [
        f"| `{field.name}` | {format_cell(describe_type(field.type), code=True)}"
        f" | {format_cell(notes.get(field.name, ''))} |"
        for field in dataclasses.fields(cls)
        if not field.name.startswith("_")
    ]
    if rows:
        yield "\n".join(["| field | type | |", "|---|---|---|", *rows])


def describe_type(annotation: object) -> str:
    """Return a type as it is written in the source."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def render_commands() -> str:
    """Return the page about the command line."""
    parts = [
        "# Commands",
        "Every command of `toolfold` with its options. Exit codes: 0 success, 1 failed, 2 wrong usage,"
        " 3 invalid configuration, 4 name not found, 130 interrupted;"
        " [`toolfold run`](../chat.md#toolfold-run) has more.",
        *describe_parameters(app),
    ]
    context = click.Context(app, info_name="toolfold")
    for name in sorted(COMMANDS):
        command = app.get_command(context, name)
        assert command is not None
        parts += describe_command(command, f"toolfold {name}", context, level=2)
    return join_parts(parts)


def describe_command(command: click.Command, path: str, parent: click.Context, level: int) -> Iterator[str]:
    """Yield the usage, the description and the options of a command and of its subcommands."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"{'#' * level} {path}"
    yield format_code(usage, "text")
    yield format_prose(inspect.cleandoc(command.help or ""))
    yield from describe_parameters(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from describe_command(below, f"{path} {name}", context, level=3)


def describe_parameters(command: click.Command) -> Iterator[str]:
    """Yield a table of the options of a command."""
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if not options:
        return
    rows = ["| option | |", "|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" {format_cell(describe_value(option), code=True)}"
        default = f" Default: `{option.default}`." if option.show_default and option.default else ""
        rows.append(f"| {names}{value} | {format_cell(option.help or '')}{default} |")
    yield "\n".join(rows)


def describe_value(option: click.Option) -> str:
    """Return the placeholder for an option's value, or the choices of the option."""
    if isinstance(option.type, click.Choice):
        return " | ".join(str(each) for each in option.type.choices)
    return option.metavar or option.type.name.upper()


def render_settings() -> str:
    """Return the page about the settings."""
    settings = describe_settings()
    parts = [
        "# Settings",
        f"All {len(settings)} settings, as `toolfold config schema` prints them."
        " [Configuration](../configuration.md) explains files, environment variables and precedence."
        " *Restricted* means that it can widen permissions, so a project's file cannot simply"
        " [set it](../configuration.md#errors-and-limits).",
    ]
    for section, members in itertools.groupby(settings, key=lambda each: each.key.partition(".")[0]):
        parts.append(f"## `{section}`")
        rows = [
            f"| `{each.key}` | {describe_setting_type(each)} | {describe_meaning(each)} |" for each in members
        ]
        parts.append("\n".join(["| key | type and default | |", "|---|---|---|", *rows]))
    return join_parts(parts)


def describe_setting_type(setting: Setting) -> str:
    """Return the type, the range and the default of a setting, for a table."""
    default = json.dumps(setting.default, default=str, ensure_ascii=False)
    limits = f" {setting.range}" if setting.range else ""
    return f"{format_cell(setting.type, code=True)}{limits}; {format_cell(default, code=True)}"


def describe_meaning(setting: Setting) -> str:
    """Return the description of a setting, for a table."""
    return format_cell(setting.description) + (" *Restricted.*" if setting.grants else "")


def render_events() -> str:
    """Return the page about the events."""
    parts = [
        "# Events",
        "What happens in a session, as typed objects: [`agent.stream`](../agent.md#events) yields them, and"
        " `toolfold run --json` prints one as JSON per line, with its `type` and these fields. The classes"
        " are in `toolfold.core.events`.",
    ]
    classes = [
        each for each in vars(events).values() if inspect.isclass(each) and issubclass(each, events.Event)
    ]
    for cls in classes:
        parts += [f"## {cls.__name__}", f"`type`: `{cls.type}`", read_docstring(cls), *describe_fields(cls)]
    parts += ["## Usage", read_docstring(events.Usage), *describe_fields(events.Usage)]
    return join_parts(parts)


def read_docstring(value: Any) -> str:
    """Return the docstring of a name as Markdown."""
    text = inspect.getdoc(value) or ""
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")  # by the dataclass decorator
    return "" if generated else format_prose(text)


def read_field_notes(cls: type) -> dict[str, str]:
    """Return the strings below the fields of a class, and of its base classes, by the names of the fields."""
    notes: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(each))
        except (OSError, TypeError):
            continue
        notes |= dict(FIELD_NOTE.findall(source))
    return notes


def format_signature(name: str, value: Any, *, one_line: bool = False) -> str:
    """Return the signature of a function, with types as they are written in the source."""
    signature = inspect.signature(inspect.unwrap(value))
    shown = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature = signature.replace(parameters=shown)
    text = HIDDEN_DEFAULT.sub("…", QUOTED_TYPE.sub(r"\1\2", name + str(signature)))
    if one_line or len(text) <= MAX_SIGNATURE_CHARS:
        return text
    parameters = [QUOTED_TYPE.sub(r"\1\2", str(each)) for each in shown]
    if any(each.kind is each.KEYWORD_ONLY for each in shown):
        first = next(i for i, each in enumerate(shown) if each.kind is each.KEYWORD_ONLY)
        parameters.insert(first, "*")
    returned = text.rpartition(" -> ")[2] if " -> " in text else ""
    lines = "".join(f"    {HIDDEN_DEFAULT.sub('…', each)},\n" for each in parameters)
    return f"{name}(\n{lines})" + (f" -> {returned}" if returned else "")


def format_prose(text: str) -> str:
    """Return the text of a docstring or a help text as Markdown."""
    paragraphs = text.replace("\b", "").strip().split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("<", "&lt;") for each in paragraphs)


def format_rest(text: str) -> str:
    """Return a docstring with a colon before it, to follow a name in the same paragraph."""
    return f": {text}" if text else ""


def format_cell(text: str, *, code: bool = False) -> str:
    """Return text for a table cell."""
    line = " ".join(text.split())
    return f"`{line.replace('|', chr(92) + '|')}`" if code else line.replace("|", "\\|").replace("<", "&lt;")


def format_code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def join_parts(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


PAGES = {
    "reference/api.md": render_api,
    "reference/commands.md": render_commands,
    "reference/settings.md": render_settings,
    "reference/events.md": render_events,
}
