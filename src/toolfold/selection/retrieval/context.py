"""Rank tools for a message within a conversation, and estimate whether the message needs a tool.

"Now close it" says little by itself. The tools called before, their servers and the earlier messages say the
rest: each is a feature of a candidate, and a small network trained on written conversations
(`training/train_context.py`) weighs them against how well the candidate matches the message itself. Earlier
text is never appended to the message. Knows nothing of language models or of the format of a history.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.need import hashed_features
from toolfold.selection.retrieval.ranking import (
    EXCLUDED_SCORE,
    Legs,
    Positions,
    Scores,
    best_positions,
    granted_scores,
    sorted_unique,
)
from toolfold.selection.retrieval.text import COMMON_WORDS, words
from toolfold.selection.retrieval.vectors import Vectors
from toolfold.selection.retrieval.weight_files import load_arrays, shipped_weights

MAX_EARLIER_MESSAGES = 3
MAX_USED_TOOLS = 8
MAX_SERVER_CANDIDATES = 96
"""Tools of one server that are candidates because the conversation uses the server."""
NEAREST_TO_EARLIER = 12
MAX_CUE_CHARS = 4_000
MAX_AGREEMENT_CHARS = 60
MAX_REPETITION_CHARS = 120
MAX_REPETITION_WORDS = 4
MAX_CONTINUATION_WORDS = 3
MIN_QUESTION_WORDS = 2
MIN_REQUEST_WORDS = 3
MIN_REQUEST_NEED = 0.5
NEED_BUCKETS = 4_096
_AGE_DECAY = 0.7
_OWN_SHARES = ((8, 0.75), (6, 0.5), (4, 0.25))  # words of its own → share of the message's own ranking
_Z_SCALE = np.float32(4)

_SCRIPT_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

# Words of the most common languages.
_REFERRING_WORDS = frozenset(
    """it its that this those these them they same again also too instead there then he she him her his
    hers one ones other others another both each likewise ditto similarly previous last first second third
    auch nochmal wieder dasselbe gleiche gleichen dort es ihn sie aussi encore meme pareil la tambien otra
    mismo igual alli anche stesso ancora tambem mesmo outra тоже также снова опять его ее их""".split()  # noqa: SIM905
)
_CONTINUATION = re.compile(
    r"\W*(?:(?:and|also|but|or|plus|then|now|next|so|what about|how about|same|again|once more|instead|only"
    r"|und|auch|oder|dann|jetzt|nochmal|et|aussi|ou|puis|y|e|o|también|luego|ahora|anche|poi|também|agora"
    r"|и|а|также|тоже|теперь|потом)\b|然后|那|还有|再|同样|也|そして|じゃあ|では|また|同じ|그리고|또|그럼)",
    re.IGNORECASE,
)
_CORRECTION = re.compile(
    r"\W*(?:no|nope|nah|not|wait|hold on|sorry|oops|actually|hm+|ugh|wrong|rather|undo|never\s?mind|scratch"
    r"|nein|nee|doch|halt|moment|non|attends|pardon|perdón|espera|mejor|scusa|aspetta|espere|não|нет|стой)\b"
    r"|\b(?:i meant|i mean|instead|rather than|not the|should (?:be|say|have)|typo|actually|sorry|lieber"
    r"|stattdessen|plutôt|en vez|invece)\b|不是|不对|错了|違|やっぱり|아니",
    re.IGNORECASE,
)
_AGREEMENT_WORDS = (
    r"(?:(?:yes|yeah|yep|yup|ok|okay|sure|go ahead|go on|go for it|do (?:it|so|that)|proceed|continue"
    r"|confirm(?:ed)?|agreed|please|exactly|right|correct|sounds good"
    r"|the (?:first|second|third|last)(?: one)?"
    r"|ja|jep|klar|genau|bitte|mach|oui|vas-y|d'accord|sí|si|claro|vale|dale|adelante|sì|certo|sim|pode"
    r"|да|ага|давай|конечно|tak|evet|tamam)\b|はい|うん|お願い(?:します)?|好的?|是的?|对|可以|行|네|예|응|좋아)"
)
_AGREEMENT = re.compile(rf"\W*{_AGREEMENT_WORDS}", re.IGNORECASE)
_ONLY_AGREEMENT = re.compile(rf"(?:\W*{_AGREEMENT_WORDS})+\W*", re.IGNORECASE)
_REPETITION = re.compile(
    r"\b(?:re-?try|(?:try|run|do|attempt)(?: (?:it|that|this))?,? (?:again|now|once more|one more time)"
    r"|(?:what|how) about now|(?:does|should|will|would|might) (?:it|that|this) (?:now )?(?:work|go through)"
    r"|(?:versuch\w*|probier\w*)(?: es| das)? (?:jetzt |bitte )?(?:noch ?mal|erneut)|geht es jetzt"
    r"|réessaie\w*|essaie encore|inténta\w* (?:de nuevo|otra vez)|prueba (?:de nuevo|otra vez)|riprova\w*"
    r"|tent[ae] (?:de novo|novamente)|probeer (?:het )?(?:opnieuw|nog een keer)|spróbuj ponownie|tekrar dene"
    r"|попробуй(?:те)? (?:еще раз|ещё раз|снова))\b|再试|再試|もう一度(?:試|やって|お願い)|다시 (?:시도|해)",
    re.IGNORECASE,
)
_CLOSING_WORDS = re.compile(
    r"\b(?:thank(?:s|\s*(?:you|u))?|thx|tysm|ty|cheers|bye|goodbye|see (?:you|ya)|never\s?mind|nvm|stop"
    r"|danke|dank|tschüss|merci|au revoir|gracias|adiós|grazie|ciao|obrigad[oa]|tchau|bedankt|tack"
    r"|спасибо|пока|dziękuję|teşekkür\w*)\b|谢|再见|ありがと|さようなら|감사|고마",
    re.IGNORECASE,
)
_NOTIFICATION = re.compile(
    r"(?:^|[.,;!]|\b(?:and|then|also|please|now|und|et|y))\W*(?:please )?"
    r"(?:let (?!me\b|us\b|it\b)[\w' -]{1,40} know\b"
    r"|(?:tell|inform|notify|ping|warn|text|message|e?-?mail) (?!me\b|us\b|a\b|an\b)\w"
    r"|(?:write|give|send|drop) (?:him|her|them)\b|drop [\w' -]{1,40} a (?:line|note)\b"
    r"|sag\w* [\w -]{1,40} bescheid|informier\w*|benachrichtig\w*|pr[ée]vien\w*|dis-le"
    r"|av[ií]sa\w*|avvisa\w*)",
    re.IGNORECASE,
)
MAX_NOTIFICATION_CHARS = 120
MESSAGING_REQUESTS = ("send an e-mail to somebody", "send a chat message to somebody")


@dataclass(frozen=True, slots=True)
class Context:
    """Messages and tool calls of a conversation before its latest message."""

    earlier: tuple[str, ...] = ()
    """The user's earlier messages, latest first."""
    used: tuple[str, ...] = ()
    """Names of the tools that were called, latest first."""

    def __bool__(self) -> bool:
        return bool(self.earlier or self.used)


