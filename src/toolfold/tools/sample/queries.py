"""Which records of the sample services match a filter, a search text or a query.

Everything is compared without regard to case and accents; times of different zones are compared as moments.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json

NOW: Final = "2026-04-03T12:00:00Z"
"""Time in the sample services, which stands still so that results do not change."""
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_ANY = frozenset({"any", "all", "both"})
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "from": ("from", "sender", "author"),
    "to": ("to",),
    "subject": ("subject",),
    "in": ("channel", "conversation", "folder_id"),
    "label": ("labels",),
    "author": ("contributors", "author"),
    "artist": ("artist",),
    "album": ("album",),
    "year": ("year",),
}
_SYNONYMS: Mapping[str, str] = {"bug": "defect", "me": "you", "currentuser()": "you", "currentuser": "you"}
_TERM = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
_STOP_WORDS = frozenset({"a", "an", "and", "the", "of", "for", "in", "on", "to", "or", "with", "by", "my"})
_QUERY_TOKEN = re.compile(r'\s*("[^"]*"|\'[^\']*\'|\(\)|[(),]|<=|>=|!=|!~|[=<>~]|[^\s(),=<>~!"\']+(?:\(\))?)')
_QUERY_HELP = (
    'A query compares fields, such as `status = open and due < now`, `assignee = ines or labels = "logs"`,'
    " `updated > -7d`, `type in (defect, task)`, `summary ~ export`, `due is empty`, `order by due`."
)


def get_texts(value: Any) -> Iterator[str]:
    """Yield all texts inside a value."""
    if isinstance(value, dict):
        for each in value.values():
            yield from get_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from get_texts(each)
    else:
        yield str(value)


def fold(value: Any) -> str:
    """Return a text without accents and case."""
    plain = unicodedata.normalize("NFKD", str(value))
    return "".join(each for each in plain if not unicodedata.combining(each)).casefold().lstrip("@#")


def equals(found: Any, wanted: Any) -> bool:
    """Return True if a field's value is, or contains, the wanted value or one of several wanted values."""
    if isinstance(wanted, list):
        return not wanted or any(equals(found, each) for each in wanted)
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(equals(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, str) and wanted in _ANY:
        return True
    if isinstance(found, (list, dict)):
        values = found.values() if isinstance(found, dict) else found
        return any(equals(each, wanted) for each in values)
    if isinstance(found, bool) or isinstance(wanted, bool):
        return bool(found) is wanted
    return found is not None and fold(found) == fold(wanted)


def compare(one: Any, comparison: str, other: Any) -> bool:
    """Compare numbers, dates and times; False if a value is missing. A date includes the whole day."""
    if one is None or other is None:
        return False
    test = COMPARISONS[comparison]
    moments = _parse_moment(one), _parse_moment(other)
    if None not in moments:
        if any(not isinstance(each, datetime) for each in moments):
            moments = tuple(each.date() if isinstance(each, datetime) else each for each in moments)  # type: ignore[assignment]
        return test(*moments)
    try:
        return test(float(one), float(other))
    except (TypeError, ValueError):
        return test(fold(one), fold(other))


def _parse_moment(value: Any) -> date | None:
    """Return a date, or a time in UTC; None if the value is neither."""
    if not isinstance(value, str):
        return None
    try:
        if len(value) == 10:
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def contains_words(text: str, words: str) -> bool:
    """Return True if a text contains all words, or the beginnings of words."""
    present = re.findall(r"\w+", fold(text))
    wanted = [each for each in re.findall(r"\w+", fold(words)) if each not in _STOP_WORDS]
    return all(any(_is_same_word(each, word) for each in present) for word in wanted)


def _is_same_word(one: str, other: str) -> bool:
    return one.startswith(other) or (len(one) > 3 and other.startswith(one) and len(other) - len(one) < 3)


def matches_text(record: Json, query: str) -> bool:
    """Return True if a record matches words, "phrases" and operators such as `from:` and `has:`."""
    everything = " ".join(get_texts(record))
    for name, phrase, word in _TERM.findall(query):
        value = phrase or word
        if name == "has":
            if not (record.get(f"{value}_ids") or equals(record.get("has"), value)):
                return False
        elif fields := _OPERATORS.get(name):
            if not any(contains_words(" ".join(get_texts(record.get(each, ""))), value) for each in fields):
                return False
        elif not (
            fold(phrase) in fold(everything) if phrase else contains_words(everything, f"{name} {word}")
        ):
            return False
    return True


def matches_pattern(value: Any, pattern: str) -> bool:
    """Return True if a text matches a pattern with the wildcards % and _ of SQL."""
    escaped = re.sub(r"([*?\[])", r"[\1]", fold(pattern))
    return fnmatchcase(fold(value), escaped.replace("%", "*").replace("_", "?"))


def matches_labels(labels: Mapping[str, str], selector: str) -> bool:
    """Return True if labels match a selector such as `region=eu,tier!=batch`."""
    for part in filter(None, selector.split(",")):
        name, sign, value = part.partition("=")
        negated = name.endswith("!")
        if not sign or (labels.get(name.rstrip("! "), "") == value.strip()) == negated:
            return False
    return True


def matches_condition(record: Json, condition: Json) -> bool:
    """Return True if a record matches a condition such as `{"field": "email", "operator": "is_set"}`."""
    found, value = record.get(condition["field"]), condition.get("value")
    match condition["operator"]:
        case "eq":
            return equals(found, value)
        case "neq":
            return not equals(found, value)
        case "contains":
            return fold(value) in fold(" ".join(get_texts(found or "")))
        case "is_set":
            return found not in (None, "", [])
        case "in_last_days":
            return compare(found, ">=", shift_now(f"-{value}d"))
        case comparison:
            return compare(found, {"gt": ">", "lt": "<"}[comparison], value)


def shift_now(text: str) -> str:
    """Return a date relative to now, such as `-7d`, `now`, `today` or `2w`; any other text unchanged."""
    if text in ("now", "now()", "today", "today()"):
        return NOW[:10]
    if not (found := re.fullmatch(r"(?:now)?\s*([+-]?\d{1,4})([dwmy])", text)):
        return text
    days = int(found[1]) * {"d": 1, "w": 7, "m": 30, "y": 365}[found[2]]
    return str(date.fromisoformat(NOW[:10]) + timedelta(days=days))


class IssueQuery:
    """A query in the query language of the sample issue tracker. Raises CallError if it is not valid."""

    def __init__(self, text: str) -> None:
        body, _, ordering = re.sub(r"\s+", " ", text.strip()).partition("order by ")
        self.order = ordering.split(" ")[0]
        self.descending = ordering.endswith(" desc")
        self._text = text
        self._tokens: list[str] = _QUERY_TOKEN.findall(body)
        if re.sub(r"\s", "", "".join(self._tokens)) != re.sub(r"\s", "", body):
            raise self._error()
        self.matches = self._read_alternatives() if self._tokens else lambda _: True
        if self._tokens:
            raise self._error()

    def _error(self) -> CallError:
        return CallError(f"The query {shorten(self._text)!r} cannot be read. {_QUERY_HELP}")

    def _peek(self) -> str:
        return self._tokens[0].casefold() if self._tokens else ""

    def _take(self) -> str:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop(0)

    def _skip(self, word: str) -> bool:
        found = self._peek() == word
        if found:
            self._tokens.pop(0)
        return found

    def _read_alternatives(self) -> Callable[[Json], bool]:
        parts = [self._read_terms()]
        while self._skip("or"):
            parts.append(self._read_terms())
        return lambda record: any(part(record) for part in parts)

    def _read_terms(self) -> Callable[[Json], bool]:
        parts = [self._read_term()]
        while self._skip("and"):
            parts.append(self._read_term())
        return lambda record: all(part(record) for part in parts)

    def _read_term(self) -> Callable[[Json], bool]:
        if self._skip("not"):
            negated = self._read_term()
            return lambda record: not negated(record)
        if self._skip("("):
            inner = self._read_alternatives()
            if not self._skip(")"):
                raise self._error()
            return inner
        field = self._take()
        if self._peek() not in ("=", "!=", "~", "!~", "in", "not", "is", *COMPARISONS):
            words = _unquote(field)
            return lambda record: contains_words(" ".join(get_texts(record)), words)
        return self._read_comparison(field.casefold())

    def _read_comparison(self, field: str) -> Callable[[Json], bool]:
        sign = self._take().casefold()
        negated = sign.startswith("!") or sign == "not" or (sign == "is" and self._skip("not"))
        if sign == "not":
            sign = self._take().casefold()
        if sign == "is":
            self._take()  # `empty` or `null`
            return lambda record: (record.get(field) in (None, "", [])) != negated
        if sign == "in":
            wanted: Any = self._read_list()
        else:
            value = _unquote(self._take())
            wanted = shift_now(_SYNONYMS.get(value.casefold(), value))
        if sign in COMPARISONS:
            return lambda record: compare(record.get(field), sign, wanted)

        def test(record: Json) -> bool:
            found = record if field == "text" else record.get(field)
            if sign.endswith("~"):
                return contains_words(" ".join(get_texts(found or "")), str(wanted)) != negated
            return equals(found, wanted) != negated

        return test

    def _read_list(self) -> list[str]:
        if not self._skip("("):
            raise self._error()
        values = []
        while not self._skip(")"):
            value = _unquote(self._take())
            if value != ",":
                values.append(_SYNONYMS.get(value.casefold(), value))
        return values


def _unquote(token: str) -> str:
    return token[1:-1] if token[0] in "\"'" else token
