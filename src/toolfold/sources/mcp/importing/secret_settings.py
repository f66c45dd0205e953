"""Secrets that stand written out in a server's settings, and references in their place.

Decides by names and by the shapes of well-known tokens; a secret that looks like nothing is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolfold.model import Json
from toolfold.redaction import HIDDEN, Redaction
from toolfold.sources.mcp.importing.variables import variable_name

_REFERENCE = re.compile(r"(?<!\$)\$\{[^{}]*\}")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
_MAX_CHARS = 2_000


def find_literal_secrets(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that hold a secret as it is, by their keys: `env.TOKEN`, `headers.X-Key`, `args`."""
    return tuple(_iter_literal_secrets(settings))


def replace_secrets(server: str, settings: Mapping[str, Any]) -> tuple[Json, tuple[str, ...]]:
    """The settings with references for secrets, and the variables a person must set for them.

    A secret among the arguments or in an address has no name of its own, and stays.
    """
    changed = dict(settings)
    variables: list[str] = []
    for key in find_literal_secrets(settings):
        section, _, name = key.partition(".")
        if not name:
            continue
        variable = variable_name(name if section == "env" else f"{server}_{name}")
        scheme = _SCHEME.match(changed[section][name])
        before = scheme[0] if scheme and section == "headers" else ""
        changed[section] = {**changed[section], name: f"{before}${{{variable}}}"}
        variables.append(variable)
    return changed, tuple(variables)


def redact_settings(settings: Mapping[str, Any]) -> Json:
    """The settings as anybody may see them: what is secret is not there, references are."""
    changed = dict(settings)
    for key in find_literal_secrets(settings):
        section, _, name = key.partition(".")
        if name:
            changed[section] = {**changed[section], name: HIDDEN}
    changed["args"] = _redact_arguments(settings.get("args", ()))
    changed["url"] = Redaction()(url) if _looks_secret(url := str(settings.get("url", ""))) else url
    return {key: value for key, value in changed.items() if value or key not in ("args", "url")}


def _redact_arguments(args: Iterable[Any]) -> list[str]:
    """The arguments; `--api-key` says of the next one what it is."""
    before, words = "", []
    for each in map(str, args):
        is_named = before.startswith("-") and not each.startswith("-")
        named = f"{before.lstrip('-')}={each}" if is_named else each
        words.append(HIDDEN if _looks_secret(each) or _looks_secret(named) else each)
        before = each
    return words


def _iter_literal_secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    for section in ("env", "headers", "oauth"):
        for name, value in settings.get(section, {}).items():
            if isinstance(value, str) and _is_literal_secret(name, value):
                yield f"{section}.{name}"
    args = [str(each) for each in settings.get("args", ())]
    if _redact_arguments(args) != args:
        yield "args"
    if _looks_secret(str(settings.get("url", ""))):
        yield "url"


def _is_literal_secret(name: str, value: str) -> bool:
    written_out = _REFERENCE.sub("", value).strip()
    says_who = name.lower() == "authorization" and bool(_SCHEME.sub("", f"{written_out} ", count=1).strip())
    return says_who or _looks_secret(f"{name}={value}")


def _looks_secret(text: str) -> bool:
    """Whether there is a secret beside the references."""
    return Redaction().finds_any(_REFERENCE.sub("", text)[:_MAX_CHARS])
