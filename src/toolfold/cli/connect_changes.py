"""Show and undo changes that `toolfold connect` made to other programs' files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.cli.app import EXIT_FAILED
from toolfold.cli.output import escape_text, print_line, print_note, print_warning
from toolfold.cli.server_commands import confirm
from toolfold.core.errors import ConfigError
from toolfold.safety.approval.safe_text import make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.cli.connecting import ChangeLog, ClientFile, FileChange
    from toolfold.config import Config

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_MAX_LINE_CHARS = 300
_MAX_SETTINGS_CHARS = 200_000
"""Longer files contain a history, in which secrets are sought among the servers only."""
_SECTIONS = {
    "env": ("env", "envs", "environment"),
    "headers": ("headers", "http_headers"),
    "oauth": ("oauth", "auth"),
}


def undo_change(
    config: Config, steps: ChangeLog, step: FileChange | None, *, title: str, yes: bool, keep_changes: bool
) -> int:
    """Undo a logged change of a program's file, after the user has seen and confirmed it."""
    from toolfold.cli.connecting import FileChangedSinceError

    if step is None:
        print_line(f"nothing to undo: {title} was not connected with `toolfold connect`.")
        return 0
    try:
        now, content = steps.plan_removal(step) if keep_changes else steps.plan_undo(step)
    except FileChangedSinceError as error:
        print_difference(
            config,
            error.client_file,
            error.expected_text,
            error.client_file.text,
            ("as Toolfold wrote it", "as it is now"),
        )
        raise
    if content == now.data:
        steps.undo(step, now, content)
        print_line(f"{escape_text(step.file)} is already restored.")
        return 0
    print_difference(config, now, now.text, "" if content is None else content.decode("utf-8-sig"))
    question = (
        f"Delete {step.file}, which did not exist before?" if content is None else f"Change {step.file}?"
    )
    if not confirm(question, yes):
        print_line("nothing was changed.")
        return EXIT_FAILED
    if keep_changes:
        now, content = steps.plan_removal(step, before=now)
    steps.undo(step, now, content)
    became = "is deleted" if content is None else "is restored"
    added = step.name or "the settings of Toolfold"
    _print_undo_result(config, step, f"no longer contains {added}" if keep_changes else became)
    return 0


def _print_undo_result(config: Config, step: FileChange, became: str) -> None:
    print_line(f"{escape_text(step.file)} {escape_text(became)}.")
    if step.backup and Path(step.backup).exists():
        print_line(f"  the backup is kept: {escape_text(step.backup)}")
    if remaining := [name for name in step.imported if name in config.mcp.servers]:
        print_line(
            f"  still configured in Toolfold: {escape_text(', '.join(remaining))} (remove one with:"
            " toolfold mcp remove NAME)"
        )


def format_file_option(file: Path | None) -> str:
    """Return the option `--file` for a command that is suggested to the user; empty without a file."""
    return f" --file {escape_text(shlex.quote(str(file)))}" if file else ""


def print_file_notes(original: ClientFile, title: str) -> None:
    """Print warnings about a program's settings file before it is changed."""
    if original.file != original.target:
        print_note(
            f"{escape_text(str(original.file))} is a symbolic link;"
            f" {escape_text(str(original.target))} will be changed."
        )
    if original.data is None and not original.file.parent.exists():
        print_warning(f"{title} does not seem to be installed: {original.file.parent} does not exist")


def print_difference(
    config: Config, original: ClientFile, before: str, after: str, titles: tuple[str, str] | None = None
) -> None:
    """Print a unified diff of the program's file with secrets redacted."""
    from toolfold.cli.connecting import unified_diff
    from toolfold.safety.redaction import Redaction

    file = str(original.file)
    titles = titles or ("nothing" if original.data is None else file, file)
    lines = list(unified_diff(before, after, titles=titles))
    if any(len(line) > _MAX_LINE_CHARS for line in lines):
        lines = list(unified_diff(_indent_json(before), _indent_json(after), titles=titles))
    secrets = {word for text in (before, after) for word in _find_secrets(original, text)}
    redact = Redaction([*config.secret_values(), *secrets], max_chars=10 * _MAX_LINE_CHARS)
    for line in lines:
        shown = escape_text(make_visible(shorten_middle(redact(line.expandtabs(2)), _MAX_LINE_CHARS)))
        colour = _COLOURS.get(line[:1])
        print_line(f"[{colour}]{shown}[/{colour}]" if colour else shown)


def _indent_json(text: str) -> str:
    """Return JSON text indented for display; return any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _find_secrets(original: ClientFile, text: str) -> Iterator[str]:
    """Yield the secrets that appear as plain text in a program's file."""
    file = replace(original, data=text.encode())
    try:
        document, entries = file.document, file.servers.values()
    except ConfigError:
        return
    if len(text) <= _MAX_SETTINGS_CHARS:
        for pairs in _iter_mappings(document):
            yield from _secret_values(
                {"env": {key: each for key, each in pairs.items() if isinstance(each, str)}}
            )
    for entry in entries:
        if isinstance(entry, dict):
            yield from _secret_values(
                {key: _merge_sections(entry, names) for key, names in _SECTIONS.items()}
            )
            args = entry.get("args")
            yield from _secret_values({"args": args if isinstance(args, list) else []})


def _iter_mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all mappings in a parsed settings file, including nested mappings."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _iter_mappings(each)


def _merge_sections(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Merge sections with the same meaning, such as `env` and `environment`, of an MCP server's settings."""
    maps = (entry[name] for name in names if isinstance(entry.get(name), dict))
    return {key: value for each in maps for key, value in each.items() if isinstance(value, str)}


def _secret_values(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values in server settings that must not be displayed."""
    from toolfold.mcp.importing import redact_settings

    shown = redact_settings(settings)
    for section in _SECTIONS:
        for name, value in settings.get(section, {}).items():
            if shown.get(section, {}).get(name) != value:
                yield value
                yield from value.split()[1:]
    words = zip(settings.get("args", ()), shown.get("args", ()), strict=False)
    yield from (str(word) for word, seen in words if str(word) != seen)
