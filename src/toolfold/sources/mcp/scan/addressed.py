"""Text that speaks to the model behind its user's back, told by several weak signs together.

No single phrase decides. Each sign adds to a sentence's weight, some take away from it, and only what is
heavy enough is reported: an order about the tool itself is ordinary documentation, while one that reaches for
what is not the tool's business, or that must not be seen, is not. Reads sentences; knows no policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from toolfold.sources.mcp.scan.judged import Look, joined_places, judge, meant, places
from toolfold.sources.mcp.scan.reading import Sentence, read, sentences

HEAVY = 0.8
LEANING = 0.5  # above it lie a dozen in a thousand of the real tools
AGREED_LEANING = 1.0  # together with signs
CERTAIN_LEANING = 3.0
DENIED_LEANING = -2.0  # below it the judge contradicts signs

_UNTOLD_USER = "the user is not to be told"
_PRECISE_REASONS = frozenset(
    {
        "something is to be kept from the user",
        "somebody is to be deceived",
        "it sets earlier instructions aside",
        "it says that rules no longer hold",
        "it looks like a turn of the conversation or a part of the prompt",
        "it speaks of another server's tool",
        "something encoded is to be carried out",
    }
)
UNLIKELY = -2.5  # what leans less by its words is not asked for its meaning
LONGEST_PAIR = 60  # words
LONGEST_MEANT = 20_000  # characters of a text whose meaning is asked for: some milliseconds a sentence
MOST_MEANT = 2_000  # sentences of one listing; real servers come to a tenth of it

_FORGED = re.compile(
    r"<\|?(?:im_start|im_end|system|assistant|user|eot_id|endoftext|start_header_id)\|?>|</?(?:system"
    r"|tool|tools|tool_description|description|function|functions|"
    r"function_results|assistant|instructions?|important|secret|hidden|admin|developer|sys)>"
    r"|\[/?inst\]|<<sys>>"
    r"|\"role\"\s*:\s*\"(?:system|developer|assistant)\"|^\W*(?:system|developer|assistant|human"
    r"|user)\s*(?:message|"
    r"prompt|note|notice|override)?\s*:\s*\S|#+ *(?:system|developer|operator"
    r"|instruction)s?\b(?: (?:message|prompt|rules))?"
    r"|-{2,} *(?:end|begin|start)\b[^-]{0,60}-{2,}|\[(?:system|client|admin|developer"
    r"|operator)[^\]]{0,20}\]"
    r"|\[\[[a-z ]{3,20}\]\]|\b(?:begin|start|end) (?:of )?(?:privileged|system|operator|admin|developer)\b"
    r"|end of (?:tool )?(?:description|result|output|document|data)s?\b",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(
    r"\{\{|\btemplates?\b|\bchatml\b|special tokens|\brole\b.{0,40}\b(?:system|user)\b.{0,20}\b(?:or|and)\b"
)
_CALLED = re.compile(
    r"(?:^|[\n(\[{>\"'#*/]\s*|(?<!\w)-\s*|\b(?:hey|hi|hello|dear|psst,?|attention|estimado|cher"
    r"|liebe[rs]?|to|for|note to|notes? for)\s+)"
    r"(?:all |any |other |the |every |coding |virtual |automated |reading |autonomous )*"
    r"(?:ai|a\.i\.|llm|language model|assistant|agent|model|copilot|chatbot|bot|claude|chatgpt|gpt"
    r"|gemini|notetaker ai|"
    r"asistente|assistente|assistent|ki|ia|ассистент|помощник)s?(?:/\w+)?(?: (?:note|notes|directive"
    r"|notice|instructions?|assistants?|"
    r"agents?|models?|virtual|reading (?:this|it)[^:,]{0,30}))*\s*[:,]"
)
_NOTE_TO = re.compile(
    r"\b(?:note|notes|notice|message|instructions?|hint|hints|remediation|advice|reminder|memo"
    r"|directive|usage|guidance|word|"
    r"attention|info|information|steps)s? (?:to|for) (?:all |any |the |every |coding |ai |automated |llm )*"
    r"(?:ai|llm|language model|assistant|agent|model|copilot|chatbot|bot|integrator|crawler|automation)s?\b"
    r"|\bif you(?:'re| are) (?:an? |the )?(?:ai|llm|large language model|language model|assistant"
    r"|agent|bot|automated|model|machine|copilot)"
    r"|\b(?:instructions?|directive|note|message)s?_for_(?:the_)?(?:model|assistant|agent|ai|llm)"
    r"|\b(?:readers?|visitors?|those|anyone|whoever|whatever|everyone)\b.{0,12}\b(?:are|is|automates?"
    r"|automating|runs?|processes)\b"
    r".{0,12}\b(?:ai|agents?|bots?|models?|llms?|assistants?|this (?:tracker|page|inbox|repo\w*|file"
    r"|issue|site|mailbox|queue|list))\b"
    r"|@(?:assistant|copilot|claude|agent|ai|bot|chatgpt|gemini)\b|#(?:agents?|assistants?|ai|llms?)\b"
    r"|\bai[_ ](?:please|must|should)\b|[\"']for[\"']\s*:\s*[\"'](?:assistant|agent|model|ai|llm)"
    r"|给(?:ai|人工智能|助手|模型)|(?:ai|助手|智能体|模型)[：:，,]|aiアシスタント(?:へ|は|の)|(?:アシスタント|モデル|エージェント)(?:へ|は、|：)"
    r"|(?:ai )?(?:어시스턴트|에이전트|모델)(?:에게|는|께)|إلى المساعد|أيها المساعد"
    r"|एआई (?:सहायक|के लिए)|सहायक के लिए"
    r"|\b(?:ai|llm|language[- ]model|automated|machine|virtual)[ -](?:agents?|assistants?|systems?"
    r"|tools?|readers?|reviewers?|models?|"
    r"crawlers?|bots?|summari[sz]ers?|screeners?)\b.{0,80}\b(?:must|should|shall|have to|need to"
    r"|are (?:asked|required|requested|"
    r"to)|is (?:asked|required|requested|to)|please)\b"
    r"|\b(?:processed|read|summari[sz]ed|parsed|screened|handled|scraped|seen"
    r"|reviewed) (?:automatically|by (?:an? |any |some )?"
    r"(?:machine|model|ai|llm|bot|program|script|assistant|agent)s?)\b"
    r"|\b(?:when|if|while|should) (?:an? |any |some )?(?:ai|llm|bot|agent|assistant|language model"
    r"|copilot)\b.{0,20}\b(?:reads?|reading|"
    r"process\w*|summari[sz]\w+|sees?|finds?|opens?|parses?)\b"
)
_ORDERED = re.compile(
    r"\b(?:assistants?|agents?|models?|llms?|ais?|copilot|bots?|clients?|caller)\b(?: \w+){0,6}? "
    r"(?:must|shall|should|has to|have to|had to|is to|are to|needs? to|will|may|can|is prohibited"
    r"|is required|is expected|attach|obeys?)\b"
)
_FETCH_AND_RUN = re.compile(
    r"(?:curl|wget|iwr|invoke-webrequest)\b[^\n]{0,200}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b"
    r"|\b(?:ba)?sh\s+<\(\s*curl|\$\(\s*(?:curl|cat|wget|env)\b"
    r"|(?:curl|wget)\b[^\n]{0,120}(?:&&|;)\s*(?:sudo |\./|ba?sh|sh |python|chmod)|\|\s*base64\b"
    r"|base64\s+(?:-d|--decode)\s*\|"
    r"|\bcat\s+(?:~|/etc/|\.env)|rm\s+-rf\s+[~/]|\beval\s*\(|\bexec\s*\(\s*base64|powershell\s+-e"
)
_CARRIES = re.compile(
    r"[?&/=](?:[\w.-]{0,30}=)?(?:\{[\w .]{1,40}\}|<[\w .]{1,40}>|\$\{?\w+|%7b|\[[\w .]{1,40}\]|data\b"
    r"|secret|prompt|xxx|\.\.\.)"
    r"|\?\w{1,20}=$"
)
_LADEN = re.compile(r"[?&][^#]*(?:conversation|history|prompt|context|secret|password|token|message|user)")
_PICTURE = re.compile(r"!\[[^\]\n]{0,200}\]\(\s*https?://[^)\s]{1,500}[?&=][^)\s]{0,500}\)")
_CONCEALED = re.compile(
    r"<!--(?P<a>.{8,2000}?)-->|<(?P<tag>span|div|p|font|small|b|i|a|td"
    r"|section)\b[^>]{0,300}(?:display\s*:\s*none|font-size\s*:\s*[01](?:px|pt|em|%)?\b"
    r"|visibility\s*:\s*hidden|opacity\s*:\s*0|(?:left|top|text-indent)\s*:\s*-\d{3,}"
    r"|\b(?:max-)?(?:height|width)\s*:\s*0(?![.\d])|color\s*[:=]\s*[\"']?(?:#fff|white|transparent)"
    r"|hidden)[^>]{0,200}>(?P<b>.{4,2000}?)</(?P=tag)>"
    r"|\[//\]: ?#? ?[(\"'](?P<c>[^\n]{8,1000})|\[(?:white|hidden|invisible|tiny) text\](?P<d>[^\n]{4,1000})"
    r"|\[comment\]: ?<> ?\((?P<e>[^\n]{8,1000})|<details>(?P<f>.{8,2000}?)</details>",
    re.IGNORECASE | re.DOTALL,
)

_ROLE = re.compile(
    r"\byou(?:'re| are)(?: now)? (?:an?|the) [\w -]{0,30}\b(?:bot|agent|admin|administrator|root|ai)\b"
)
_QUOTED = re.compile(
    r"[\"'“‘«「](?:ignore|disregard|forget|override|do not tell|don't tell"
    r"|you are now)[^\"'”’»」]{3,80}[\"'”’»」]"
)
_FIELD = re.compile(r"[\s|*`\"-]*(\w{1,64})[`\"]?\s*[|:=(]")
_PRIVATE = tuple(
    re.findall(
        r"\w+",
        "secret password passphrase key token credential dotenv env cookie conversation chat message cl"
        "ipboard screenshot"
        " vault wallet login session auth prompt ssh otp connect configure mail email gmail inbox threa"
        "d contact",
    )
)
_SAID_NOTHING = re.compile(
    r"\b(?:user|users|they|person|customer|client)\b (?:\w+ )?(?:did not|didn't|does not|doesn't"
    r"|do not|don't|has not|hasn't|have not)"
)
# Cheap to look for, and always there where the longer patterns fit.
_NOTE_SIGNS = (
    "@",
    "#",
    "automat",
    "whoever",
    "anyone",
    "everyone",
    "those",
    "reader",
    "visitor",
    "whatever",
    "_for_",
    'for"',
    "for'",
)
_DECODE_SIGNS = (
    "obey",
    "carr",
    "do what",
    "do as",
    "act on",
    "comply",
    "follow",
    "execute",
    "perform",
    "apply",
    "run it",
    "as your",
)
_DECODE = re.compile(
    r"\b(?:decode|decrypt|decipher|unescape|unscramble|deobfuscate|reverse|interpret|translate|read"
    r"|rot13|base64|hex|morse|cipher|"
    r"backwards|every (?:second|third|other) (?:letter|word)|first letters?"
    r"|initial letters?)\b.{0,80}\b(?:then |and |to )?"
    r"(?:follow|obey|execute|carry out|carried out|do what|do as|act on|apply|comply|run it|perform"
    r"|as your instructions?)\b"
)
_OBEY = re.compile(
    r"\b(?:obey|follow it|follow them|do what it says|carry (?:it |them )?out|carried out|comply"
    r"|act on it|as your instructions?)\b"
)
_CERTAINLY = re.compile(
    r"\b(?:ais?|llms?|language models?|copilot|chatbots?|claude|gpt|chatgpt|gemini"
    r"|assistants?(?! manager| prof))\b"
)
_HEAD = re.compile(r"([^:：,，!！\n]{2,60})[:：,，!！]")
_FIELDS_OFTEN = frozenset({"model", "models", "agent", "agents", "bot", "machine", "machines", "assistant"})
_ASKS_FOR = re.compile(
    r"\b(?:never|not|n't) asks? (?:you |them |the user |users |anyone )?for\b"
    r"(?! (?:their |any |your |the )?(?:permission|confirmation|approval|consent|authori[sz]ation))"
)
_EXCLUDES = re.compile(
    r"\b(?:instead of|in place of|rather than|avoid using|stop using|no longer us\w+"
    r"|(?:not|n't|never) (?:use|call|invoke|rely on))\b"
)
_HUSHED = re.compile(
    r"\b(?:not|never|n't|without) (?:ever )?(?:mention|disclos|reveal|acknowledg|report|discuss|describ)\w*"
    r" (?:\w+ )?(?:this|these|that you)\b"
)
_QUIET_BY_ITSELF = re.compile(r"\b(?:silently|quietly)\s+\w+(?:ed|s)\b")


class Patience:
    """How many more sentences may be asked for their meaning; the others are judged by their words."""

    def __init__(self) -> None:
        self._left = MOST_MEANT

    def take(self) -> bool:
        """Whether there is any left, and one less from now on."""
        self._left -= 1
        return self._left >= 0


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a text stands."""

    result: bool = False
    """What a tool answered, rather than what a server says of the tool."""
    value: bool = False
    """The words on one parameter."""
    hasty: bool = False
    """Judged by words alone, for somebody waits or there is much of it."""
    patience: Patience = field(default_factory=Patience)
    topic: frozenset[str] = frozenset()
    """The words of the tool's own name: what it may speak of."""
    fields: frozenset[str] = frozenset()
    """The tool's own parameters."""
    foreign: frozenset[str] = frozenset()
    """Names of other servers' tools."""
    claimed: frozenset[str] = frozenset()
    """Those of them that are also words of the server's own: a parameter's, or the end of a longer name."""
    spoken: tuple[str, ...] = ()
    """How other servers, and tools whose names are plain words, are spoken of."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text that is addressed to the model."""

    start: int
    end: int
    weight: float
    leaning: float
    """How much it reads like others that were; without end below zero where there is too little to judge."""
    reasons: tuple[str, ...]

    @property
    def heavy(self) -> bool:
        return self.weight >= HEAVY or self.leaning >= LEANING

    @property
    def is_certain(self) -> bool:
        """Whether signs and judge agree, the judge has no doubt, or the signs are of a kind seldom mistaken.

        Otherwise either of them alone is wrong about real tools more often than not.
        """
        if self.weight < HEAVY:
            return self.leaning >= CERTAIN_LEANING
        precise = not _PRECISE_REASONS.isdisjoint(self.reasons)
        return (
            _UNTOLD_USER in self.reasons
            or self.leaning >= AGREED_LEANING
            or (precise and self.leaning > DENIED_LEANING)
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """A sentence, or two that follow one another."""

    sentence: Sentence
    texts: tuple[str, ...]
    """Of the sentences in it: most windows are never judged, so their words are cut up late."""


@dataclass(slots=True)
class _Scale:
    """Signs of one sentence, added up."""

    weight: float = 0.0
    reasons: list[str] = field(default_factory=list)

    def add(self, weight: float, reason: str = "") -> None:
        self.weight += weight
        if reason and weight > 0 and reason not in self.reasons:
            self.reasons.append(reason)


_Sign = Callable[[Sentence, Setting, _Scale], None]


def addressed(text: str, setting: Setting) -> Iterator[Passage]:
    """The passages that are heavy enough, in order."""
    if setting.result or len(text) > LONGEST_MEANT:
        setting = replace(setting, hasty=True)
    said = [_window(each) for each in sentences(text)]
    heavy = False
    for window in said:
        passage = _weighed(window, setting)
        if passage.heavy:
            heavy = True
            yield passage
    if not heavy:
        yield from _pairs(said, setting)


def weight(text: str, setting: Setting) -> float:
    """How heavy the heaviest sentence is; one that leans far enough is heavy."""
    hasty = replace(setting, hasty=True)  # what was hidden or encoded needs no more than plain words
    passages = [_weighed(_window(each), hasty) for each in sentences(text)]
    return max((max(each.weight, HEAVY * each.heavy) for each in passages), default=0.0)


def looks(text: str, setting: Setting) -> Iterator[tuple[str, Look]]:
    """What is judged of a text, each with its words: for those who train the judge."""
    said = [_window(each) for each in sentences(text)]
    for window in [*said, *_paired(said)]:
        if _is_worth_judging(window.sentence):
            yield window.sentence.text, _look(window, setting, _signs(window.sentence, setting)[1])


def _window(sentence: Sentence) -> _Window:
    return _Window(sentence, (sentence.text,))


def _pairs(said: Sequence[_Window], setting: Setting) -> Iterator[Passage]:
    """What is parted over two sentences, such as an order and what becomes of its fruits."""
    for window in _paired(said):
        passage = _weighed(window, setting)
        if passage.heavy:
            yield passage
            return


def _paired(said: Sequence[_Window]) -> Iterator[_Window]:
    for one, other in pairwise(said):
        first, then = one.sentence, other.sentence
        if first.length + then.length <= LONGEST_PAIR and first.said and then.said:
            yield _Window(_joined(first, then), (*one.texts, *other.texts))


def _joined(one: Sentence, other: Sentence) -> Sentence:
    said = dict(one.said)
    for group, found in other.said.items():
        said[group] = (*said.get(group, ()), *(one.length + 4 + place for place in found))
    return Sentence(
        one.start,
        other.end,
        f"{one.text}\n{other.text}",
        said,
        one.names | other.names,
        one.urls + other.urls,
        one.mails + other.mails,
        one.length + other.length,
    )


def _weighed(window: _Window, setting: Setting) -> Passage:
    sentence = window.sentence
    scale, signs = _signs(sentence, setting)
    leaning = -math.inf
    if _is_worth_judging(sentence):
        leaning = judge().leaning(_look(window, setting, signs))
        if leaning > UNLIKELY and not setting.hasty and setting.patience.take():
            leaning += meant(sentence.text)
    reasons = tuple(scale.reasons) or ("its wording is that of orders to the model",)
    return Passage(sentence.start, sentence.end, scale.weight, leaning, reasons)


def _is_worth_judging(sentence: Sentence) -> bool:
    return len(sentence.said) > 1 and sentence.length > 2


def _signs(sentence: Sentence, setting: Setting) -> tuple[_Scale, list[float]]:
    """All signs added up, and what each has added."""
    scale = _Scale()
    signs = []
    for sign in _SIGNS:
        before = scale.weight
        sign(sentence, setting, scale)
        signs.append(scale.weight - before)
    return scale, signs


def _look(window: _Window, setting: Setting, signs: Sequence[float]) -> Look:
    it, total = window.sentence, sum(signs)
    facts = (
        min(total, 2.0),
        float(total >= HEAVY),
        float(bool(it.urls)),
        float(bool(it.mails)),
        float("`" in it.text),
        float(setting.value),
        float(setting.result),
        min(it.length, 60) / 60,
    )
    said = it.said.keys() - {"guarded"} if _is_negated(it, "guarded") else it.said
    return Look(joined_places(map(places, window.texts)), said, signs, facts)


def _sets_rules_aside(it: Sentence, at: Setting, scale: _Scale) -> None:
    if it.near("ignore", "rules", 9, back=9) and not _is_negated(it, "ignore"):
        known = it.near("ignore", "prior", 9, back=9) or it.near("prior", "rules", 4)
        scale.add(1.0 if known else 0.4, "it sets earlier instructions aside")
    if it.near("rules", "void", 9, back=6) and it.any("prior", "skip", "newrole", "claims"):
        scale.add(0.8, "it says that rules no longer hold")
    if it.has("newrole"):
        scale.add(0.8, "it gives the model another role or another master")
        scale.add(0.3 * (it.count("newrole") > 1) + 0.3 * it.any("claims", "rules", "model"))
    if it.has("obey") and it.any("server", "newrole", "rules") and not _is_negated(it, "obey"):
        scale.add(0.8 if it.has("server") else 0.4, "it gives the model another role or another master")
    if it.has("claims"):
        scale.add(0.6 if at.result else 0.4, "it claims to speak for somebody else")
        scale.add((0.5 if at.result else 0.2) * it.any("doing", "hand", "skip", "command"))
    if "you" in it.text and _ROLE.search(it.text):
        scale.add(0.4, "it gives the model another role or another master")


def _keeps_quiet(it: Sentence, _: Setting, scale: _Scale) -> None:
    hushed = it.near("not", "tell", 5, back=2) and not _SAID_NOTHING.search(it.text)
    if it.near("not", "seen", 6):
        scale.add(1.0, "something is to be kept from the user")
    if hushed and it.has("user") and not _is_guarded(it):
        scale.add(1.0, _UNTOLD_USER)
    elif hushed and (it.has("model") or _HUSHED.search(it.text)):
        scale.add(0.5 + 0.3 * it.any("answer", "user"), "something is not to be told")
    if it.near("hide", "user", 10, back=8) and not _is_guarded(it) and not _is_negated(it, "hide"):
        scale.add(0.9, "something is to be kept from the user")
    if it.has("kept"):
        scale.add(0.8, "something is to be kept from the user")
    if it.has("quiet") and not _QUIET_BY_ITSELF.search(it.text):
        scale.add(0.4, "it is to happen unnoticed")
        if it.any("hand", "calling", "doing", "take") and it.any("user", "model", "always", "not", "must"):
            scale.add(0.6)
    if it.has("traces") and it.any("doing", "ignore", "not", "hand"):
        scale.add(0.7, "traces are to be removed")
    if (
        it.has("deceit")
        and not _is_negated(it, "deceit")
        and it.any("user", "model", "always", "doing", "answer", "must")
    ):
        scale.add(0.6, "somebody is to be deceived")
        scale.add(0.4 * (it.count("deceit") > 1) + 0.4 * it.has("answer") + 0.2 * it.has("user"))


def _asks_nobody(it: Sentence, _: Setting, scale: _Scale) -> None:
    if it.has("optout") and not it.has("place"):
        scale.add(0.7 + 0.3 * it.any("user", "doing", "always", "must", "hand"), "nobody is to be asked")
    if _is_guarded(it) or it.has("place") or _is_careful(it):
        return
    turned = 0 if it.text.isascii() else 5  # in some languages the refusal comes last
    asked = it.near("not", "ask", 2) and it.near("ask", "consent", 6)
    if asked or it.near("not", "consent", 4, back=turned) or it.near("skip", "consent", 5, back=6):
        scale.add(1.0, "nobody is to be asked")
    elif (it.near("not", "ask", 2) and not _ASKS_FOR.search(it.text)) or it.near("skip", "ask", 3, back=4):
        scale.add(0.5, "nobody is to be asked")
        scale.add(0.3 * (it.any("doing", "command", "secret", "hand") or it.near("ask", "user", 2)))
    if it.has("skip", "user") and it.any("claims", "must", "always"):
        scale.add(0.3)


def _hands_over(it: Sentence, at: Setting, scale: _Scale) -> None:
    grave, talk = it.has("grave_secret"), it.has("talk")
    if not (grave or talk or it.any("secret", "private")) or _is_negated(it, "hand") or _is_guarded(it):
        return
    value = (at.value and not at.result) or _is_on_a_field(it, at)
    how = 0.8 if grave else 0.6 if talk else 0.4 if it.has("secret") else 0.3
    if not (it.has("hand") or value or _fills(it, at) or it.has("always", "calling")):
        how *= 0.5 if it.has("take") else 0
    if not how:
        return
    how += 0.15 * (value and it.has("hand")) + 0.2 * (it.count("talk") > 1) + 0.15 * (it.count("private") > 1)
    how += 0.2 * (grave and it.has("take", "hand")) + 0.1 * it.has("hand")
    how += 0.2 * it.has("whole") + 0.15 * it.has("user") + 0.1 * it.has("must") + 0.2 * it.has("always")
    how += (
        0.3 * bool(it.mails or it.urls)
        + 0.15 * it.has("slot")
        + 0.3 * _fills(it, at)
        + 0.25 * it.has("model")
    )
    how -= 0.25 * (at.result and not it.any("model", "user", "claims"))
    how -= 0.6 * it.has("place") + 0.5 * _is_private(at) + 0.3 * (it.has("not") and not it.any("tell", "ask"))
    scale.add(max(0.0, how), "it reaches for what is not the tool's business")


def _asks_for_the_prompt(it: Sentence, _: Setting, scale: _Scale) -> None:
    if it.near("utter", "prompt", 6, back=0 if it.text.isascii() else 6) and not _is_negated(it, "utter"):
        scale.add(0.8, "it wants the model's own instructions")
    if it.has("steal") and it.any("secret", "talk", "private", "user") and not _is_negated(it, "steal"):
        scale.add(0.4, "it reaches for what is not the tool's business")


def _steers(it: Sentence, at: Setting, scale: _Scale) -> None:
    named, spoken = it.names & at.foreign, any(each in it.text for each in at.spoken)
    if named or spoken:
        scale.add(0.6 if spoken or named - at.claimed else 0.4, "it speaks of another server's tool")
        scale.add(0.3 * it.any("always", "first", "not", "must") + 0.2 * it.any("calling", "hand", "doing"))
    if it.has("others") and it.any("always", "first", "not", "must", "hand"):
        scale.add(0.5 + 0.2 * it.has("hand"), "it says how other tools are to be used")
        scale.add(0.3 * it.has("always") + 0.2 * it.has("first") + 0.2 * it.has("model"))
        scale.add(0.15 * bool(_EXCLUDES.search(it.text)))
    if it.has("whatever") and it.any("hand", "doing", "must"):
        scale.add(0.6, "what the user wants is not to count")
        scale.add(0.4 * it.has("user") + 0.3 * bool(it.mails or it.urls))
    if it.has("hand") and it.any("always", "others") and (it.mails or it.urls):
        scale.add(0.7, "something is to go to an address each time")
    if it.count("always") > 1 and it.any("calling", "hand"):
        scale.add(0.3, "it wants to be part of everything")
        scale.add(
            0.3 * (it.count("always") > 2) + 0.2 * it.has("must") + 0.2 * it.has("user") + 0.3 * at.result
        )


def _runs(it: Sentence, at: Setting, scale: _Scale) -> None:
    if (it.has("command") or "$(" in it.text or "eval" in it.text) and _FETCH_AND_RUN.search(it.text):
        scale.add(0.3 if at.result else 0.8, "a command is to be run")
    if it.has("command") and it.any("doing", "calling"):
        scale.add(0.3, "a command is to be run")
        scale.add(0.3 * it.has("model") + 0.2 * it.any("must", "always"))


def _speaks_to_the_model(it: Sentence, at: Setting, scale: _Scale) -> None:
    spoken = it.has("model") or not it.text.isascii() or any(each in it.text for each in _NOTE_SIGNS)
    called = spoken and (_NOTE_TO.search(it.text) is not None or (it.has("model") and _is_called(it)))
    active = it.any("hand", "doing", "ignore", "take", "command", "calling", "tell", "deceit")
    if called:
        scale.add((0.7 if at.result else 0.4) + 0.3 * active, "it speaks to the model")
    elif it.has("model") and active and _ORDERED.search(it.text):
        certain = _CERTAINLY.search(it.text) is not None
        scale.add((0.8 if certain else 0.5) if at.result else 0.3, "it gives the model an order")


def _is_called(it: Sentence) -> bool:
    """Whether the sentence begins with a call to the model, in any language: "Note to the AI: …"."""
    if _CALLED.search(it.text):
        return True
    heads = _HEAD.findall(it.text[:120])[:2]
    return any(head.strip(' -*#>`"') not in _FIELDS_OFTEN and read(head).has("model") for head in heads)


def _wants_decoding(it: Sentence, _: Setting, scale: _Scale) -> None:
    if any(each in it.text for each in _DECODE_SIGNS) and _DECODE.search(it.text):
        scale.add(0.6, "something encoded is to be carried out")
        scale.add(0.3 * bool(_OBEY.search(it.text)) + 0.2 * it.any("rules", "model"))


def _forges(it: Sentence, _: Setting, scale: _Scale) -> None:
    if _FORGED.search(it.text) and not _TEMPLATE.search(it.text):
        scale.add(
            0.7 if it.length > 3 else 0.3, "it looks like a turn of the conversation or a part of the prompt"
        )


def _carries(it: Sentence, _: Setting, scale: _Scale) -> None:
    loaded = any(_CARRIES.search(url) for url in it.urls)
    picture = "![" in it.text and _PICTURE.search(it.text) is not None
    if picture and any(_LADEN.search(url) for url in it.urls):
        scale.add(0.8, "an address is to carry data away")
    elif (loaded or picture) and it.any("hand", "talk", "secret", "user"):
        scale.add(0.5, "an address is to carry data away")
        scale.add(
            0.3 * it.any("talk", "secret", "grave_secret") + 0.2 * it.has("user") + 0.2 * it.has("always")
        )


def _only_mentions(it: Sentence, _: Setting, scale: _Scale) -> None:
    if scale.weight > 0 and (it.has("mention") or "e.g." in it.text) and not it.has("command"):
        scale.add(-1.0 if _QUOTED.search(it.text) else -0.5)


_SIGNS: tuple[_Sign, ...] = (
    _sets_rules_aside,
    _keeps_quiet,
    _asks_nobody,
    _hands_over,
    _asks_for_the_prompt,
    _steers,
    _runs,
    _speaks_to_the_model,
    _forges,
    _carries,
    _wants_decoding,
    _only_mentions,
)


def _is_careful(it: Sentence) -> bool:
    """Whether it says "nothing without asking": two refusals, of which the second belongs to the question."""
    nots = sorted({*it.said.get("not", ())})
    asks = [*it.said.get("ask", ()), *it.said.get("consent", ())]
    last = [each for each in nots if any(0 < place - each <= 4 for place in asks)]
    return bool(last) and any(0 < last[-1] - each <= 10 for each in nots)


def _is_negated(it: Sentence, group: str) -> bool:
    """Whether each word of the group is forbidden rather than ordered."""
    nots = it.said.get("not", ())
    places = it.said.get(group, ())
    return bool(nots and places) and all(any(0 < place - each <= 2 for each in nots) for place in places)


def _is_guarded(it: Sentence) -> bool:
    """Whether the user is to be asked or told: "tell the user", and not "never tell the user"."""
    return it.has("guarded") and not _is_negated(it, "guarded")


def _fills(it: Sentence, at: Setting) -> bool:
    return any(f"`{name}`" in it.text for name in at.fields)


def _is_private(at: Setting) -> bool:
    """Whether the tool's own name says that it deals with such things."""
    return any(word.startswith(private) for word in at.topic for private in _PRIVATE)


def _is_on_a_field(it: Sentence, at: Setting) -> bool:
    """Whether it is a line on one of the tool's own parameters, as tables and docstrings have them."""
    match = _FIELD.match(it.text)
    return bool(match and match[1] in at.fields)


def concealed(text: str) -> Iterator[str]:
    """What is written so that a page or a reader of its source does not show it."""
    for match in _CONCEALED.finditer(text):
        yield next(filter(None, (match[name] for name in "abcdef")), "")
