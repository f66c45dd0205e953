"""Resolve `${…}` references in a server's settings, and build the environment of its process.

    ${NAME}                    an environment variable; an error if it is not set
    ${NAME:-default}           the same, with a default if it is not set or empty
    ${keyring:service/name}    a password of the system's keyring, if the `keyring` package is installed
    ${user:NAME}               a stored credential of the calling user, with `credentials: per-user`
    $${NAME}                   the literal text ${NAME}

A resolved value is not searched for references again. Nothing is cached. A keyring may wait for a person:
resolve outside of the event loop. Knows no connection and no process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from urllib.parse import urlsplit

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import ConfigError, shorten
from toolfold.core.types import FrozenDict
from toolfold.safety.redaction import Redaction

Keyring = Callable[[str, str], str | None]
"""Returns the password for a service and a name, or None."""

_REFERENCE = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<inside>[^{}]*)\}|(?P<broken>\$\{)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_OF_USER = re.compile(r"user:([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_IN_KEYRING = re.compile(r"keyring:(.+)/([^/]+)", re.DOTALL)
_REFERENCE_HINT = (
    "References are ${NAME}, ${NAME:-default}, ${keyring:service/name} and ${user:NAME}; write $${ for a"
    " literal ${."
)

# Locations of programs, files and certificates, locale, and what Windows needs to start a program. None
# of these contain credentials.
_HARMLESS_NAMES = re.compile(
    """(?x)
      PATH | HOME | LANG | LANGUAGE | LC_[A-Z]+ | TERM | TMPDIR | USER | LOGNAME | SHELL | TZ
    | SSL_CERT_FILE | SSL_CERT_DIR | NODE_EXTRA_CA_CERTS | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | XDG_(?:CACHE|CONFIG|DATA|STATE)_HOME
    | SYSTEMROOT | SYSTEMDRIVE | WINDIR | COMSPEC | PATHEXT | TEMP | TMP | USERNAME | USERPROFILE | HOMEDRIVE
    | HOMEPATH | APPDATA | LOCALAPPDATA | PROGRAMDATA | PROGRAMFILES | PROCESSOR_ARCHITECTURE
    """
)
_PROXY_NAMES = re.compile("(?:HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
CREDENTIAL_PREFIX = "user:"
"""Start of the keys of credentials among the variables that references are resolved with."""
_SHELL_FUNCTION_PREFIX = "()"
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_MIN_SECRET_CHARS = 8  # redacting shorter ones would remove ordinary words from messages


def resolve_references(text: str, environment: Mapping[str, str], *, keyring: Keyring | None = None) -> str:
    """Replace every `${…}` reference in a text. Raises ConfigError without secrets in the message."""
    return _REFERENCE.sub(
        lambda match: _replace_reference(match, environment, keyring or _system_keyring), text
    )


def build_environment(
    server: McpServerSettings, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> dict[str, str]:
    """Return the environment of a server's process: standard variables, and those in `pass_env` and `env`.

    Proxy variables are harmless unless their URL contains a password. Raises ConfigError.
    """
    variables = {name: value for name, value in environment.items() if _is_harmless(name, value)}
    variables |= {name: environment[name] for name in server.pass_env if name in environment}
    variables |= {
        name: resolve_references(value, environment, keyring=keyring) for name, value in server.env.items()
    }
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"the environment variable {shorten(name, 80)!r} has an invalid name or value")
    return variables


def resolve_settings(
    server: McpServerSettings, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> McpServerSettings:
    """Return settings with resolved references in command, URL and headers. Raises ConfigError."""

    def look_up(text: str) -> str:
        return resolve_references(text, environment, keyring=keyring)

    return server.model_copy(
        update={
            "command": look_up(server.command),
            "args": tuple(map(look_up, server.args)),
            "url": look_up(server.url),
            "headers": FrozenDict({name: look_up(value) for name, value in server.headers.items()}),
        }
    )


def collect_secrets(
    server: McpServerSettings, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> tuple[str, ...]:
    """Return the secrets passed to the server, longest first, for redaction.

    All resolved values count, except harmless variables; so do literal values whose name suggests a secret.
    References that cannot be resolved are left out.
    """
    look_up = keyring or _system_keyring
    secrets = {
        environment[name] for name in server.pass_env if name in environment and _is_secret(name, environment)
    }
    for text in (server.command, *server.args, server.url, server.oauth.client_secret):
        secrets |= set(_iter_resolved(text, environment, look_up))
    for name, text in (*server.env.items(), *server.headers.items()):
        secrets |= set(_iter_resolved(text, environment, look_up))
        if _is_secret(name, {name: text}) and not _REFERENCE.search(text):
            secrets |= {text, text.rpartition(" ")[2]}  # without a scheme such as Bearer
    if server.oauth.client_secret and not _REFERENCE.search(server.oauth.client_secret):
        secrets.add(server.oauth.client_secret)
    return tuple(sorted((s for s in secrets if len(s) >= _MIN_SECRET_CHARS), key=lambda s: (-len(s), s)))


def _replace_reference(match: re.Match[str], environment: Mapping[str, str], keyring: Keyring) -> str:
    if match["escaped"]:
        return "${"
    if match["broken"]:
        raise ConfigError(
            "a reference that starts with ${ is not closed or contains another reference",
            hint=_REFERENCE_HINT,
        )
    inside = match["inside"]
    if reference := _IN_KEYRING.fullmatch(inside):
        return _keyring_password(reference[1], reference[2], keyring)
    if of_user := _OF_USER.fullmatch(inside):
        return _credential_value(of_user[1], of_user[2], environment)
    if variable := _VARIABLE.fullmatch(inside):
        return _variable_value(variable[1], variable[2], environment)
    raise ConfigError(f"${{{shorten(inside, 80)}}} is not a valid reference", hint=_REFERENCE_HINT)


def _credential_value(name: str, default: str | None, environment: Mapping[str, str]) -> str:
    value = environment.get(CREDENTIAL_PREFIX + name)
    if value is None and default is None:
        raise ConfigError(
            f"there is no credential {name} for this server",
            hint="Store the credential with `toolfold credentials set`: for all users, or "
            "with --user for one user.",
        )
    return value or default or ""


def add_credentials(environment: Mapping[str, str], credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a user's credentials added, so that `${…}` references can name them."""
    own = {name: value for name, value in environment.items() if not name.startswith(CREDENTIAL_PREFIX)}
    return own | {CREDENTIAL_PREFIX + name: value for name, value in credentials.items()}