NO_CONTEXT = Context()


@dataclass(frozen=True, slots=True, eq=False)
class EarlierMessages:
    """Earlier messages of a conversation, latest first, with the similarity of every tool to each."""

    similarities: Sequence[Scores] = ()
    combined: Scores | None = None
    """Similarities to the mean of the vectors of the latest message and the one before it."""
    usual: Sequence[Scores] = ()
    """If the tools are candidates only: similarities of tools drawn from all that are granted, to each of the
    earlier messages and then to the combined vector."""

    def find_usual(self, number: int) -> Scores | None:
        """Return the similarities of a sample of tools to an earlier message; None if there is no sample."""
        return self.usual[number] if number < len(self.usual) else None


@dataclass(frozen=True, slots=True)
class Cues:
    """Linguistic cues that a message refers to earlier messages."""

    own_words: int
    """Number of words that say something by themselves."""
    refers: bool
    corrects: bool
    agrees: bool
    closes: bool

    @classmethod
    def of(cls, message: str) -> Cues:
        """Find words in a message that indicate a reference to earlier messages."""
        message = message[:MAX_CUE_CHARS]
        every = words(message)
        own = sum(map(_word_weight, (word for word in every if _is_own_word(word))))
        refers = _CONTINUATION.match(message) is not None or not _REFERRING_WORDS.isdisjoint(every)
        return cls(
            own,
            refers,
            _CORRECTION.search(message) is not None,
            _AGREEMENT.match(message) is not None,
            _CLOSING_WORDS.search(message) is not None,
        )

    @property
    def continues(self) -> bool:
        """Return True if a short message refers to earlier messages and does not end the conversation."""
        return self.own_words <= MAX_CONTINUATION_WORDS and (self.refers or self.agrees) and not self.closes

    def row(self) -> list[float]:
        """Return the cues of a reference to earlier messages as a row of numeric features."""
        return [
            min(self.own_words, 10) / 10,
            *map(float, (self.refers, self.corrects, self.agrees, self.closes)),
        ]


