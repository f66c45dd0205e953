"""Find secrets written literally in a server's settings, and replace them with variable references.

Decides by key names and the formats of well-known tokens; a secret without a recognisable format is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolfold.core.types import Json
from toolfold.mcp.importing.variables import variable_name
from toolfold.safety.redaction import HIDDEN, Redaction

_REFERENCE = re.compile(r"(?<!\$)\$\{[^{}]*\}")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
_MAX_CHARS = 2_000


def find_literal_secrets(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the setting keys, such as `env.TOKEN` or `args`, whose values contain a literal secret."""
    return tuple(_iter_literal_secrets(settings))


def replace_secrets(server: str, settings: Mapping[str, Any]) -> tuple[Json, tuple[str, ...]]:
    """Replace secrets in settings with references; also return the variables that the user must set.

    A secret in an argument or a URL has no name of its own and stays as it is.
    """
    changed = dict(settings)
    variables: list[str] = []
    for key in find_literal_secrets(settings):
        section, _, name = key.partition(".")
        if not name:
            continue
        variable = variable_name(name if section == "env" else f"{server}_{name}")
        scheme = _SCHEME.match(changed[section][name])
        prefix = scheme[0] if scheme and section == "headers" else ""
        changed[section] = {**changed[section], name: f"{prefix}${{{variable}}}"}
        variables.append(variable)
    return changed, tuple(variables)


def redact_settings(settings: Mapping[str, Any]) -> Json:
    """Replace secrets in settings with a placeholder; references to variables remain unchanged."""
    changed = dict(settings)
    for key in find_literal_secrets(settings):
        section, _, name = key.partition(".")
        if name:
            changed[section] = {**changed[section], name: HIDDEN}
    changed["args"] = _redact_arguments(settings.get("args", ()))
    changed["url"] = Redaction()(url) if _looks_secret(url := str(settings.get("url", ""))) else url
    return {key: value for key, value in changed.items() if value or key not in ("args", "url")}


def _redact_arguments(args: Iterable[Any]) -> list[str]:
    """Return command-line arguments with secrets redacted, such as the argument after `--api-key`."""
    previous, words = "", []
    for argument in map(str, args):
        is_option_value = previous.startswith("-") and not argument.startswith("-")
        assignment = f"{previous.lstrip('-')}={argument}" if is_option_value else argument
        words.append(HIDDEN if _looks_secret(argument) or _looks_secret(assignment) else argument)
        previous = argument
    return words


def _iter_literal_secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    for section in ("env", "headers", "oauth"):
        values = settings.get(section, {})
        if isinstance(values, str):  # not parsed yet, as in `toolfold mcp set NAME env "{…}"`
            if _looks_secret(values):
                yield section
            continue
        for name, value in values.items():
            if isinstance(value, str) and _is_literal_secret(name, value):
                yield f"{section}.{name}"
    args = [str(each) for each in settings.get("args", ())]
    if _redact_arguments(args) != args:
        yield "args"
    if _looks_secret(str(settings.get("url", ""))):
        yield "url"


def _is_literal_secret(name: str, value: str) -> bool:
    literal = _REFERENCE.sub("", value).strip()
    has_credentials = name.lower() == "authorization" and bool(
        _SCHEME.sub("", f"{literal} ", count=1).strip()
    )
    return has_credentials or _looks_secret(f"{name}={value}")


def _looks_secret(text: str) -> bool:
    """Return True if the text contains a secret; references to environment variables are not secrets."""
    return Redaction().contains_secret(_REFERENCE.sub("", text)[:_MAX_CHARS])
