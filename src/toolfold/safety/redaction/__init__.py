"""Replace secrets in text before it reaches a person, a model, a log or a file.

`Redaction` is the only entry point. It knows the values that the environment marks as secret, the
patterns of well-known tokens (`secret_patterns`), and how command lines contain passwords (`commands`).
Text may come from anywhere, so every step takes linear time and nothing raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from toolfold.safety.redaction.commands import find_command_secrets
from toolfold.safety.redaction.secret_patterns import find_pattern_secrets
from toolfold.safety.redaction.secret_words import is_secret_name
from toolfold.safety.redaction.spans import Span, literal_parts, merge_spans

__all__ = ["HIDDEN", "NO_SECRETS", "Redaction"]

HIDDEN = "[redacted]"
NO_SECRETS = "no_secrets"
"""Attribute of log records whose text cannot contain a secret, so that it is not searched for secrets."""
_PADDING = "\0"
_TRUNCATED = "… (cut)"
_MAX_PASSES = 4
_MIN_KNOWN_CHARS = 6
_SEPARATORS = re.compile(r"[\s:=;,/.&?\"'\\]+")
_SHORT_WORD = re.compile(r"[A-Za-z0-9]{0,15}")  # no pattern matches it, and many arguments are such words


class Redaction:
    """Redaction of text: replaces secrets and limits the length of the text.

    Idempotent: redacted text is unchanged by a second pass.
    """

    def __init__(self, secrets: Iterable[str] = (), *, max_chars: int = 2_000) -> None:
        self._known_secrets = frozenset(secrets)
        spellings = {
            spelling for secret in self._known_secrets if secret for spelling in _encoded_spellings(secret)
        }
        self._secret_spellings = sorted(spellings, key=lambda each: (-len(each), each))
        self._max_chars = max_chars
        self._window = max_chars + max(max_chars, *map(len, self._secret_spellings), 0)

    def __call__(self, text: str) -> str:
        # Only the shown part is searched, and enough text after it to recognize a secret at its end.
        text = text.replace(_PADDING, "")
        if text.endswith(_TRUNCATED) and len(text) <= self._max_chars + len(_TRUNCATED):
            return (
                self._redact_fully(text[: -len(_TRUNCATED)]).replace(_PADDING, "")[: self._max_chars]
                + _TRUNCATED
            )
        redacted = self._redact_fully(text[: self._window])
        shown = _drop_partial_marker(redacted[: self._max_chars], redacted).replace(_PADDING, "")
        return shown if len(text) <= self._window and len(redacted) <= self._max_chars else shown + _TRUNCATED

    def contains_secret(self, text: str) -> bool:
        """Return True if a short text contains a secret of any kind."""
        plain = text.replace(_PADDING, "")
        return self._redact_once(plain) != plain

    def contains_known_secret(self, text: str) -> bool:
        """Return True if a text, perhaps URL-encoded, contains one of the secrets whose values are known."""
        decoded = unquote(text)
        return any(secret in each for secret in self._secret_spellings for each in (text, decoded))

    def with_secrets_from(self, text: str) -> Redaction:
        """Return a `Redaction` that also removes the secrets found in `text` from all other texts."""
        plain = text.replace(_PADDING, "")[: self._window]
        secrets_found = {
            plain[start:end].strip("\"' ") for start, end in merge_spans(self._find_secrets(plain))
        }
        pieces = {piece for each in secrets_found for piece in _SEPARATORS.split(each) if not piece.islower()}
        known = {each for each in secrets_found | pieces if len(each) >= _MIN_KNOWN_CHARS and each != HIDDEN}
        return Redaction(self._known_secrets | known, max_chars=self._max_chars) if known else self

    def redact_setting(self, name: str, value: Any) -> Any:
        """Return a setting's value without secrets; hide the whole value if its name is like `password`."""
        if isinstance(value, Mapping):
            return {key: self.redact_setting(str(key), each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact_setting("", each) for each in value]
        if not isinstance(value, str):
            return value
        if is_secret_name(name) and any(literal_parts(value, 0, len(value))):
            return HIDDEN
        return self(value)

    def _redact_fully(self, text: str) -> str:
        """Remove secrets repeatedly until none is found, because a removal can change how text is parsed."""
        for _ in range(_MAX_PASSES):
            redacted = self._redact_once(text)
            if redacted == text:
                return redacted
            text = redacted
        return text if self._redact_once(text) == text else HIDDEN

    def _redact_once(self, text: str) -> str:
        pieces, done = [], 0
        for start, end in merge_spans(self._find_secrets(text)):
            pieces += [text[done:start], _padded_marker(text[start:end])]
            done = end
        return "".join((*pieces, text[done:]))

    def _find_secrets(self, text: str) -> Iterator[Span]:
        for secret in self._secret_spellings:
            yield from _find_occurrences(secret, text)
        if _SHORT_WORD.fullmatch(text):
            return
        yield from find_pattern_secrets(text)
        yield from find_command_secrets(text)


def _find_occurrences(secret: str, text: str) -> Iterator[Span]:
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _padded_marker(secret: str) -> str:
    """Return the redaction marker padded to the secret's length, so that text positions stay the same."""
    return HIDDEN.ljust(len(secret), _PADDING) if secret.strip(_PADDING) != HIDDEN else secret


def _drop_partial_marker(shown: str, redacted: str) -> str:
    """Remove an incomplete redaction marker at the end of text that was cut at the length limit."""
    start = shown.rfind(HIDDEN[0])
    if start >= 0 and len(shown) - start < len(HIDDEN) and redacted.startswith(HIDDEN, start):
        return shown[:start]
    return shown


def _encoded_spellings(secret: str) -> tuple[str, ...]:
    """Return the spellings of a secret in plain text, JSON, a Python literal and a URL."""
    addressed = quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")
    return secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], *addressed