def _variable_value(name: str, default: str | None, environment: Mapping[str, str]) -> str:
    value = environment.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise ConfigError(
            f"the environment variable {name} is not set",
            hint=f"Set the variable where Toolfold is started, or write ${{{name}:-default}}.",
        )
    return value


def _keyring_password(service: str, name: str, keyring: Keyring) -> str:
    password = keyring(service, name)
    if password is None:
        raise ConfigError(
            f"the keyring has no password for {shorten(service, 80)}/{shorten(name, 80)}",
            hint=f"Add the password with `keyring set {shorten(service, 80)} {shorten(name, 80)}`.",
        )
    return password


def _system_keyring(service: str, name: str) -> str | None:
    try:
        package = import_module("keyring")
    except ImportError:
        raise ConfigError(
            "a setting refers to the keyring, but the keyring package is not installed",
            hint="Install the keyring package (pip install keyring), or use an environment variable: ${NAME}",
        ) from None
    try:
        password: str | None = package.get_password(service, name)
    except Exception as error:  # each backend has its own exceptions
        raise ConfigError(
            f"the keyring cannot be read: {type(error).__name__}",
            hint="Unlock the keyring, or use an environment variable: ${NAME}",
        ) from None
    return password


def _is_harmless(name: str, value: str) -> bool:
    if value.startswith(_SHELL_FUNCTION_PREFIX):  # old shells run functions exported as variables
        return False
    return bool(_HARMLESS_NAMES.fullmatch(name)) or bool(
        _PROXY_NAMES.fullmatch(name) and not _has_password(value)
    )


def _has_password(address: str) -> bool:
    try:
        return "@" in urlsplit(address if "://" in address else f"//{address}").netloc
    except ValueError:
        return True


def _iter_resolved(text: str, environment: Mapping[str, str], keyring: Keyring) -> Iterator[str]:
    for match in _REFERENCE.finditer(text):
        inside = match["inside"] or ""
        variable = _VARIABLE.fullmatch(inside)
        if variable and _is_harmless(variable[1], environment.get(variable[1], "")):
            continue
        try:
            yield _replace_reference(match, environment, keyring)
        except ConfigError:
            continue


def _is_secret(name: str, values: Mapping[str, str]) -> bool:
    """Return True if a setting's name or value suggests that it is a secret."""
    return name.lower() in _SECRET_HEADERS or Redaction().contains_secret(f"{name}={values[name][:500]}")
