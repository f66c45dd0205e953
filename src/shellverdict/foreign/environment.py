"""Variables of the environment that code of script languages looks up, by how each language writes it.

They stand in strings as often as between them (`"?k=#{ENV['KEY']}"`), so the text is searched as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["environment"]

_KEY = r"""['"]?(\w+)['"]?"""
_PATTERNS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "node": re.compile(
            rf"\b(?:process|Bun)\.env(?:\.(\w+)|\[{_KEY})?|\bDeno\.env\.(?:get\({_KEY}|toObject\b)"
        ),
        "perl": re.compile(rf"%(?:main::)?ENV\b|\$ENV\s*\{{\s*{_KEY}"),
        "ruby": re.compile(rf"\bENV(?:\[{_KEY}|\.(?:fetch|key\?|delete|values_at)\W{{0,2}}{_KEY})?"),
        "php": re.compile(rf"\$_(?:ENV|SERVER)\b(?:\[{_KEY})?|\bgetenv\((?:\)|{_KEY})"),
        "lua": re.compile(rf"\bos\.getenv\W{{0,2}}{_KEY}"),
        "r": re.compile(rf"\bSys\.getenv\((?:\)|{_KEY})"),
        "julia": re.compile(rf"\bENV\b(?:\[{_KEY})?"),
        "elixir": re.compile(rf"\bSystem\.(?:get_env\((?:\)|{_KEY})|fetch_env!?\({_KEY})"),
        "groovy": re.compile(rf"\bSystem\.getenv\((?:\)|{_KEY})|\bSystem\.env\b(?:\.(\w+))?"),
        "go": re.compile(rf"\bos\.Environ\(|\bos\.(?:Getenv|LookupEnv)\({_KEY}"),
    }
)
_MOST = 32


def environment(code: str, language: str) -> dict[str, None]:
    """The names of the variables; an empty name stands for all of them."""
    found: dict[str, None] = {}
    pattern = _PATTERNS.get(language)
    for match in pattern.finditer(code) if pattern else ():
        found[next((group for group in match.groups() if group), "")] = None
        if len(found) >= _MOST:
            break
    return found
