"""Which names of variables, options, fields and headers announce a secret."""

from __future__ import annotations

import re

from toolfold.redaction.spans import words

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BREAK = re.compile(r"[^A-Za-z0-9]+")

_WORDS = words(
    "password passwd passphrase passcode pwd pass secret token apikey authkey accesskey secretkey privatekey "
    "credential credentials psk jwt pat authtoken sharedkey signingkey bearer authinfo"
)
_ENDINGS = tuple(
    words("password passwd passphrase token secret apikey secretkey accesskey authkey accountkey")
)
_KEYS = words(
    "api access auth private secret encryption signing master account shared storage session license deploy "
    "hmac webhook app service ssh admin root registration subscription functions host cookie jwt"
)
_HARMLESS_TOKENS = words("next page continuation sync starting pagination sep pad eos bos unk mask")
_GLUED_ENDINGS = ("secretkeybase", "requirepass", "masterauth", "sshpass", "rediscliauth", "pgpass")
_PATHS = frozenset(("pwd", "oldpwd"))

QUERY_NAMES = words(
    "key sig signature code auth token access_token id_token refresh_token session session_id sessionid sid "
    "jwt ticket pass pwd apikey api_key hash_key x-amz-signature x-amz-credential x-amz-security-token "
    "x-goog-signature x-goog-credential awsaccesskeyid hmac assertion client_assertion samlresponse"
)


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret: `DB_PASSWORD`, `apiKey`, `X-Auth-Token`."""
    parts = [part for part in _BREAK.split(_HUMP.sub("_", name).lower()) if part]
    if not parts or len(parts) > 16:
        return False
    glued, last = "".join(parts), parts[-1]
    if glued in _PATHS:
        return False
    before = parts[-2] if len(parts) > 1 else ""
    if last == "token" and before in _HARMLESS_TOKENS:
        return False
    if last == "key":
        return before in _KEYS
    return last in _WORDS or last.endswith(_ENDINGS) or glued.endswith(_GLUED_ENDINGS)


def is_secret_parameter(name: str) -> bool:
    """Whether a parameter of an address holds a secret; there even `key` does."""
    return name.lower() in QUERY_NAMES or is_secret_name(name)
