"""Keys that encrypt credentials with AES-256-GCM and the credential's owner as associated data.

The first key encrypts; all of them decrypt, so that a key can be replaced while others still use the old one.
A credential that was copied to another user, server or name cannot be decrypted there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

from toolfold.config.atomic import lock_directory, replace_file
from toolfold.core.errors import ConfigError

KEY_BYTES = 32
MAX_KEYS = 20
MAX_KEY_FILE_BYTES = 10_000
_NONCE_BYTES = 12
_FORMAT = "v1"


class UnreadableCredential(ConfigError):
    """A stored credential cannot be decrypted with the configured keys."""


class CredentialKeys:
    """Encryption keys of one installation; the first key encrypts, all keys decrypt."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Create a set of 32-byte encryption keys. Raises ConfigError for no keys or a wrong length."""
        if not 0 < len(keys) <= MAX_KEYS or any(len(key) != KEY_BYTES for key in keys):
            raise ConfigError(
                f"credentials need between 1 and {MAX_KEYS} keys of {KEY_BYTES} bytes each",
                key="credentials.keys",
                hint="create a key with `toolfold credentials generate-key`",
            )
        self._keys = {_identify_key(key): key for key in keys}
        self.primary = _identify_key(keys[0])
        """Id of the key that encrypts."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all encryption keys, starting with the key used for encryption."""
        return tuple(self._keys)

    def encrypt(self, text: str, owner: Sequence[str]) -> str:
        """Encrypt a text so that it can be decrypted only for the same owner."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(self._keys[self.primary]).encrypt(nonce, text.encode(), _bind(owner))
        return f"{_FORMAT}.{self.primary}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def decrypt(self, stored: str, owner: Sequence[str]) -> str:
        """Decrypt a credential. Raises UnreadableCredential."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(read_key_id(stored))
        if key is None:
            raise UnreadableCredential(
                f"a credential was encrypted with the key {read_key_id(stored)}, which is not configured here"
                f" (known keys: {', '.join(self.ids)})",
                key="credentials.keys",
                hint="add the missing key to the configured keys; the stored credential was not changed",
            )
        try:
            content = base64.urlsafe_b64decode(stored.split(".", 2)[2])
            return AESGCM(key).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bind(owner)).decode()
        except (InvalidTag, ValueError, IndexError, binascii.Error):
            raise UnreadableCredential(
                "a stored credential was damaged, or it was copied from another user or server",
                hint="store the credential again with `toolfold credentials set`",
            ) from None


def read_key_id(stored: str) -> str:
    """Return the id of the key that encrypted a credential; empty if the credential is invalid."""
    parts = stored.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == _FORMAT else ""


def make_key() -> str:
    """Return a new random key in the format of the setting `credentials.keys`."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def load_keys(text: str, file: Path, *, may_create: bool) -> CredentialKeys:
    """Return the encryption keys from `text`, or from the key file if `text` is empty. Raises ConfigError.

    With `may_create`, a file that does not exist is created with a new key.
    """
    if text:
        return CredentialKeys(_parse_keys(text))
    if may_create:
        _create_file(file)
    return CredentialKeys(_parse_keys(_read_file(file)))


def write_keys(file: Path, keys: Sequence[str]) -> None:
    """Replace the encryption keys in a file that only its owner can read."""
    replace_file(file, ("\n".join(keys) + "\n").encode(), mode=0o600)


def read_key_texts(file: Path) -> list[str]:
    """Return the keys in a key file as text, without checking them. Raises ConfigError."""
    return _read_file(file).replace(",", " ").split()


def add_key(file: Path) -> str:
    """Insert a new key at the beginning of a key file and return the key's id. Raises ConfigError.

    The caller holds the lock of the file's directory.
    """
    texts = read_key_texts(file)
    if len(texts) >= MAX_KEYS:
        raise ConfigError(
            f"the key file already has {len(texts)} keys; the limit is {MAX_KEYS}",
            key="credentials.key_file",
            file=str(file),
            hint="remove keys that are no longer used: toolfold credentials rotate-key --retire",
        )
    key = make_key()
    write_keys(file, [key, *texts])
    return key_id_of(key)


def remove_keys(file: Path, used: Collection[str]) -> tuple[int, int]:
    """Remove keys from a file, except the first key and those in `used`; return the counts (removed, left).

    The caller holds the lock of the file's directory. Raises ConfigError.
    """
    texts = read_key_texts(file)
    left = [*texts[:1], *(each for each in texts[1:] if key_id_of(each) in used)]
    if len(left) < len(texts):
        write_keys(file, left)
    return len(texts) - len(left), len(left)


def key_id_of(text: str) -> str:
    """Return the id of an encryption key given as text."""
    return _identify_key(_parse_keys(text)[0])


def _create_file(file: Path) -> None:
    if file.exists():
        return  # without a lock: the caller may hold it
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock_directory(file.parent):  # two processes must not create two keys
        if not file.exists():
            write_keys(file, [make_key()])


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"the keys that encrypt stored credentials cannot be read: {error.strerror}",
            key="credentials.key_file",
            file=str(file),
            hint="restore the key file, or set credentials.keys; until then, stored "
            "credentials cannot be decrypted",
        ) from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            "other users of this machine can read the keys that encrypt stored credentials",
            file=str(file),
            hint=f"run: chmod 600 {file}",
        )
    return content.decode("ascii", "replace")


def _parse_keys(text: str) -> list[bytes]:
    try:
        return [base64.urlsafe_b64decode(each) for each in text.replace(",", " ").split()]
    except (ValueError, binascii.Error):
        raise ConfigError(
            "a key that encrypts stored credentials is not valid: it must be 32 bytes in base64",
            key="credentials.keys",
            hint="create a key with `toolfold credentials generate-key`",
        ) from None


def _identify_key(key: bytes) -> str:
    """Return a short id of a key that does not reveal the key."""
    return hashlib.sha256(b"toolfold credentials" + key).hexdigest()[:12]


def _bind(owner: Sequence[str]) -> bytes:
    return json.dumps(list(owner)).encode()