def is_agreement(message: str) -> bool:
    """Return True if a message only expresses agreement, such as "yes, go ahead"."""
    return len(message) <= MAX_AGREEMENT_CHARS and _ONLY_AGREEMENT.fullmatch(message) is not None


def asks_to_notify(message: str) -> bool:
    """Return True if a short message asks to tell somebody what was said before: "let her know"."""
    return len(message) <= MAX_NOTIFICATION_CHARS and _NOTIFICATION.search(message) is not None


def is_own_question(message: str) -> bool:
    """Return True if a message is a question that says itself what it is about."""
    asked = message.rstrip(" \"')").endswith(("?", "？"))
    return asked and Cues.of(message).own_words >= MIN_QUESTION_WORDS


def is_own_request(message: str, need: float) -> bool:
    """Return True if a message says itself what it needs, whatever was said before it.

    `need` is the probability that the message alone needs a tool.
    """
    return is_own_question(message) or (
        need >= MIN_REQUEST_NEED and Cues.of(message).own_words >= MIN_REQUEST_WORDS
    )


def resolve_repetition(message: str, context: Context) -> tuple[str, Context]:
    """Return the earlier request that a message such as "what about now?" repeats, and its context.

    Return both arguments unchanged if the message asks for something else, or follows no other request.
    """
    if not _is_repetition(message):
        return message, context
    for number, earlier in enumerate(context.earlier):
        if not _is_repetition(earlier):
            return earlier, Context(context.earlier[number + 1 :], context.used)
    return message, context


def _is_repetition(message: str) -> bool:
    if len(message) > MAX_REPETITION_CHARS or _REPETITION.search(message) is None:
        return False
    rest = Cues.of(_REPETITION.sub(" ", message))
    # "Try it again with search_issues instead" asks for another tool.
    return rest.own_words <= MAX_REPETITION_WORDS and not rest.corrects and "_" not in message


def _is_own_word(word: str) -> bool:
    return word not in COMMON_WORDS and word not in _REFERRING_WORDS


