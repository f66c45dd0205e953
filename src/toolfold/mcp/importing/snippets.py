"""Read servers from JSON copied from a README, with or without enclosing keys such as `mcpServers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.mcp.importing.documents import parse_document

SECTIONS = ("mcpServers", "servers", "mcp_servers", "context_servers", "mcp")
"""Keys under which clients store their servers."""
_FENCE = re.compile(r"\A\s*```\w*[ \t]*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
_ENTRY_KEYS = ("command", "url", "serverUrl", "httpUrl", "endpoint")


def parse_snippet(text: str, file: Path, name_entry: Callable[[Sequence[str]], str]) -> Json:
    """Return a document whose `mcpServers` contains the servers in a copied text. Raises ConfigError.

    `name_entry` names an entry without a name, from the words of its command or from its URL.
    """
    document = _parse_text(text, file)
    rest = {key: value for key, value in document.items() if key == "inputs"}
    return {**rest, "mcpServers": _extract_servers(document, file, name_entry)}


def _parse_text(text: str, file: Path) -> Json:
    """Parse the mapping in a copied text; tolerate code fences, missing braces and trailing commas."""
    bare = text.lstrip("\ufeff")
    fenced = _FENCE.match(bare)
    bare = (fenced[1] if fenced else bare).strip().removesuffix(",")
    if bare.startswith(('"', "//")) or (bare and not bare.startswith(("{", "/*"))):
        try:
            return parse_document(f"{{{bare}\n}}", file.with_suffix(".json"))
        except ConfigError:
            pass  # parsing the unchanged text gives a better error
    return parse_document(bare, file.with_suffix(".json"))


def _extract_servers(document: Json, file: Path, name_entry: Callable[[Sequence[str]], str]) -> Json:
    section = next((document[key] for key in SECTIONS if isinstance(document.get(key), Mapping)), None)
    if section is not None:
        inner = next((section[key] for key in SECTIONS if isinstance(section.get(key), Mapping)), section)
        return dict(inner) if not _is_entry(inner) else dict(section)
    if _is_entry(document):
        return {name_entry(_list_words(document)): document}
    if document and all(isinstance(each, Mapping) and _is_entry(each) for each in document.values()):
        return dict(document)
    raise ConfigError(
        "the text contains no MCP servers",
        file=str(file),
        hint='expected {"mcpServers": {"name": {"command": …}}}, "name": {"command": …} or {"command": …}',
    )


def _is_entry(entry: Mapping[str, Any]) -> bool:
    return any(isinstance(entry.get(key), (str, list)) for key in _ENTRY_KEYS)


def _list_words(entry: Mapping[str, Any]) -> list[str]:
    command, args = entry.get("command"), entry.get("args")
    words = command if isinstance(command, list) else [command] if command else []
    words = [*words, *(args if isinstance(args, list) else ())]
    urls = [entry[key] for key in _ENTRY_KEYS[1:] if entry.get(key)]
    return [word for word in (words or urls) if isinstance(word, str)]
