"""Another program's file as it is, and as it would be with the gateway in it.

What would be written is read back, and must hold the wanted change and nothing else; where it does not, the
file is left to the person whose it is. Writes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.config.document import MAX_CONFIG_BYTES, read_text
from toolfold.connecting import json_text, toml_text, yaml_text
from toolfold.connecting.entries import section_of
from toolfold.errors import ConfigError
from toolfold.model import Json
from toolfold.sources.mcp.importing import CLIENTS, ClientConfigFile, read_client_file
from toolfold.sources.mcp.importing.documents import MAX_BYTES_WITH_HISTORY, parse_document
from toolfold.sources.mcp.importing.types import ClientName, ImportResult

_MARK = b"\xef\xbb\xbf"
_ENDINGS: Mapping[ClientName, tuple[str, ...]] = {"codex": (".toml",), "goose": (".yaml", ".yml")}
_WRITABLE = 0o222


@dataclass(frozen=True, slots=True)
class Original:
    """A program's file."""

    client: ClientName
    file: Path
    """As the program knows it."""
    target: Path
    """Where its content lies: elsewhere, if the file is a link."""
    data: bytes | None
    """None where there is no such file."""

    @property
    def text(self) -> str:
        return (self.data or b"").decode("utf-8-sig")

    @property
    def servers(self) -> Json:
        """The program's servers by name, each as the file has it. Raises ConfigError."""
        return _servers(self.client, parse_document(self.text, self.file), self.file)

    def answer(self, home: Path) -> ImportResult:
        """The same servers in our words: those of everywhere, none of a project's."""
        place = ClientConfigFile(self.client, "user", self.file)
        return read_client_file(place, home=home, project=self.file)  # no project is a file


def opened(client: ClientName, file: Path) -> Original:
    """The file, if it could be changed. Raises ConfigError for one that cannot be understood or replaced."""
    original = looked_at(client, file)
    _ = original.servers
    return original


def opened_again(before: Original) -> Original:
    """The file once more, after a question: what else was changed meanwhile stays, unless it is a server."""
    now = opened(before.client, before.file)
    if now.servers != before.servers:
        raise ConfigError(
            "its servers were changed a moment ago; it was not touched", file=str(now.file), hint="try again"
        )
    return now


def looked_at(client: ClientName, file: Path) -> Original:
    """The file, whatever it holds. Raises ConfigError for one that cannot be read or replaced."""
    endings = _ENDINGS.get(client, (".json", ".jsonc"))
    if file.suffix not in endings:
        title = CLIENTS[client].title
        raise ConfigError(f"{title} keeps its servers in {endings[0]} files, not in this", file=str(file))
    target = _target(file)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return Original(client, file, target, None)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(file)) from None
    limit = MAX_BYTES_WITH_HISTORY if CLIENTS[client].has_history else MAX_CONFIG_BYTES
    text = read_text(target, limit=limit)
    data = target.read_bytes()
    if data.removeprefix(_MARK) != text.encode():
        raise ConfigError("the file is being written by somebody else", file=str(file), hint="try again")
    if not mode & _WRITABLE:
        raise ConfigError(
            "the file is read-only",
            file=str(target),
            hint="Something else may look after it. Change that, or make the file writable.",
        )
    return Original(client, file, target, data)


def changed(original: Original, name: str, entry: Json | None, others: Mapping[str, Json | None]) -> bytes:
    """The file's content with the entry of this name, or without one; `others` likewise.

    Raises ConfigError where that cannot be done without changing something else.
    """
    document = parse_document(original.text, original.file)
    wanted = {name: entry, **others}
    text = original.text
    for each, said in wanted.items():
        if said is not None and _servers(original.client, document, original.file).get(each) != said:
            document = _with(document, section_of(original.client), each, said)
            text = _put(original.client, text, each, document)
    gone = {each for each, said in wanted.items() if said is None}
    gone &= set(_servers(original.client, document, original.file))
    if gone:
        document = _without(document, section_of(original.client), gone)
        text = _cut(original.client, text, gone, document)
    _require_nothing_else(original, text, document)
    mark = _MARK if (original.data or b"").startswith(_MARK) else b""
    try:
        return mark + text.encode()
    except UnicodeEncodeError:
        raise ConfigError("a name or a path holds what is no text", file=str(original.file)) from None


def _target(file: Path) -> Path:
    try:
        if not file.is_symlink():
            return file
        return file.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ConfigError(
            "the link leads nowhere", file=str(file), hint="mend or delete it, then connect again"
        ) from None


def _servers(client: ClientName, document: Json, file: Path) -> Json:
    section = section_of(client)
    held = document.get(section)
    if held is not None and not isinstance(held, dict):
        raise ConfigError(f"{section} is not a map of servers", file=str(file), hint="mend it by hand")
    return held or {}


def _with(document: Json, section: str, name: str, entry: Json) -> Json:
    return {**document, section: {**(document.get(section) or {}), name: copy.deepcopy(entry)}}


def _without(document: Json, section: str, names: Collection[str]) -> Json:
    kept = {name: each for name, each in document[section].items() if name not in names}
    return {**document, section: kept}


def _put(client: ClientName, text: str, name: str, document: Json) -> str:
    section = section_of(client)
    entry = document[section][name]
    if client == "codex":
        return toml_text.assigned(text, section, name, entry)
    if client == "goose":
        return yaml_text.assigned(text, section, name, document)
    return json_text.assigned(text, (section, name), entry)


def _cut(client: ClientName, text: str, names: Collection[str], document: Json) -> str:
    section = section_of(client)
    if client == "codex":
        return toml_text.removed(text, section, names)
    if client == "goose":
        return yaml_text.removed(text, section, names, document)
    return json_text.removed(text, (section,), names)


def _require_nothing_else(original: Original, text: str, wanted: Json) -> None:
    section = section_of(original.client)
    try:
        is_it = _same(_normal(parse_document(text, original.file), section), _normal(wanted, section))
    except ConfigError:
        is_it = False
    if not is_it:
        raise ConfigError(
            f"{section} is written in a way that cannot be changed without changing something else",
            file=str(original.file),
            hint="change it by hand: docs/connect.md says what to write",
        )


def _normal(document: Json, section: str) -> Json:
    """A section that is empty is one that is not there."""
    if document.get(section):
        return document
    return {name: each for name, each in document.items() if name != section}


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or repr(one) == repr(other)  # a number that is none equals nothing
