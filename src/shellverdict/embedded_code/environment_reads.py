"""Find the environment variables that script code reads, by the syntax of each language.

They often occur inside interpolated strings (`"?k=#{ENV['KEY']}"`), so the raw text is searched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["find_environment_variables"]

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
_MAX_VARIABLES = 32


def find_environment_variables(code: str, language: str) -> dict[str, None]:
    """Return the names of the environment variables that code reads; an empty name means all variables."""
    variables: dict[str, None] = {}
    pattern = _PATTERNS.get(language)
    for match in pattern.finditer(code) if pattern else ():
        variables[next((group for group in match.groups() if group), "")] = None
        if len(variables) >= _MAX_VARIABLES:
            break
    return variables
