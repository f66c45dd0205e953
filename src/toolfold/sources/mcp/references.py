"""What stands behind `${…}` in a server's settings, and the environment a server is started with.

    ${NAME}                    a variable; one that is not set is an error
    ${NAME:-words}             the same, or these words where it is not set or empty
    ${keyring:service/name}    a password of the system's keyring, where the `keyring` package is installed
    $${NAME}                   the characters ${NAME} themselves

What was looked up is never read a second time, so a value cannot refer to another. Nothing is kept. The
keyring may wait for a person: look up away from the event loop. Knows no connection and no process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from urllib.parse import urlsplit

from toolfold.config.servers import McpServer
from toolfold.errors import ConfigError, shorten
from toolfold.model import FrozenDict
from toolfold.redaction import Redaction

Keyring = Callable[[str, str], str | None]
"""Gives the password of a service and a name, or None."""

_REFERENCE = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<inside>[^{}]*)\}|(?P<broken>\$\{)")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_IN_KEYRING = re.compile(r"keyring:(.+)/([^/]+)", re.DOTALL)
_WAYS = "References are ${NAME}, ${NAME:-default} and ${keyring:service/name}; write $${ for the characters."

# Where programs, files and certificates lie, how people read, and what Windows cannot start a program
# without. None of it opens a door.
_HARMLESS = re.compile(
    """(?x)
      PATH | HOME | LANG | LANGUAGE | LC_[A-Z]+ | TERM | TMPDIR | USER | LOGNAME | SHELL | TZ
    | SSL_CERT_FILE | SSL_CERT_DIR | NODE_EXTRA_CA_CERTS | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | XDG_(?:CACHE|CONFIG|DATA|STATE)_HOME
    | SYSTEMROOT | SYSTEMDRIVE | WINDIR | COMSPEC | PATHEXT | TEMP | TMP | USERNAME | USERPROFILE | HOMEDRIVE
    | HOMEPATH | APPDATA | LOCALAPPDATA | PROGRAMDATA | PROGRAMFILES | PROCESSOR_ARCHITECTURE
    """
)
_PROXIES = re.compile("(?:HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
_SHELL_FUNCTION = "()"
_ALWAYS_SECRET = frozenset({"authorization", "proxy-authorization", "cookie"})
_SHORTEST_SECRET = 8  # shorter ones would tear ordinary words out of every message


def resolve(text: str, environment: Mapping[str, str], *, keyring: Keyring | None = None) -> str:
    """The text with every reference replaced. Raises ConfigError, which names the reference and no value."""
    return _REFERENCE.sub(lambda found: _replacement(found, environment, keyring or _system_keyring), text)


def child_environment(
    server: McpServer, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> dict[str, str]:
    """All a server's process knows of ours: harmless variables, those that are passed, those that are set.

    Proxies are harmless unless a password stands in their address. Raises ConfigError.
    """
    known = {name: value for name, value in environment.items() if _is_harmless(name, value)}
    known |= {name: environment[name] for name in server.pass_env if name in environment}
    known |= {name: resolve(value, environment, keyring=keyring) for name, value in server.env.items()}
    for name, value in known.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"no process can be given the variable {shorten(name, 80)!r}")
    return known


def resolved(
    server: McpServer, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> McpServer:
    """The server's settings with what starts or reaches it looked up. Raises ConfigError."""

    def look_up(text: str) -> str:
        return resolve(text, environment, keyring=keyring)

    return server.model_copy(
        update={
            "command": look_up(server.command),
            "args": tuple(map(look_up, server.args)),
            "url": look_up(server.url),
            "headers": FrozenDict({name: look_up(value) for name, value in server.headers.items()}),
        }
    )


