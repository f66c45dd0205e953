"""`toolfold connect PROGRAM --proxy`: send a program's model requests through the proxy, or undo that."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from toolfold.cli.app import EXIT_FAILED
from toolfold.cli.connect import home_directory, validate_url, warn_about_missing_token
from toolfold.cli.connect_changes import (
    format_file_option,
    print_difference,
    print_file_notes,
    undo_change,
)
from toolfold.cli.output import escape_text, print_line, print_note, print_warning
from toolfold.cli.server_commands import confirm
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.cli.connecting import ChangeLog, ClientFile, FileChange, ModelProgram, ProgramName
    from toolfold.config import Config

_API_TITLES = {"openai": "OpenAI", "anthropic": "Anthropic"}


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Options of `toolfold connect --proxy`."""

    program: ProgramName
    file: Path | None
    """The settings file to change; by default the program's own."""
    url: str
    """URL of the proxy; empty for the configured one."""
    token_variable: str
    yes: bool


def open_proxy_log(config: Config) -> ChangeLog:
    """Return the log of programs that were connected to the proxy."""
    from toolfold.cli.connecting import ChangeLog, SettingsEditor

    return ChangeLog(config.paths.state_dir / "connected_to_proxy.json", SettingsEditor())


def connect_proxy(config: Config, options: ProxyOptions) -> int:
    """Write the proxy's URL to a program's settings file, after the user has confirmed the change."""
    from toolfold.cli.connecting import ProxyAccess, build_settings_content, find_program, open_settings_file

    if not config.proxy.enabled:
        raise ConfigError(
            "the model proxy is turned off",
            key="proxy.enabled",
            hint="Turn on the model proxy with: toolfold config set proxy.enabled true",
        )
    program = find_program(options.program)
    url = _proxy_url(config, options)
    validate_url(url, options.token_variable)
    warn_about_missing_token(config, url, options.token_variable)
    file = options.file or program.locate(home_directory(config), sys.platform, config.environment)
    access = ProxyAccess(url, config.proxy.folding != "off", options.token_variable)
    settings = program.build_settings(access)
    original = open_settings_file(options.program, file)
    content = build_settings_content(original, settings)
    if content == original.data:
        print_line(f"{program.title} already uses the proxy: {escape_text(str(file))}")
        return 0
    print_file_notes(original, program.title)
    print_difference(config, original, original.text, content.decode("utf-8-sig"))
    if not confirm(f"Change {file}?", options.yes):
        print_line("nothing was changed.")
        return EXIT_FAILED
    step = open_proxy_log(config).apply(original, content, name="", entry=settings)
    _print_result(program, step, options)
    _print_previous_urls(original, program, url)
    return 0


def undo_proxy(config: Config, options: ProxyOptions, *, keep_changes: bool) -> int:
    """Restore a program's settings file to its content before the program was connected to the proxy."""
    from toolfold.cli.connecting import find_program

    steps, title = open_proxy_log(config), find_program(options.program).title
    step = steps.last_change(options.program, options.file)
    return undo_change(config, steps, step, title=title, yes=options.yes, keep_changes=keep_changes)


def _proxy_url(config: Config, options: ProxyOptions) -> str:
    """Return the URL of the proxy without a path."""
    if options.url:
        try:
            return urlunsplit(urlsplit(options.url)._replace(path="", query="", fragment=""))
        except ValueError:
            return options.url  # refused by the check of the URL
    host = config.gateway.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def _print_result(program: ModelProgram, step: FileChange, options: ProxyOptions) -> None:
    print_line(f"{program.title} sends its model requests through Toolfold: {escape_text(step.file)}")
    if step.backup:
        print_line(f"  backup: {escape_text(step.backup)}")
    print_line(f"  {program.key_note}")
    if options.token_variable:
        how = program.access_note.replace("$NAME", f"${options.token_variable}")
        print_line(f"  {how or f'set {options.token_variable} in the environment of {program.title}'}.")
    print_line(
        f"next: start the proxy with `toolfold serve`, restart {program.title}, then run `toolfold doctor`."
        f" To undo: toolfold connect {step.client} --proxy --undo{format_file_option(options.file)}"
    )


def _print_previous_urls(original: ClientFile, program: ModelProgram, url: str) -> None:
    """Print how to configure the proxy so that it forwards to the URLs that the program used before."""
    from toolfold.cli.connecting import get_setting

    for path, api in program.url_settings.items():
        before: Any = get_setting(original.document, path)
        if isinstance(before, str) and before and not before.startswith(url):
            print_warning(
                f"{program.title} used {before} before. The proxy forwards to {_API_TITLES[api]}; to forward"
                f" there: toolfold config set providers.{api}.base_url {before}"
            )
    provider = original.document.get("model_provider")
    if isinstance(provider, str) and provider not in ("toolfold", "openai"):
        print_note(
            f"{program.title} used the provider {escape_text(provider)} before. To forward its models there,"
            " add the provider to `providers` and its models to `proxy.upstreams`."
        )
