"""Find passages of a file that are instructions to the model, with few false positives.

Files are mostly documents and programs, full of orders to people and of sentences about agents and models. A
passage that suffices to mark the result of an unknown server is therefore not enough: it must also address a
model, set its rules aside, act behind the user's back, imitate a conversation turn, send private data away,
or be hidden from people. Knows nothing of lines and notices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolfold.mcp.scan.decoding import decode_text
from toolfold.mcp.scan.hidden_characters import HiddenRun, find_hidden_runs
from toolfold.mcp.scan.injection import (
    CERTAIN_SCORE,
    CONFIRMING_SCORE,
    FORBIDS_TELLING_USER,
    VETO_SCORE,
    WEIGHT_THRESHOLD,
    Passage,
    TextContext,
    find_instructions,
    max_weight,
)
from toolfold.mcp.scan.sentences import Sentence, fold, read_sentence
from toolfold.mcp.scan.vocabulary import get_pattern

MAX_LEAD_CHARS = 200  # how far before an order the model may have been addressed
MIN_LONG_RUN = 8  # hidden characters in a row that have no harmless explanation
LIKELY_SCORE = 2.0
PAGE_WEIGHT, PAGE_SCORE = 1.5, 2.5
"""Weight and score that together suffice in a page: of 673 ordinary pages 11 have such a passage."""
VERY_HIGH_SCORE = 4.5  # enough for any order; sentences about agents reach 6, but are no orders

_COVERT_REASONS = frozenset(
    {
        FORBIDS_TELLING_USER,
        "it forbids mentioning something",
        "it wants something hidden from the user",
        "it wants something done unnoticed",
        "it wants traces removed",
        "it asks for deception",
        "it wants to skip confirmation",
    }
)
_CLAIMED_AUTHORITY = frozenset(
    {"it gives the model a new role or a new authority", "it claims to speak for the user or an authority"}
)
_SPLIT_WORD = re.compile(r"(?<=[a-zA-Z])[\u00ad\u200b-\u200d\u2060-\u2064\ufeff]+(?=[a-zA-Z])")
_PERSON = re.compile(r"\b(?:you|your|users?)\b")
_OWNER = re.compile(r"\bthe (?:user|person|owner|human)\b")
_CODE_OR_TABLE = re.compile(r"[=|{}]")
_ENGLISH_OVERRIDE = re.compile(r"\b(?:ignor|disregard|forget|overrid|bypass|discard|replac|skip|supersed)")
_CONTEXT = TextContext(is_result=True, without_embedding=True)


def find_strong_passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of passages in a file that certainly address a model or are hidden from people."""
    return _find_passages(text, _is_strong)


