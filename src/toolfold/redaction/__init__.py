"""Replace secrets in text before a person, a model, a log or a file gets it.

`Redaction` is the only function for it. It knows the values that the environment calls secret, the shapes of
well-known tokens (`shapes`), and how command lines carry passwords (`commands`). Text comes from anywhere, so
every step takes time linear in the part that is read, and nothing raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from toolfold.redaction.commands import find_command_secrets
from toolfold.redaction.names import is_secret_name
from toolfold.redaction.shapes import find_shapes
from toolfold.redaction.spans import Span, literal_parts, merge_spans

__all__ = ["HIDDEN", "Redaction"]

HIDDEN = "[redacted]"
_FILLER = "\0"
_CUT = "… (cut)"
_MAX_PASSES = 4
_MIN_KNOWN_CHARS = 6
_SEPARATORS = re.compile(r"[\s:=;,/.&?\"'\\]+")


class Redaction:
    """Replaces secrets in text, and bounds its length.

    Idempotent: text that went through comes out of a second pass unchanged.
    """

    def __init__(self, secrets: Iterable[str] = (), *, longest: int = 2_000) -> None:
        self._given = frozenset(secrets)
        spellings = {spelling for secret in self._given if secret for spelling in _spellings(secret)}
        self._secrets = sorted(spellings, key=lambda each: (-len(each), each))
        self._longest = longest
        self._window = longest + max(longest, *map(len, self._secrets), 0)

    def __call__(self, text: str) -> str:
        # Only the part that is shown is read, and enough beyond it to recognise a secret by its end.
        text = text.replace(_FILLER, "")
        if text.endswith(_CUT) and len(text) <= self._longest + len(_CUT):
            return self._cover(text[: -len(_CUT)]).replace(_FILLER, "")[: self._longest] + _CUT
        covered = self._cover(text[: self._window])
        shown = _without_partial_marker(covered[: self._longest], covered).replace(_FILLER, "")
        return shown if len(text) <= self._window and len(covered) <= self._longest else shown + _CUT

    def finds_any(self, text: str) -> bool:
        """Whether there is a secret in a text, which must not be long."""
        plain = text.replace(_FILLER, "")
        return self._cover_once(plain) != plain

    def knowing(self, text: str) -> Redaction:
        """The same, which also hides what is secret in this text wherever else it is quoted."""
        plain = text.replace(_FILLER, "")[: self._window]
        found = {plain[start:end].strip("\"' ") for start, end in merge_spans(self._find(plain))}
        pieces = {piece for each in found for piece in _SEPARATORS.split(each) if not piece.islower()}
        known = {each for each in found | pieces if len(each) >= _MIN_KNOWN_CHARS and each != HIDDEN}
        return Redaction(self._given | known, longest=self._longest) if known else self

    def setting(self, name: str, value: Any) -> Any:
        """A setting as anybody may see it. The name may say of a text that it is secret."""
        if isinstance(value, Mapping):
            return {key: self.setting(str(key), each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.setting("", each) for each in value]
        if not isinstance(value, str):
            return value
        if is_secret_name(name) and any(literal_parts(value, 0, len(value))):
            return HIDDEN
        return self(value)

    def _cover(self, text: str) -> str:
        """Cover until nothing more is found: a replaced value can change how what follows it is read."""
        for _ in range(_MAX_PASSES):
            covered = self._cover_once(text)
            if covered == text:
                return covered
            text = covered
        return text if self._cover_once(text) == text else HIDDEN

    def _cover_once(self, text: str) -> str:
        pieces, done = [], 0
        for start, end in merge_spans(self._find(text)):
            pieces += [text[done:start], _marker(text[start:end])]
            done = end
        return "".join((*pieces, text[done:]))

    def _find(self, text: str) -> Iterator[Span]:
        for secret in self._secrets:
            yield from _occurrences(secret, text)
        yield from find_shapes(text)
        yield from find_command_secrets(text)


def _occurrences(secret: str, text: str) -> Iterator[Span]:
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _marker(secret: str) -> str:
    """The marker, as long as the secret, so that no later secret moves into what is shown."""
    return HIDDEN.ljust(len(secret), _FILLER) if secret.strip(_FILLER) != HIDDEN else secret


def _without_partial_marker(shown: str, covered: str) -> str:
    """Cut before a marker instead of inside it: a part of one would be read as something else."""
    start = shown.rfind(HIDDEN[0])
    if start >= 0 and len(shown) - start < len(HIDDEN) and covered.startswith(HIDDEN, start):
        return shown[:start]
    return shown


def _spellings(secret: str) -> tuple[str, ...]:
    """The secret as it stands in plain text, in JSON, in a Python literal and in an address."""
    addressed = quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")
    return secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], *addressed
