"""Set or remove one table or one top-level value in TOML text, and leave all other text unchanged.

Expects text that was parsed as TOML before; the caller must parse the result again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from toolfold.cli.connecting.yaml_edit import preserve_newlines

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def set_table(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """Return the TOML text with the table `[section.name]` replaced, or added at the end if it is new."""

    def change(document: TOMLDocument) -> None:
        import tomlkit
        from tomlkit.items import InlineTable

        tables: Any = document.setdefault(section, tomlkit.table(is_super_table=True))
        if isinstance(tables, InlineTable):
            tables[name] = _inline(value)
            return
        tables[name] = tomlkit.table()
        for key, each in value.items():
            tables[name][key] = _inline(each)

    return _edit(text, change)


def set_value(text: str, name: str, value: Any) -> str:
    """Return the TOML text with a top-level value set; a new value is added after the existing values."""
    return _edit(text, lambda document: document.update({name: _inline(value)}))


def remove_value(text: str, name: str) -> str:
    """Return the TOML text without a top-level value."""
    return _edit(text, lambda document: document.pop(name, None))


def remove_tables(text: str, section: str, names: Collection[str]) -> str:
    """Return the TOML text without the named tables of the section."""

    def change(document: TOMLDocument) -> None:
        tables: Any = document.get(section, {})
        for name in names:
            tables.pop(name, None)
        if section in document and not tables:
            document.pop(section)

    return _edit(text, change)


def _edit(text: str, change: Callable[[TOMLDocument], object]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    def apply(plain: str) -> str:
        document = tomlkit.parse(plain)
        try:
            change(document)
        except TOMLKitError:
            return plain  # the caller finds that the change is missing, and reports it
        return tomlkit.dumps(document)

    return preserve_newlines(text, apply)


def _inline(value: Any) -> Any:
    """Return a value as a TOML item on one line. Raises ValueError for a type that TOML does not have."""
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        table.update({key: _inline(each) for key, each in value.items()})
        return table
    return tomlkit.item(value)