def _word_weight(word: str) -> int:
    """Return the weight of a word: 1, or a third of its length in scripts without spaces between words."""
    return 1 if word.isascii() or not _SCRIPT_WITHOUT_SPACES.search(word) else max(1, len(word) // 3)


@dataclass(frozen=True, slots=True, eq=False)
class UsedTools:
    """Tools called in a conversation, as index positions, and the server of each indexed tool."""

    positions: tuple[int, ...]
    """Latest first."""
    servers: Positions
    """The server of every tool in the index, as a number."""

    @classmethod
    def find(cls, index: Index, names: Sequence[str]) -> UsedTools:
        """Look up the tools called in a conversation in the index."""
        known = (index.by_name.get(name) for name in names)
        present = dict.fromkeys(position for position in known if position is not None)
        return cls(tuple(present)[:MAX_USED_TOOLS], index.server_numbers())

    def server_weights(self) -> dict[int, float]:
        """Return a weight for each server whose tools were called: 1 for the latest, less for others."""
        weights: dict[int, float] = {}
        for position in self.positions:
            weights.setdefault(int(self.servers[position]), _AGE_DECAY ** len(weights))
        return weights

    def server_tools(self, mask: NDArray[np.bool_], legs: Legs) -> list[Positions]:
        """Return the best tools for the message from each server whose tools were called."""
        found = []
        for server in self.server_weights():
            tools = np.flatnonzero((self.servers == server) & mask)
            if len(tools) > MAX_SERVER_CANDIDATES:
                score = next(iter(legs.dense.values()), legs.lexical)
                tools = tools[best_positions(score[tools], MAX_SERVER_CANDIDATES)]
            found.append(tools)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ContextInput:
    """Input for computing features: a message with its scores, and the earlier messages and calls."""

    index: Index
    message: str
    legs: Legs
    used: UsedTools
    earlier: EarlierMessages

    def candidates(self, ranked: Positions, mask: NDArray[np.bool_]) -> Positions:
        """Return the candidate tools for the message alone and those suggested by the conversation."""
        near = [best_positions(each, NEAREST_TO_EARLIER) for each in self._earlier_scores()]
        used = np.array(self.used.positions, np.int64)
        every = np.concatenate((ranked, used, *self.used.server_tools(mask, self.legs), *near))
        return sorted_unique(every[mask[every]])

    def _earlier_scores(self) -> list[Scores]:
        combined = [] if self.earlier.combined is None else [self.earlier.combined]
        return [*self.earlier.similarities, *combined]


def context_features(given: ContextInput, candidates: Positions, base: Scores) -> Scores:
    """Return one row of features per candidate tool; `base` contains the scores for the message alone."""
    legs, used = given.legs, given.used
    dense = next(iter(legs.dense.values()), None)
    columns = [
        _closeness(base),
        _standardize(dense, candidates, next(iter(legs.usual.values()), None)),
        legs.lexical[candidates] / max(legs.best_lexical, 1e-6),
        *_server_columns(given, candidates, dense, base),
        *_used_columns(given.index, used, candidates),
        *_earlier_columns(given.earlier, candidates),
    ]
    row = _message_row(given, candidates, dense)
    return np.column_stack((*columns, np.tile(np.array(row, np.float32), (len(candidates), 1)))).astype(
        np.float32
    )


def _message_row(given: ContextInput, candidates: Positions, dense: Scores | None) -> list[float]:
    """Return the features of a message that are the same for all candidate tools."""
    standardized = _standardize(dense, candidates, next(iter(given.legs.usual.values()), None))
    servers = given.used.servers[candidates]
    last = int(given.used.servers[given.used.positions[0]]) if given.used.positions else -1
    inside = float(standardized[servers == last].max(initial=-1.0))
    best = float(standardized.max(initial=-1.0))
    return [*Cues.of(given.message).row(), best, inside - best, float(bool(given.used.positions))]


def _server_columns(
    given: ContextInput, candidates: Positions, dense: Scores | None, base: Scores
) -> list[Scores]:
    """Return for each candidate whether its server was used before, and its rank among the server's tools."""
    weights = given.used.server_weights()
    servers = given.used.servers[candidates]
    last = next(iter(weights), -1)
    on_last = (servers == last).astype(np.float32)
    on_earlier = np.array([weights.get(int(server), 0.0) if server != last else 0.0 for server in servers])
    own = np.zeros(len(candidates), np.float32)
    similar = np.zeros(len(candidates), np.float32)
    for server in weights:
        inside = servers == server
        own[inside] = _closeness(base[inside])
        if dense is not None:
            similar[inside] = _closeness(dense[candidates[inside]])
    return [on_last, on_earlier.astype(np.float32), own, similar]


def _used_columns(index: Index, used: UsedTools, candidates: Positions) -> list[Scores]:
    """Return for each candidate whether and when it was called, and its similarity to called tools."""
    ages = {position: age for age, position in enumerate(used.positions)}
    last = np.array([float(ages.get(int(each)) == 0) for each in candidates], np.float32)
    before = np.array(
        [_AGE_DECAY ** ages[int(e)] if ages.get(int(e)) else 0.0 for e in candidates], np.float32
    )
    if index.vectors is None or not used.positions:
        none = np.zeros(len(candidates), np.float32)
        return [last, before, none, none]
    similarity = _tool_similarities(index.vectors, candidates, used.positions)
    return [last, before, similarity[:, 0], similarity.max(1)]


def _tool_similarities(vectors: Vectors, candidates: Positions, used: Sequence[int]) -> Scores:
    """Return the cosine similarity of each candidate to each called tool."""
    packed = vectors.packed
    rows = packed.numbers[candidates].astype(np.float32)
    others = packed.numbers[list(used)].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6
    others /= np.linalg.norm(others, axis=1, keepdims=True) + 1e-6
    similarity: Scores = np.vecdot(rows[:, None, :], others[None, :, :]).astype(np.float32)
    return similarity


def _earlier_columns(earlier: EarlierMessages, candidates: Positions) -> list[Scores]:
    """Return each candidate's similarity to the previous message, to older messages, and to both combined."""
    none = np.full(len(candidates), -1.0, np.float32)
    each = [
        _standardize(scores, candidates, earlier.find_usual(number))
        for number, scores in enumerate(earlier.similarities)
    ]
    older = np.max(each[1:], axis=0) if len(each) > 1 else none
    usual = earlier.find_usual(len(earlier.similarities))
    combined = none if earlier.combined is None else _standardize(earlier.combined, candidates, usual)
    return [each[0] if each else none, older, combined]


def _closeness(scores: Scores) -> Scores:
    """Convert scores to values by rank: 1 for the highest score, and lower values for lower ranks."""
    ranks = np.empty(len(scores), np.float32)
    ranks[(-scores).argsort(kind="stable")] = np.arange(len(scores), dtype=np.float32)
    return (1 / (1 + ranks / 3)).astype(np.float32)


def _standardize(scores: Scores | None, candidates: Positions, sample: Scores | None = None) -> Scores:
    """Standardize scores: distance from the mean, in units of four standard deviations.

    With `sample`, mean and deviation are those of a sample of all tools.
    """
    if scores is None:
        return np.full(len(candidates), -1.0, np.float32)
    usual = granted_scores(scores) if sample is None or not len(sample) else sample
    average, spread = float(usual.mean()), float(usual.std()) + 1e-6
    mine = (scores[candidates] - np.float32(average)) / (np.float32(spread) * _Z_SCALE)
    return np.clip(np.where(scores[candidates] > EXCLUDED_SCORE, mine, -1.0), -1.0, 3.0).astype(np.float32)


def merge_with_message(in_context: Positions, alone: Positions, message: str) -> Positions:
    """Combine the rankings with and without conversation context; context counts less for long messages.

    A long message may ask for several tools, and says which.
    """
    own = Cues.of(message).own_words
    share = next((share for least, share in _OWN_SHARES if own >= least), 0.0)
    if not share:
        return in_context
    merged: dict[int, None] = {}
    rankings = iter(in_context.tolist()), iter(alone.tolist())
    owed = 0.0
    for _ in range(len(in_context) + len(alone)):
        owed += share
        takes_own = owed >= 1
        owed -= takes_own
        new = next((each for each in rankings[takes_own] if each not in merged), None)
        if new is not None:
            merged[new] = None
    merged |= dict.fromkeys((*in_context.tolist(), *alone.tolist()))
    return np.fromiter(merged, np.int64, len(merged))


def need_features(scores: Scores, rows: Scores, need: float) -> list[float]:
    """Return features for estimating whether a message of a conversation needs a tool.

    `need` is the probability for the message alone.
    """
    bounded = min(max(need, 1e-6), 1 - 1e-6)
    ordered = np.sort(scores)[::-1]
    best = rows[int(scores.argmax())]
    return [
        math.log(bounded / (1 - bounded)) / 4,
        float(ordered[0]) / 4,
        float(ordered[0] - ordered[min(4, len(ordered) - 1)]) / 4,
        *best.tolist(),
    ]


class ContextRanker:
    """Small network that scores candidates in the context of a conversation."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self._weights = {key: value.astype(np.float32) for key, value in weights.items()}

    @classmethod
    def shipped(cls) -> ContextRanker:
        """Load the shipped weights of the network that ranks tools within a conversation."""
        return cls(load_arrays(shipped_weights().joinpath("context.arrays")))

    def __call__(self, rows: Scores, *, dense: bool) -> Scores:
        """Return one score per row of features; only the order of the scores is meaningful."""
        part = "dense" if dense else "text"
        weights = self._weights
        inner = np.maximum(rows @ weights[f"{part}.inner"] + weights[f"{part}.inner_shift"], 0)
        scores: Scores = inner @ weights[f"{part}.outer"] + rows @ weights[f"{part}.direct"]
        return scores

    def need_probability(
        self, message: str, row: Sequence[float], *, dense: bool, states: Scores | None = None
    ) -> float:
        """Return a score from 0 to 1 for the likelihood that a message of a conversation needs a tool.

        `states` are the encoder's, one row per token. The score is scaled so that the threshold for single
        messages also suits conversations.
        """
        if is_agreement(message):
            return 1.0
        part = "text" if not dense else "dense" if states is None else "encoder"
        weights = self._weights
        buckets, shares = need_buckets(message)
        score = float(np.asarray(row, np.float32) @ weights[f"{part}.need"])
        score += float(weights[f"{part}.words"][buckets] @ shares) * float(weights[f"{part}.words_scale"])
        if part == "encoder" and states is not None:
            score += float(pool_states(states) @ weights["encoder.states"])
        score += float(weights[f"{part}.need_shift"])
        return 1.0 / (1.0 + math.exp(-min(max(score, -30.0), 30.0)))


def pool_states(states: Scores) -> Scores:
    """Return the mean and the maximum of the encoder's hidden states of a message's tokens."""
    return np.concatenate((states.mean(0), states.max(0)))


def need_buckets(message: str) -> tuple[Positions, Scores]:
    """Return the hash buckets of a message's character and word n-grams, with their weights."""
    buckets, shares = hashed_features(message)
    return buckets % NEED_BUCKETS, shares
