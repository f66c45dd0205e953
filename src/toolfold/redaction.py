"""Keeps secrets out of what people and models read: errors, and the reasons of checks.

Knows two things: the values the environment calls secret, and the shapes that tokens of well-known
kinds have. Every pattern is linear: text comes from anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "[redacted]"
_FILLER = "\0"

_SHAPES = re.compile(
    r"""
      \bsk-[A-Za-z0-9_-]{16,512}                       # model providers
    | \b(?:ghp|gho|ghu|ghs|ghr|glpat|xox[abeprs])[_-][A-Za-z0-9_-]{16,512}
    | \bgithub_pat_[A-Za-z0-9_]{22,512}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                    # cloud access keys
    | \bAIza[A-Za-z0-9_-]{35}
    | \beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,8192}(?:\.[A-Za-z0-9_-]{8,4096})?   # signed web tokens
    | -----BEGIN\ [A-Z ]{0,32}PRIVATE\ KEY-----[A-Za-z0-9+/=\s]{0,16384}
    """,
    re.VERBOSE,
)
_ASSIGNED = re.compile(
    r"""(?ix)
    \b(
      (?:[a-z0-9]{1,32}[_-]){0,4}[a-z0-9]{0,32}?
      (?:(?:api|access|auth|private|secret)[_-]?key|token|secret|passw(?:or)?d|credentials?)
      ["']?\s{0,4}[:=]\s{0,4}["']?
    )
    ((?!\s)[^\s"'&,;]{4,4096})
    """
)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s{1,4})([A-Za-z0-9._~+/=-]{8,8192})")
_USERINFO = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]{1,16}://[^\s/:@]{0,128}:)([^\s/@]{1,256})(?=@)")


class Redaction:
    """Replaces secrets in text, and bounds its length."""

    def __init__(self, secrets: Iterable[str] = (), *, longest: int = 2_000) -> None:
        spellings = {spelling for secret in secrets if secret for spelling in _spellings(secret)}
        self._secrets = sorted(spellings, key=lambda each: (-len(each), each))
        self._longest = longest
        self._window = longest + max(longest, *map(len, self._secrets), 0)

    def __call__(self, text: str) -> str:
        # Patterns read little: the part that is shown, and enough beyond it to know a secret by its end.
        text = text.replace(_FILLER, "")
        seen = self._covered(text[: self._window])
        kept = seen[: self._longest].replace(_FILLER, "")
        return kept if len(text) <= self._window and len(seen) <= self._longest else kept + "… (cut)"

    def finds_any(self, text: str) -> bool:
        """Whether there is a secret in a text, which must not be long."""
        plain = text.replace(_FILLER, "")
        return self._covered(plain) != plain

    def _covered(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _hidden(secret))
        text = _SHAPES.sub(lambda match: _hidden(match[0]), text)
        for pattern in (_BEARER, _ASSIGNED, _USERINFO):
            text = pattern.sub(lambda match: match[1] + _hidden(match[2]), text)
        return text


def _hidden(secret: str) -> str:
    """As long as the secret, so that hiding one never moves the start of another into what is shown."""
    return HIDDEN.ljust(len(secret), _FILLER)


def _spellings(secret: str) -> tuple[str, ...]:
    """The secret as it stands in plain text, in JSON, in a Python literal and in an address."""
    addressed = quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")
    return secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], *addressed
