"""Find secrets in any text: tokens of well-known formats, and values after names like `password=`.

Every pattern is bounded and starts with characters that few texts match, so that the search is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolfold.safety.redaction.executed_values import find_executed_values, is_expression
from toolfold.safety.redaction.secret_words import is_password_name, is_secret_name, is_secret_parameter
from toolfold.safety.redaction.spans import Span, literal_parts, split_words

_TOKENS = re.compile(
    r"""
      \bsk-[A-Za-z0-9_-]{16,512}                                       # OpenAI, Anthropic and others
    | \b(?:ghp|gho|ghu|ghs|ghr|glpat|gldt|glrt|xox[abeprs]|xapp)[_-][A-Za-z0-9_-]{16,512}
    | \bgithub_pat_[A-Za-z0-9_]{22,512}
    | \b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,256} | \bwhsec_[A-Za-z0-9+/=]{16,256}       # Stripe
    | \bnpm_[A-Za-z0-9]{30,64} | \bpypi-[A-Za-z0-9_-]{32,512} | \bdckr_(?:pat|oat)_[A-Za-z0-9_-]{16,128}
    | \b(?:hf|gsk|r8|figd|glsa|sbp|lin_api|ntn|dop_v1|doo_v1|shpat|shpss|pscale_tkn|tfp|nvapi|xai|pplx)
      [_-][A-Za-z0-9_-]{24,256}
    | \btf_[A-Za-z0-9_-]{43,128}                                               # Toolfold's gateway and proxy
    | \bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,128} | \bhv[sbr]\.[A-Za-z0-9_-]{20,512}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b | \bAIza[A-Za-z0-9_-]{35} | \bya29\.[A-Za-z0-9_-]{20,1024}
    | \bGOCSPX-[A-Za-z0-9_-]{20,64} | \bAGE-SECRET-KEY-1[A-Z0-9]{40,80} | \bATATT3[A-Za-z0-9_=-]{40,512}
    | \bdapi[0-9a-f]{32}\b | \bdp\.(?:st|pt|sa)\.[A-Za-z0-9._-]{20,128} | \bNRAK-[A-Z0-9]{20,64}
    | (?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{30,40}                             # Telegram
    | \beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,8192}(?:\.[A-Za-z0-9_-]{8,4096})?   # signed web tokens
    | (?<=hooks\.slack\.com/services/)[A-Za-z0-9/_-]{16,128}
    | (?<=/api/webhooks/)[0-9]{10,24}/[A-Za-z0-9_-]{20,128}
    | -----BEGIN\ [A-Z ]{0,32}PRIVATE\ KEY(?:\ BLOCK)?-----
      (?:\s{0,4}(?:Proc-Type|DEK-Info|Version|Comment):[^\n]{0,200}){0,6}
      (?:[A-Za-z0-9+/=\s]|\\[nr]){0,16384}
    """,
    re.VERBOSE,
)
_NAME_AND_SIGN = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z_-][A-Za-z0-9_.-]{1,80})\\{0,3}["']?\]?"""
    r"""\s{0,4}(?P<sign>:=|=>|={2,3}|[:=])(?:(?<==)[ \t]{0,4}|(?<=[:>])\s{0,4})"""
)
_VALUE = re.compile(
    r"""(?x)
      \\{1,3}"(?P<escaped>[^"\\\n]{1,4096})
    | "(?P<double>(?:[^"\\\n]|\\.){1,4096})"
    | '(?P<single>[^'\n]{1,4096})'
    | \\{0,3}["']?(?P<bare>(?!\s)[^\s"'&,;<>]{1,4096})
    """
)
_AUTHORIZATION = re.compile(
    r"""(?ix)(?<![a-z0-9_-])(?:proxy-)?authorization\\{0,3}["']?\s{0,4}[:=]\s{0,4}\\{0,3}["']?
    (?P<scheme>[a-z][a-z0-9-]{1,24}[ \t]{1,4}(?=[^\s"'\\]))?
    (?!(?:bearer|basic|token|digest|negotiate)\b\s{0,4}(?:["'\\]|$))(?P<value>[^\s"'\\]{1,8192})"""
)
_COOKIE = re.compile(
    r"""(?ix)(?<![a-z0-9_-])(?:set-)?cookie\\{0,3}["']?:\s{0,4}\\{0,3}["']?
    (?P<value>[^\s;="'\\]{1,128}=[^\s;"'\\]{0,4096}
    (?:;[ \t]{0,2}[^\s;="'\\]{1,128}=[^\s;"'\\]{0,4096}){0,64})"""
)
_SCHEME = re.compile(
    r"(?i)\b(?:bearer\s{1,4}(?!(?:auth[a-z]*|tokens?|credentials?|access)\b)(?P<bearer>[A-Za-z0-9._~+/=-]{8,8192})"
    r"|basic\s{1,4}(?=[A-Za-z+/]{0,64}[0-9=])(?P<basic>[A-Za-z0-9+/=_-]{8,8192}))"
)
_USERINFO = re.compile(
    r"(?:\b|(?<=_))[a-zA-Z][a-zA-Z0-9+.-]{1,16}://[^\s/:@\"'<>]{0,128}:"
    r"(?P<value>[^\s/\"'<>]{1,512}(?=@)|(?!\d{1,5}[/?\#])[^\s@\"'<>]{1,512}(?=@))"
)
_TOKEN_AS_USER = re.compile(r"\bhttps?://(?P<value>(?=[^\s/:@]{0,200}\d)[A-Za-z0-9_.~%-]{16,512})(?=@)")
_HOST_LOGIN = re.compile(r"(?<![\w/.:@-])[\w.-]{1,64}:(?P<value>[^\s:@/\"']{1,256})@[\w.-]{1,200}:\d{2,5}\b")
_DSN = re.compile(r"(?<![\w.-])[\w.-]{1,64}:(?P<value>[^\s@\"']{1,256})@(?:tcp|unix)\(")
_QUERY = re.compile(
    r"[?&\#;](?:amp;)?(?P<name>[A-Za-z][A-Za-z0-9_.%-]{1,60})=(?P<value>[^\s&\#\"'<>;\\)]{1,4096})"
)
_SQL = re.compile(
    r"(?i)\b(?:identified\s{1,4}(?:with\s{1,4}\S{1,64}\s{1,4})?by|password(?:\s{0,4}\(|\s{1,4}|\s{0,4}=\s{0,4}(?:password\s{0,4}\()?))"
    r"\s{0,4}\\{0,3}(?:'(?P<single>[^'\n]{1,512})'|\"(?P<double>[^\"\n]{1,512})\")"
)
_LOGIN_PAIR = re.compile(
    r"\bauth\s{0,2}=?\s{0,2}\(\s{0,2}(?P<q>[\"'])[^\"'\n]{0,128}(?P=q)\s{0,2},\s{0,2}[\"'](?P<value>[^\"'\n]{1,512})"
)
_ELEMENT = re.compile(r"<(?P<name>[A-Za-z][A-Za-z0-9_.:-]{1,60})>(?P<value>[^<>\n]{1,2048})</")
_ATTRIBUTE = re.compile(
    r"\b(?:key|name)=\"(?P<name>[^\"\n]{1,80})\"\s{1,4}value=\"(?P<value>[^\"\n]{1,2048})\""
)
_LIST_ITEM = re.compile(
    r"""(?x)["']--?(?P<name>[A-Za-z][A-Za-z0-9_-]{1,60})["']\s{0,4},
    \s{0,4}(?P<q>["'])(?P<value>[^"'\n]{1,2048})(?P=q)"""
)
_EXPECT_SEND = re.compile(
    r"\bsend(?:\s{1,4}--)?\s{1,4}\\{0,3}[\"'](?P<value>[^\"'\n\\]{1,256})\\{1,3}[rn]\\{0,3}[\"']"
)
_PASSWORD_PROMPT = re.compile(r"(?i)assword|assphrase|assw\?")
_NETRC = re.compile(r"\blogin\s{1,4}\S{1,128}\s{1,4}password\s{1,4}(?P<value>\S{1,512})")