def secret_values(
    server: McpServer, environment: Mapping[str, str], *, keyring: Keyring | None = None
) -> tuple[str, ...]:
    """What a server was given and nobody should read, longest first.

    Everything that was looked up counts, unless every program may know it; so does what is written out
    under a name that speaks of secrets. What cannot be looked up is left out.
    """
    look_up = keyring or _system_keyring
    found = {
        environment[name] for name in server.pass_env if name in environment and _speaks(name, environment)
    }
    for text in (server.command, *server.args, server.url, server.oauth.client_secret):
        found |= set(_looked_up(text, environment, look_up))
    for name, text in (*server.env.items(), *server.headers.items()):
        found |= set(_looked_up(text, environment, look_up))
        if _speaks(name, {name: text}) and not _REFERENCE.search(text):
            found |= {text, text.rpartition(" ")[2]}  # a scheme such as Bearer stands before the secret
    if server.oauth.client_secret and not _REFERENCE.search(server.oauth.client_secret):
        found.add(server.oauth.client_secret)
    return tuple(sorted((s for s in found if len(s) >= _SHORTEST_SECRET), key=lambda s: (-len(s), s)))


def _replacement(found: re.Match[str], environment: Mapping[str, str], keyring: Keyring) -> str:
    if found["escaped"]:
        return "${"
    if found["broken"]:
        raise ConfigError("a reference that begins with ${ is not closed, or has another inside", hint=_WAYS)
    inside = found["inside"]
    if place := _IN_KEYRING.fullmatch(inside):
        return _password(place[1], place[2], keyring)
    if variable := _VARIABLE.fullmatch(inside):
        return _value(variable[1], variable[2], environment)
    raise ConfigError(f"${{{shorten(inside, 80)}}} is not a reference", hint=_WAYS)


def _value(name: str, default: str | None, environment: Mapping[str, str]) -> str:
    value = environment.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise ConfigError(
            f"the variable {name} is not set",
            hint=f"Set it where Toolfold is started, or write ${{{name}:-default}}.",
        )
    return value


def _password(service: str, name: str, keyring: Keyring) -> str:
    password = keyring(service, name)
    if password is None:
        raise ConfigError(
            f"the keyring has nothing for {shorten(service, 80)}/{shorten(name, 80)}",
            hint=f"Put it there: keyring set {shorten(service, 80)} {shorten(name, 80)}",
        )
    return password


def _system_keyring(service: str, name: str) -> str | None:
    try:
        package = import_module("keyring")
    except ImportError:
        raise ConfigError(
            "a setting refers to the keyring, and the keyring package is not installed",
            hint="Install it (pip install keyring), or refer to a variable: ${NAME}",
        ) from None
    try:
        password: str | None = package.get_password(service, name)
    except Exception as error:  # each backend raises errors of its own
        raise ConfigError(
            f"the keyring cannot be read: {type(error).__name__}",
            hint="Unlock it, or refer to a variable: ${NAME}",
        ) from None
    return password


def _is_harmless(name: str, value: str) -> bool:
    if value.startswith(_SHELL_FUNCTION):  # old shells hand functions on as variables, and run what they say
        return False
    return bool(_HARMLESS.fullmatch(name)) or bool(_PROXIES.fullmatch(name) and not _has_password(value))


def _has_password(address: str) -> bool:
    try:
        return "@" in urlsplit(address if "://" in address else f"//{address}").netloc
    except ValueError:
        return True


def _looked_up(text: str, environment: Mapping[str, str], keyring: Keyring) -> Iterator[str]:
    for found in _REFERENCE.finditer(text):
        inside = found["inside"] or ""
        variable = _VARIABLE.fullmatch(inside)
        if variable and _is_harmless(variable[1], environment.get(variable[1], "")):
            continue
        try:
            yield _replacement(found, environment, keyring)
        except ConfigError:
            continue


def _speaks(name: str, values: Mapping[str, str]) -> bool:
    """Whether the name or the value says that it is a secret."""
    return name.lower() in _ALWAYS_SECRET or Redaction().finds_any(f"{name}={values[name][:500]}")
