"""Secrets that stand written out in a server's settings, and references in their place.

Decides by names and by the shapes of well-known tokens; a secret that looks like nothing is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolfold.model import Json
from toolfold.redaction import Redaction
from toolfold.sources.mcp.importing.variables import variable_name

_REFERENCE = re.compile(r"(?<!\$)\$\{")
_SCHEME = re.compile(r"((?:Bearer|Basic|Token)\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_MOST = 2_000


def literal_secrets(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that hold a secret as it is, by their keys: `env.TOKEN`, `headers.X-Key`, `args`."""
    return tuple(_secrets(settings))


def referring(server: str, settings: Mapping[str, Any]) -> tuple[Json, tuple[str, ...]]:
    """The settings with references for secrets, and the variables a person must set for them.

    A secret among the arguments or in an address has no name of its own, and stays.
    """
    changed = dict(settings)
    variables: list[str] = []
    for key in literal_secrets(settings):
        section, _, name = key.partition(".")
        if not name:
            continue
        variable = variable_name(name if section == "env" else f"{server}_{name}")
        scheme = _SCHEME.fullmatch(changed[section][name])
        before = (scheme[1] or "") if scheme and section == "headers" else ""
        changed[section] = {**changed[section], name: f"{before}${{{variable}}}"}
        variables.append(variable)
    return changed, tuple(variables)


def _secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    for section in ("env", "headers", "oauth"):
        for name, value in settings.get(section, {}).items():
            if isinstance(value, str) and _is_literal_secret(name, value):
                yield f"{section}.{name}"
    if any(_looks_secret(each) for each in _words(settings.get("args", ()))):
        yield "args"
    if _looks_secret(str(settings.get("url", ""))):
        yield "url"


def _words(args: Any) -> Iterator[str]:
    """Each argument, and each with the one before it: `--api-key` says what the next one is."""
    before = ""
    for each in args:
        yield str(each)
        if before.startswith("-") and not str(each).startswith("-"):
            yield f"{before.lstrip('-')}={each}"
        before = str(each)


def _is_literal_secret(name: str, value: str) -> bool:
    if _REFERENCE.search(value):
        return False
    return _looks_secret(f"{name}={value}") or (name.lower() == "authorization" and bool(value.strip()))


def _looks_secret(text: str) -> bool:
    return not _REFERENCE.search(text) and Redaction().finds_any(text[:_MOST])