_VALUES = (_AUTHORIZATION, _COOKIE, _USERINFO, _TOKEN_AS_USER, _HOST_LOGIN, _DSN, _LOGIN_PAIR, _NETRC)
_RELATIVE_DIRECTORY = re.compile(r"[a-z_.]{1,20}/")
_PLAIN_WORDS = split_words(
    "true false null none undefined required missing empty unset invalid expired yes no not "
    "set bad was has the prompt prompts handling validation reset rotation support str string bytes"
)
_PROSE_WORD = re.compile(r"[a-z]{1,12} (?:`|[a-z]{1,20}(?![\w:=]))")
_SETTING_WORD = re.compile(r"[a-z]{1,12}(?:-[a-z]{1,12}){0,3}")


def find_pattern_secrets(text: str) -> Iterator[Span]:
    """Yield the secrets in a text that have a well-known format or follow a name like `password=`."""
    yield from (match.span() for match in _TOKENS.finditer(text))
    yield from _find_assigned(text)
    for pattern in _VALUES:
        for match in pattern.finditer(text):
            yield from literal_parts(text, *match.span("value"))
    if _PASSWORD_PROMPT.search(text):  # an expect script sends it to a prompt
        yield from (match.span("value") for match in _EXPECT_SEND.finditer(text))
    executed = find_executed_values(text)
    for pattern in (_SCHEME, _SQL):
        for match in pattern.finditer(text):
            if match.start(match.lastgroup or 0) not in executed:
                yield from literal_parts(text, *match.span(match.lastgroup or 0))
    for pattern in (_QUERY, _ELEMENT, _ATTRIBUTE, _LIST_ITEM):
        is_secret = is_secret_parameter if pattern is _QUERY else is_secret_name
        for match in pattern.finditer(text):
            if is_secret(match["name"]):
                yield from literal_parts(text, *match.span("value"))


