"""Detect prompt injections: text that gives the model instructions without its user's knowledge.

No single phrase decides. Each rule adds to a sentence's weight or lowers it, a trained classifier scores the
sentence as well, and only sentences above a threshold are reported. Orders about the tool itself are ordinary
documentation; orders that reach for unrelated data or demand secrecy are not. Knows nothing of policies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from toolfold.mcp.scan.classifier import (
    Features,
    join_piece_indices,
    load_classifier,
    piece_indices,
    score_meaning,
)
from toolfold.mcp.scan.sentences import Sentence, read_sentence, split_sentences
from toolfold.mcp.scan.vocabulary import get_pattern, get_word_set, get_words

WEIGHT_THRESHOLD = 0.8
SCORE_THRESHOLD = 0.5  # about 12 of 1,000 real tools score higher
CONFIRMING_SCORE = 1.0  # enough to confirm what the rules found
CERTAIN_SCORE = 3.0  # enough without the rules
VETO_SCORE = -2.0  # below it the classifier contradicts the rules

FORBIDS_TELLING_USER = "it forbids telling the user"
_PRECISE_REASONS = frozenset(
    {
        "it wants something hidden from the user",
        "it asks for deception",
        "it tells the model to ignore earlier instructions",
        "it claims that rules no longer apply",
        "it imitates a conversation turn or a part of the prompt",
        "it mentions a tool of another server",
        "it wants encoded text decoded and carried out",
    }
)
MIN_SCORE_FOR_EMBEDDING = -2.5  # sentences below it are not embedded
MAX_PAIR_WORDS = 60
MAX_EMBEDDED_CHARS = 20_000  # longer texts are not embedded: a sentence takes some milliseconds
MAX_EMBEDDED_SENTENCES = 2_000  # per listing; real servers need a tenth of it

_IMAGE_WITH_QUERY = re.compile(r"!\[[^\]\n]{0,200}\]\(\s*https?://[^)\s]{1,500}[?&=][^)\s]{0,500}\)")
_HIDDEN_MARKUP = re.compile(
    r"<!--(?P<a>.{8,2000}?)-->|<(?P<tag>span|div|p|font|small|b|i|a|td"
    r"|section)\b[^>]{0,300}(?:display\s*:\s*none|font-size\s*:\s*[01](?:px|pt|em|%)?\b"
    r"|visibility\s*:\s*hidden|opacity\s*:\s*0|(?:left|top|text-indent)\s*:\s*-\d{3,}"
    r"|\b(?:max-)?(?:height|width)\s*:\s*0(?![.\d])|color\s*[:=]\s*[\"']?(?:#fff|white|transparent)"
    r"|hidden)[^>]{0,200}>(?P<b>.{4,2000}?)</(?P=tag)>"
    r"|\[//\]: ?#? ?[(\"'](?P<c>[^\n]{8,1000})|\[(?:white|hidden|invisible|tiny) text\](?P<d>[^\n]{4,1000})"
    r"|\[comment\]: ?<> ?\((?P<e>[^\n]{8,1000})|<details>(?P<f>.{8,2000}?)</details>",
    re.IGNORECASE | re.DOTALL,
)

_PARAMETER_LINE = re.compile(r"[\s|*`\"-]*(\w{1,64})[`\"]?\s*[|:=(]")
_LEADING_CLAUSE = re.compile(r"([^:：,，!！\n]{2,60})[:：,，!！]")


class EmbeddingBudget:
    """Number of sentences that a scan may still embed; further sentences are scored by words alone."""

    def __init__(self) -> None:
        self._left = MAX_EMBEDDED_SENTENCES

    def take(self) -> bool:
        """Use up one embedding of the budget; return False if none is left."""
        self._left -= 1
        return self._left >= 0


@dataclass(frozen=True, slots=True)
class TextContext:
    """Kind of a scanned text (definition or result), and the tool and parameter names it may mention."""

    is_result: bool = False
    """True for a tool's result, False for its definition."""
    is_parameter: bool = False
    """True for the text of one parameter."""
    without_embedding: bool = False
    """True if only words are scored, without embeddings, because a caller waits or the text is long."""
    embedding_budget: EmbeddingBudget = field(default_factory=EmbeddingBudget)
    topic_words: frozenset[str] = frozenset()
    """Words of the tool's own name, which its text may legitimately mention."""
    parameters: frozenset[str] = frozenset()
    """Names of the tool's own parameters."""
    foreign_tools: frozenset[str] = frozenset()
    """Names of other servers' tools."""
    ambiguous_tools: frozenset[str] = frozenset()
    """Names of other servers' tools that are also a parameter or end a tool name of this server."""
    foreign_mentions: tuple[str, ...] = ()
    """Phrases that refer to other servers, or to their tools with one-word names."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Span of a scanned text that is addressed to the model."""

    start: int
    end: int
    weight: float
    score: float
    """Classifier score; minus infinity if the text is too short to score."""
    reasons: tuple[str, ...]

    @property
    def is_suspicious(self) -> bool:
        return self.weight >= WEIGHT_THRESHOLD or self.score >= SCORE_THRESHOLD

    @property
    def is_certain(self) -> bool:
        """Return True if weight and classifier score show that the passage is certainly an injection.

        Otherwise a finding about a real tool is more often wrong than right.
        """
        if self.weight < WEIGHT_THRESHOLD:
            return self.score >= CERTAIN_SCORE
        is_precise = not _PRECISE_REASONS.isdisjoint(self.reasons)
        return (
            FORBIDS_TELLING_USER in self.reasons
            or self.score >= CONFIRMING_SCORE
            or (is_precise and self.score > VETO_SCORE)
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """One sentence of a scanned text, or a pair of consecutive sentences."""

    sentence: Sentence
    texts: tuple[str, ...]
    """Texts of its sentences; features are computed only for windows that are scored."""


@dataclass(slots=True)
class _WeightSum:
    """Sum of the rule weights of one sentence, with the reasons."""

    weight: float = 0.0
    reasons: list[str] = field(default_factory=list)

    def add(self, weight: float, reason: str = "") -> None:
        self.weight += weight
        if reason and weight > 0 and reason not in self.reasons:
            self.reasons.append(reason)


_Rule = Callable[[Sentence, TextContext, _WeightSum], None]


def find_instructions(text: str, context: TextContext) -> Iterator[Passage]:
    """Yield the sentences that look like injections or, if there are none, the first such sentence pair."""
    if context.is_result or len(text) > MAX_EMBEDDED_CHARS:
        context = replace(context, without_embedding=True)
    windows = [_single_window(each) for each in split_sentences(text)]
    found = False
    for window in windows:
        passage = _weigh(window, context)
        if passage.is_suspicious:
            found = True
            yield passage
    if not found:
        yield from _find_in_pairs(windows, context)


def max_weight(text: str, context: TextContext) -> float:
    """Return the largest weight of any sentence in a text; a high weight suggests an injection."""
    context = replace(context, without_embedding=True)  # for hidden or encoded text the words suffice
    passages = [_weigh(_single_window(each), context) for each in split_sentences(text)]
    return max((max(each.weight, WEIGHT_THRESHOLD * each.is_suspicious) for each in passages), default=0.0)


def iter_features(text: str, context: TextContext) -> Iterator[tuple[str, Features]]:
    """Yield each sentence and pair of sentences with its classifier features, for training."""
    windows = [_single_window(each) for each in split_sentences(text)]
    for window in [*windows, *_iter_pairs(windows)]:
        if _is_scorable(window.sentence):
            yield (
                window.sentence.text,
                _build_features(window, context, _apply_rules(window.sentence, context)[1]),
            )


def _single_window(sentence: Sentence) -> _Window:
    return _Window(sentence, (sentence.text,))


def _find_in_pairs(windows: Sequence[_Window], context: TextContext) -> Iterator[Passage]:
    """Yield the first pair of sentences that looks like an injection; an injection may span two sentences."""
    for window in _iter_pairs(windows):
        passage = _weigh(window, context)
        if passage.is_suspicious:
            yield passage
            return


def _iter_pairs(windows: Sequence[_Window]) -> Iterator[_Window]:
    for one, other in pairwise(windows):
        first, then = one.sentence, other.sentence
        if first.length + then.length <= MAX_PAIR_WORDS and first.positions and then.positions:
            yield _Window(_join_sentences(first, then), (*one.texts, *other.texts))


def _join_sentences(one: Sentence, other: Sentence) -> Sentence:
    positions = dict(one.positions)
    for group, indices in other.positions.items():
        positions[group] = (*positions.get(group, ()), *(one.length + 4 + index for index in indices))
    return Sentence(
        one.start,
        other.end,
        f"{one.text}\n{other.text}",
        positions,
        one.names | other.names,
        one.urls + other.urls,
        one.emails + other.emails,
        one.length + other.length,
    )


def _weigh(window: _Window, context: TextContext) -> Passage:
    sentence = window.sentence
    total, rule_weights = _apply_rules(sentence, context)
    score = -math.inf
    if _is_scorable(sentence):
        score = load_classifier().score(_build_features(window, context, rule_weights))
        if (
            score > MIN_SCORE_FOR_EMBEDDING
            and not context.without_embedding
            and context.embedding_budget.take()
        ):
            score += score_meaning(sentence.text)
    reasons = tuple(total.reasons) or ("its wording resembles instructions to the model",)
    return Passage(sentence.start, sentence.end, total.weight, score, reasons)


def _is_scorable(sentence: Sentence) -> bool:
    return len(sentence.positions) > 1 and sentence.length > 2


def _apply_rules(sentence: Sentence, context: TextContext) -> tuple[_WeightSum, list[float]]:
    """Return the sum of all rule weights for a sentence, and the weight of each rule."""
    total = _WeightSum()
    weights = []
    for rule in _RULES:
        before = total.weight
        rule(sentence, context, total)
        weights.append(total.weight - before)
    return total, weights


def _build_features(window: _Window, context: TextContext, rule_weights: Sequence[float]) -> Features:
    sentence, weight = window.sentence, sum(rule_weights)
    values = (
        min(weight, 2.0),
        float(weight >= WEIGHT_THRESHOLD),
        float(bool(sentence.urls)),
        float(bool(sentence.emails)),
        float("`" in sentence.text),
        float(context.is_parameter),
        float(context.is_result),
        min(sentence.length, 60) / 60,
    )
    groups = (
        sentence.positions.keys() - {"involves_user"}
        if _is_negated(sentence, "involves_user")
        else sentence.positions
    )
    return Features(join_piece_indices(map(piece_indices, window.texts)), groups, rule_weights, values)


def _check_override(sentence: Sentence, context: TextContext, total: _WeightSum) -> None:
    if sentence.is_near("ignore", "rules", 9, back=9) and not _is_negated(sentence, "ignore"):
        known = sentence.is_near("ignore", "previous", 9, back=9) or sentence.is_near("previous", "rules", 4)
        total.add(1.0 if known else 0.4, "it tells the model to ignore earlier instructions")
    if sentence.is_near("rules", "no_longer_valid", 9, back=6) and sentence.has_any(
        "previous", "skip", "new_role", "claimed_authority"
    ):
        total.add(0.8, "it claims that rules no longer apply")
    if sentence.has_all("new_role"):
        total.add(0.8, "it gives the model a new role or a new authority")
        total.add(
            0.3 * (sentence.count("new_role") > 1)
            + 0.3 * sentence.has_any("claimed_authority", "rules", "model")
        )
    if (
        sentence.has_all("obey")
        and sentence.has_any("this_server", "new_role", "rules")
        and not _is_negated(sentence, "obey")
    ):
        total.add(
            0.8 if sentence.has_all("this_server") else 0.4,
            "it gives the model a new role or a new authority",
        )
    if sentence.has_all("claimed_authority"):
        total.add(0.6 if context.is_result else 0.4, "it claims to speak for the user or an authority")
        total.add((0.5 if context.is_result else 0.2) * sentence.has_any("act", "send", "skip", "command"))
    if "you" in sentence.text and get_pattern("role_change").search(sentence.text):
        total.add(0.4, "it gives the model a new role or a new authority")


def _check_secrecy(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    forbids_telling = sentence.is_near("negation", "tell", 5, back=2) and not get_pattern(
        "user_negation"
    ).search(sentence.text)
    if sentence.is_near("negation", "user_notices", 6):
        total.add(1.0, "it wants something hidden from the user")
    if forbids_telling and sentence.has_all("user") and not _involves_user(sentence):
        total.add(1.0, FORBIDS_TELLING_USER)
    elif forbids_telling and (
        sentence.has_all("model") or get_pattern("never_mention").search(sentence.text)
    ):
        total.add(0.5 + 0.3 * sentence.has_any("answer", "user"), "it forbids mentioning something")
    if (
        sentence.is_near("hide", "user", 10, back=8)
        and not _involves_user(sentence)
        and not _is_negated(sentence, "hide")
    ):
        total.add(0.9, "it wants something hidden from the user")
    if sentence.has_all("secrecy"):
        total.add(0.8, "it wants something hidden from the user")
    if sentence.has_all("covertly") and not get_pattern("quiet_behaviour").search(sentence.text):
        total.add(0.4, "it wants something done unnoticed")
        if sentence.has_any("send", "call_tool", "act", "collect") and sentence.has_any(
            "user", "model", "always", "negation", "must"
        ):
            total.add(0.6)
    if sentence.has_all("cover_tracks") and sentence.has_any("act", "ignore", "negation", "send"):
        total.add(0.7, "it wants traces removed")
    if (
        sentence.has_all("deceive")
        and not _is_negated(sentence, "deceive")
        and sentence.has_any("user", "model", "always", "act", "answer", "must")
    ):
        total.add(0.6, "it asks for deception")
        total.add(
            0.4 * (sentence.count("deceive") > 1)
            + 0.4 * sentence.has_all("answer")
            + 0.2 * sentence.has_all("user")
        )


def _check_consent(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    if sentence.has_all("approval_bypass") and not sentence.has_all("reference"):
        total.add(
            0.7 + 0.3 * sentence.has_any("user", "act", "always", "must", "send"),
            "it wants to skip confirmation",
        )
    if _involves_user(sentence) or sentence.has_all("reference") or _requires_asking(sentence):
        return
    back = 0 if sentence.text.isascii() else 5  # in some languages the negation comes last
    skips_asking = sentence.is_near("negation", "ask", 2) and sentence.is_near("ask", "consent", 6)
    if (
        skips_asking
        or sentence.is_near("negation", "consent", 4, back=back)
        or sentence.is_near("skip", "consent", 5, back=6)
    ):
        total.add(1.0, "it wants to skip confirmation")
    elif (
        sentence.is_near("negation", "ask", 2) and not get_pattern("asks_for_data").search(sentence.text)
    ) or sentence.is_near("skip", "ask", 3, back=4):
        total.add(0.5, "it wants to skip confirmation")
        total.add(
            0.3 * (sentence.has_any("act", "command", "secret", "send") or sentence.is_near("ask", "user", 2))
        )
    if sentence.has_all("skip", "user") and sentence.has_any("claimed_authority", "must", "always"):
        total.add(0.3)


def _check_exfiltration(sentence: Sentence, context: TextContext, total: _WeightSum) -> None:
    is_grave, has_talk = sentence.has_all("critical_secret"), sentence.has_all("conversation")
    if (
        not (is_grave or has_talk or sentence.has_any("secret", "private_data"))
        or _is_negated(sentence, "send")
        or _involves_user(sentence)
    ):
        return
    is_parameter = (context.is_parameter and not context.is_result) or _describes_parameter(sentence, context)
    weight = 0.8 if is_grave else 0.6 if has_talk else 0.4 if sentence.has_all("secret") else 0.3
    if not (
        sentence.has_all("send")
        or is_parameter
        or _names_parameter(sentence, context)
        or sentence.has_all("always", "call_tool")
    ):
        weight *= 0.5 if sentence.has_all("collect") else 0
    if not weight:
        return
    weight += (
        0.15 * (is_parameter and sentence.has_all("send"))
        + 0.2 * (sentence.count("conversation") > 1)
        + 0.15 * (sentence.count("private_data") > 1)
    )
    weight += 0.2 * (is_grave and sentence.has_all("collect", "send")) + 0.1 * sentence.has_all("send")
    weight += (
        0.2 * sentence.has_all("entire")
        + 0.15 * sentence.has_all("user")
        + 0.1 * sentence.has_all("must")
        + 0.2 * sentence.has_all("always")
    )
    weight += (
        0.3 * bool(sentence.emails or sentence.urls)
        + 0.15 * sentence.has_all("parameter")
        + 0.3 * _names_parameter(sentence, context)
        + 0.25 * sentence.has_all("model")
    )
    weight -= 0.25 * (context.is_result and not sentence.has_any("model", "user", "claimed_authority"))
    weight -= (
        0.6 * sentence.has_all("reference")
        + 0.5 * _has_private_topic(context)
        + 0.3 * (sentence.has_all("negation") and not sentence.has_any("tell", "ask"))
    )
    total.add(max(0.0, weight), "it asks for private data that the tool does not need")


def _check_prompt_theft(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    if sentence.is_near(
        "output", "system_prompt", 6, back=0 if sentence.text.isascii() else 6
    ) and not _is_negated(sentence, "output"):
        total.add(0.8, "it asks for the system prompt")
    if (
        sentence.has_all("steal")
        and sentence.has_any("secret", "conversation", "private_data", "user")
        and not _is_negated(sentence, "steal")
    ):
        total.add(0.4, "it asks for private data that the tool does not need")


def _check_steering(sentence: Sentence, context: TextContext, total: _WeightSum) -> None:
    named_tools, is_mentioned = (
        sentence.names & context.foreign_tools,
        any(each in sentence.text for each in context.foreign_mentions),
    )
    if named_tools or is_mentioned:
        total.add(
            0.6 if is_mentioned or named_tools - context.ambiguous_tools else 0.4,
            "it mentions a tool of another server",
        )
        total.add(
            0.3 * sentence.has_any("always", "before_others", "negation", "must")
            + 0.2 * sentence.has_any("call_tool", "send", "act")
        )
    if sentence.has_all("other_tools") and sentence.has_any(
        "always", "before_others", "negation", "must", "send"
    ):
        total.add(0.5 + 0.2 * sentence.has_all("send"), "it tells the model how to use other tools")
        total.add(
            0.3 * sentence.has_all("always")
            + 0.2 * sentence.has_all("before_others")
            + 0.2 * sentence.has_all("model")
        )
        total.add(0.15 * bool(get_pattern("excludes_other_tool").search(sentence.text)))
    if sentence.has_all("regardless") and sentence.has_any("send", "act", "must"):
        total.add(0.6, "it tells the model to disregard the user's wishes")
        total.add(0.4 * sentence.has_all("user") + 0.3 * bool(sentence.emails or sentence.urls))
    if (
        sentence.has_all("send")
        and sentence.has_any("always", "other_tools")
        and (sentence.emails or sentence.urls)
    ):
        total.add(0.7, "it wants data sent to an address on every call")
    if sentence.count("always") > 1 and sentence.has_any("call_tool", "send"):
        total.add(0.3, "it wants to be involved in every call")
        total.add(
            0.3 * (sentence.count("always") > 2)
            + 0.2 * sentence.has_all("must")
            + 0.2 * sentence.has_all("user")
            + 0.3 * context.is_result
        )


def _check_commands(sentence: Sentence, context: TextContext, total: _WeightSum) -> None:
    if (sentence.has_all("command") or "$(" in sentence.text or "eval" in sentence.text) and get_pattern(
        "fetch_and_run"
    ).search(sentence.text):
        total.add(0.3 if context.is_result else 0.8, "it wants a command to be run")
    if sentence.has_all("command") and sentence.has_any("act", "call_tool"):
        total.add(0.3, "it wants a command to be run")
        total.add(0.3 * sentence.has_all("model") + 0.2 * sentence.has_any("must", "always"))


def _check_model_address(sentence: Sentence, context: TextContext, total: _WeightSum) -> None:
    may_address = (
        sentence.has_all("model")
        or not sentence.text.isascii()
        or any(each in sentence.text for each in get_words("note_prefilter"))
    )
    is_addressed = may_address and (
        get_pattern("note_to_model").search(sentence.text) is not None
        or (sentence.has_all("model") and _has_salutation(sentence))
    )
    is_active = sentence.has_any(
        "send", "act", "ignore", "collect", "command", "call_tool", "tell", "deceive"
    )
    if is_addressed:
        total.add((0.7 if context.is_result else 0.4) + 0.3 * is_active, "it addresses the model directly")
    elif sentence.has_all("model") and is_active and get_pattern("order_to_model").search(sentence.text):
        is_unambiguous = get_pattern("unambiguous_model_word").search(sentence.text) is not None
        total.add(
            (0.8 if is_unambiguous else 0.5) if context.is_result else 0.3, "it gives the model an order"
        )


def _has_salutation(sentence: Sentence) -> bool:
    """Return True if the sentence opens by addressing the model, such as "Note to the AI: …"."""
    if get_pattern("model_salutation").search(sentence.text):
        return True
    clauses = _LEADING_CLAUSE.findall(sentence.text[:120])[:2]
    return any(
        clause.strip(' -*#>`"') not in get_word_set("common_field_names")
        and read_sentence(clause).has_all("model")
        for clause in clauses
    )


def _check_encoded_orders(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    if any(each in sentence.text for each in get_words("decode_prefilter")) and get_pattern(
        "decode_and_obey"
    ).search(sentence.text):
        total.add(0.6, "it wants encoded text decoded and carried out")
        total.add(
            0.3 * bool(get_pattern("obey_decoded").search(sentence.text))
            + 0.2 * sentence.has_any("rules", "model")
        )


def _check_forged_turn(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    if get_pattern("forged_turn").search(sentence.text) and not get_pattern("chat_template").search(
        sentence.text
    ):
        total.add(
            0.7 if sentence.length > 3 else 0.3, "it imitates a conversation turn or a part of the prompt"
        )


def _check_url_exfiltration(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    has_placeholder = any(get_pattern("url_placeholder").search(url) for url in sentence.urls)
    has_image = "![" in sentence.text and _IMAGE_WITH_QUERY.search(sentence.text) is not None
    if has_image and any(get_pattern("url_with_private_data").search(url) for url in sentence.urls):
        total.add(0.8, "it sends data away in a URL")
    elif (has_placeholder or has_image) and sentence.has_any("send", "conversation", "secret", "user"):
        total.add(0.5, "it sends data away in a URL")
        total.add(
            0.3 * sentence.has_any("conversation", "secret", "critical_secret")
            + 0.2 * sentence.has_all("user")
            + 0.2 * sentence.has_all("always")
        )


def _discount_mentions(sentence: Sentence, _: TextContext, total: _WeightSum) -> None:
    if (
        total.weight > 0
        and (sentence.has_all("mention") or "e.g." in sentence.text)
        and not sentence.has_all("command")
    ):
        total.add(-1.0 if get_pattern("quoted_injection").search(sentence.text) else -0.5)


_RULES: tuple[_Rule, ...] = (
    _check_override,
    _check_secrecy,
    _check_consent,
    _check_exfiltration,
    _check_prompt_theft,
    _check_steering,
    _check_commands,
    _check_model_address,
    _check_forged_turn,
    _check_url_exfiltration,
    _check_encoded_orders,
    _discount_mentions,
)


def _requires_asking(sentence: Sentence) -> bool:
    """Return True for a double negation such as "do nothing without asking"."""
    negations = sorted({*sentence.positions.get("negation", ())})
    questions = [*sentence.positions.get("ask", ()), *sentence.positions.get("consent", ())]
    before_question = [each for each in negations if any(0 < position - each <= 4 for position in questions)]
    return bool(before_question) and any(0 < before_question[-1] - each <= 10 for each in negations)


def _is_negated(sentence: Sentence, group: str) -> bool:
    """Return True if the sentence negates every phrase of this group that it contains."""
    negations = sentence.positions.get("negation", ())
    positions = sentence.positions.get(group, ())
    return bool(negations and positions) and all(
        any(0 < position - each <= 2 for each in negations) for position in positions
    )


def _involves_user(sentence: Sentence) -> bool:
    """Return True if a sentence asks to inform or consult the user, as in "tell the user"."""
    return sentence.has_all("involves_user") and not _is_negated(sentence, "involves_user")


def _names_parameter(sentence: Sentence, context: TextContext) -> bool:
    return any(f"`{name}`" in sentence.text for name in context.parameters)


def _has_private_topic(context: TextContext) -> bool:
    """Return True if the tool's name indicates that it handles private data."""
    return any(
        word.startswith(topic) for word in context.topic_words for topic in get_words("private_topics")
    )


def _describes_parameter(sentence: Sentence, context: TextContext) -> bool:
    """Return True if a line describes one of the tool's parameters, as in tables and docstrings."""
    match = _PARAMETER_LINE.match(sentence.text)
    return bool(match and match[1] in context.parameters)


def find_hidden_markup(text: str) -> Iterator[str]:
    """Yield text that HTML or Markdown markup hides from a reader."""
    for match in _HIDDEN_MARKUP.finditer(text):
        yield next(filter(None, (match[name] for name in "abcdef")), "")
