"""Names of variables, options, fields and headers that mark their value as secret."""

from __future__ import annotations

import re

from toolfold.safety.redaction.spans import split_words

_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR = re.compile(r"[^A-Za-z0-9]+")

_SECRET_WORDS = split_words(
    "password passwd passphrase passcode pwd pass secret token apikey authkey accesskey secretkey privatekey "
    "credential credentials psk jwt pat authtoken sharedkey signingkey bearer authinfo"
)
_SECRET_SUFFIXES = tuple(
    split_words("password passwd passphrase token secret apikey secretkey accesskey authkey accountkey")
)
_SECRET_KEY_QUALIFIERS = split_words(
    "api access auth private secret encryption signing master account shared storage session license deploy "
    "hmac webhook app service ssh admin root registration subscription functions host cookie jwt"
)
_HARMLESS_TOKENS = split_words("next page continuation sync starting pagination sep pad eos bos unk mask")
_PASSWORD_NAME = re.compile(r"(?i)pass|pwd|psk|masterauth")
_JOINED_SUFFIXES = ("secretkeybase", "requirepass", "masterauth", "sshpass", "rediscliauth", "pgpass")
_PATH_NAMES = frozenset(("pwd", "oldpwd"))

QUERY_NAMES = split_words(
    "key sig signature code auth token access_token id_token refresh_token session session_id sessionid sid "
    "jwt ticket pass pwd apikey api_key hash_key x-amz-signature x-amz-credential x-amz-security-token "
    "x-goog-signature x-goog-credential awsaccesskeyid hmac assertion client_assertion samlresponse"
)


def is_secret_name(name: str) -> bool:
    """Return True if a name marks its value as secret: `DB_PASSWORD`, `apiKey`, `X-Auth-Token`."""
    parts = [part for part in _SEPARATOR.split(_CAMEL_CASE.sub("_", name).lower()) if part]
    if not parts or len(parts) > 16:
        return False
    glued, last = "".join(parts), parts[-1]
    if glued in _PATH_NAMES:
        return False
    before = parts[-2] if len(parts) > 1 else ""
    if last == "token" and before in _HARMLESS_TOKENS:
        return False
    if last == "key":
        return before in _SECRET_KEY_QUALIFIERS
    return last in _SECRET_WORDS or last.endswith(_SECRET_SUFFIXES) or glued.endswith(_JOINED_SUFFIXES)


def is_password_name(name: str) -> bool:
    """Return True if a secret name is that of a password, which may be an ordinary word, unlike a token."""
    return _PASSWORD_NAME.search(name) is not None


def is_secret_parameter(name: str) -> bool:
    """Return True if the name of a URL parameter, such as `key` or `token`, marks its value as secret."""
    return name.lower() in QUERY_NAMES or is_secret_name(name)