def _find_assigned(text: str) -> Iterator[Span]:
    covered, executed = 0, find_executed_values(text)
    for match in _NAME_AND_SIGN.finditer(text):
        if match.end() < covered or match.end() in executed or not is_secret_name(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value is not None and not _is_harmless(match, value):
            covered = value.end()
            yield from literal_parts(text, *value.span(value.lastgroup or 0))


def _is_harmless(named: re.Match[str], found: re.Match[str]) -> bool:
    """Return True if an unquoted value after a name like `password=` is code or an ordinary word."""
    if found["bare"] is None:
        return False
    value, is_spaced = found["bare"].rstrip("`."), named[0][-1].isspace()
    if len(named["sign"]) > 1 and named["sign"].startswith("=="):  # a comparison with a variable
        return is_spaced
    if named[0].endswith("= ") and not named[0].endswith(" = ") and _RELATIVE_DIRECTORY.fullmatch(value):
        return True
    if is_spaced and value.startswith("--"):  # the next option in a list of options
        return True
    return is_expression(named["name"], value) or (
        named["sign"] == ":" and _is_plain_word(named["name"], value, is_spaced, found)
    )


def _is_plain_word(name: str, value: str, is_spaced: bool, found: re.Match[str]) -> bool:
    """Return True if the text after a colon is an ordinary word: `token: none`, `a token: create one`."""
    word = value.lower().strip("-.!)}`")
    if len(word) < 3 or word in _PLAIN_WORDS:
        return True
    if name.lower() == "credentials" and _SETTING_WORD.fullmatch(word):
        return True
    return is_spaced and not is_password_name(name) and bool(_PROSE_WORD.match(found.string, found.start()))