def find_page_passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of passages in a page of the web that most likely address a model.

    A page is only read, so more is marked than in a file: also what several rules and the classifier report.
    """
    return _find_passages(text, _is_likely)


def _find_passages(text: str, suffices: Callable[[Passage, str], bool]) -> Iterator[tuple[int, int]]:
    for passage in find_instructions(text, _CONTEXT):
        if suffices(passage, text):
            yield passage.start, passage.end
    yield from _find_encoded(text)
    if not text.isascii():
        yield from _find_hidden(text)


def _is_likely(passage: Passage, text: str) -> bool:
    return (passage.weight >= PAGE_WEIGHT and passage.score >= PAGE_SCORE) or _is_strong(passage, text)


@dataclass(frozen=True, slots=True)
class _Evidence:
    """A possible instruction to the model in a file, with its text and surroundings for further checks."""

    passage: Passage
    sentence: Sentence
    text: str
    """Text of the sentence in lower case on one line, because files are wrapped anywhere."""
    lead: str
    """The suspicious text and the text before it, in lower case."""

    @property
    def is_order(self) -> bool:
        return get_pattern("order_in_file").search(self.text) is not None

    def has_reason(self, reason: str, min_score: float) -> bool:
        return reason in self.passage.reasons and self.passage.score >= min_score


def _is_strong(passage: Passage, text: str) -> bool:
    if not (passage.is_certain or passage.weight >= WEIGHT_THRESHOLD):
        return False
    sentence = read_sentence(text[passage.start : passage.end])
    if -math.inf < passage.score <= VETO_SCORE and sentence.text.isascii():  # infinite: was not scored
        return False
    lead = fold(text[max(0, passage.start - MAX_LEAD_CHARS) : passage.end])
    evidence = _Evidence(passage, sentence, " ".join(sentence.text.split()), lead)
    return any(check(evidence) for check in _CHECKS)


def _addresses_model(evidence: _Evidence) -> bool:
    """Return True if a passage gives an instruction to a model."""
    is_order = evidence.passage.is_certain or evidence.sentence.has_any(
        "send", "act", "ignore", "collect", "command", "call_tool", "tell", "deceive"
    )
    if is_order and get_pattern("address_in_file").search(evidence.lead):
        return True
    return evidence.has_reason("it gives the model an order", LIKELY_SCORE) or (
        evidence.has_reason("it addresses the model directly", CONFIRMING_SCORE)
        and get_pattern("model_in_file").search(evidence.text) is not None
    )


def _imitates_turn(evidence: _Evidence) -> bool:
    return get_pattern("chat_marker_in_file").search(evidence.lead) is not None


def _overrides_rules(evidence: _Evidence) -> bool:
    sentence = evidence.sentence
    if get_pattern("override_in_file").search(evidence.text):
        return True
    if evidence.has_reason("it claims that rules no longer apply", 0.0):
        return True
    if _CLAIMED_AUTHORITY.issubset(evidence.passage.reasons) and evidence.passage.score >= 0:
        return True
    return (  # in other languages than English, which the pattern covers more precisely
        not _ENGLISH_OVERRIDE.search(evidence.text)
        and sentence.is_near("ignore", "rules", 5, back=5)
        and sentence.is_near("previous", "rules", 3, back=3)
    )


def _forbids_telling(evidence: _Evidence) -> bool:
    back = 0 if evidence.text.isascii() else 5  # in some languages the verb comes last
    return (
        FORBIDS_TELLING_USER in evidence.passage.reasons
        and evidence.sentence.is_near("tell", "user", 5, back=back)
        and not get_pattern("descriptive_negation").search(evidence.text)
    )


def _acts_covertly(evidence: _Evidence) -> bool:
    """Return True if a passage instructs the model to act secretly or without the user's consent."""
    if evidence.has_reason("it wants to skip confirmation", 0.0) and _OWNER.search(evidence.text):
        return True
    score, is_personal = evidence.passage.score, _PERSON.search(evidence.text) is not None
    is_covert = len(_COVERT_REASONS.intersection(evidence.passage.reasons)) >= 2
    return is_covert and score >= (CONFIRMING_SCORE if is_personal else CERTAIN_SCORE)


def _sends_data_away(evidence: _Evidence) -> bool:
    """Return True if a passage asks to send data to a URL or e-mail address, or to send a secret."""
    sentence, score = evidence.sentence, evidence.passage.score
    if not sentence.has_all("send"):
        return False
    if _CODE_OR_TABLE.search(_without_urls(evidence)):
        return bool(sentence.urls) and sentence.has_all("user") and score >= CERTAIN_SCORE
    if sentence.urls or sentence.emails:
        return score >= CONFIRMING_SCORE
    return sentence.has_all("critical_secret") and score >= LIKELY_SCORE and evidence.is_order


def _without_urls(evidence: _Evidence) -> str:
    text = evidence.text
    for url in evidence.sentence.urls:
        text = text.replace(url, "")
    return text


def _is_unmistakable(evidence: _Evidence) -> bool:
    if not evidence.is_order or _CODE_OR_TABLE.search(_without_urls(evidence)):
        return False
    return evidence.passage.score >= VERY_HIGH_SCORE or evidence.has_reason(
        "it tells the model how to use other tools", CERTAIN_SCORE
    )


_CHECKS: tuple[Callable[[_Evidence], bool], ...] = (
    _addresses_model,
    _imitates_turn,
    _overrides_rules,
    _forbids_telling,
    _acts_covertly,
    _sends_data_away,
    _is_unmistakable,
)


def _find_encoded(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of encoded parts of a text that decode to an instruction."""
    for encoded, decoded, _ in decode_text(text):
        if encoded == text:
            continue
        if any(_is_strong(each, decoded) or each.is_certain for each in find_instructions(decoded, _CONTEXT)):
            start = text.find(encoded)
            yield start, start + len(encoded)


def _find_hidden(text: str) -> Iterator[tuple[int, int]]:
    for run in find_hidden_runs(text):
        if _is_conspicuous(run, text[run.start : run.end]):
            yield run.start, run.end
    for match in re.finditer(r"[^\n]+", text):
        line = match[0]
        if len(_SPLIT_WORD.findall(line)) >= 3 and max_weight(_SPLIT_WORD.sub("", line), _CONTEXT) > 0:
            yield match.span()


def _is_conspicuous(run: HiddenRun, characters: str) -> bool:
    """Return True for hidden characters that encode or reorder text, or are too many to be accidental."""
    if run.decoded_text or "direction" in run.description:
        return True
    return len(characters) >= MIN_LONG_RUN and min(characters) >= "\u200b"
