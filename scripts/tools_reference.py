"""Compare the reference of the built-in tools in `docs/tools.md` with the registry.

python scripts/tools_reference.py            fail if they differ
python scripts/tools_reference.py --write    write the reference
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from toolfold import Tool, load_config, open_runtime

PAGE = Path(__file__).parent.parent / "docs" / "tools.md"
BEGIN = "<!-- The reference below is written by scripts/tools_reference.py --write -->\n"
END = "<!-- end of the reference -->\n"
LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
}


def list_builtin_tools() -> list[Tool]:
    """Return the built-in tools with the default configuration, by toolset and name."""
    with tempfile.TemporaryDirectory() as directory:
        config = load_config(project=Path(directory), env={"TOOLFOLD_HOME": directory, "HOME": directory})
        with open_runtime(config) as runtime:
            tools = [tool for tool in runtime.registry.snapshot().values() if tool.source.kind == "builtin"]
    return sorted(tools, key=lambda tool: (tool.toolset, tool.name))


def describe_tools(tools: list[Tool]) -> Iterator[str]:
    """Yield the lines of the reference."""
    for toolset, members in groupby(tools, key=lambda tool: tool.toolset):
        yield from (f"#### Toolset `{toolset}`", "")
        for tool in members:
            yield from describe_tool(tool)


def describe_tool(tool: Tool) -> Iterator[str]:
    """Yield the description, the requirements and the parameters of one tool."""
    yield from (f"**`{tool.name}`** {tool.emoji}".rstrip(), "", escape_text(tool.description), "")
    yield from (f"* {fact}" for fact in list_facts(tool))
    yield ""
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    if not properties:
        return
    required = set(tool.parameters.get("required") or ())
    yield from ("| parameter | type | |", "|---|---|---|")
    for name, schema in properties.items():
        shown = f"`{name}`" if name in required else f"`{name}` (optional)"
        yield f"| {shown} | {describe_type(schema)} | {'; '.join(describe_schema(schema))} |"
    yield ""


def list_facts(tool: Tool) -> Iterator[str]:
    """Yield the requirements and limits of a tool."""
    if tool.effects:
        yield f"Effects: {', '.join(sorted(tool.effects))}."
    if tool.requires_env:
        yield f"Needs the environment variables {', '.join(f'`{each}`' for each in tool.requires_env)}."
    if tool.agent_level:
        yield "Needs a session with an agent that offers it."
    if tool.check is not None:
        yield "Its requirements are checked; `toolfold tools list --all` shows what is missing."
    if tool.standalone:
        yield "Cannot be called from code or from another tool."
    limit = f"{tool.timeout:,.0f} seconds" if tool.timeout else "`tools.timeout_seconds`"
    yield f"Time limit: {limit}."


def describe_type(schema: Mapping[str, Any]) -> str:
    """Return the type of a parameter."""
    if "enum" in schema:
        return " · ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {describe_type(schema.get('items', {}))}"
    return str(kind)


def describe_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description, default and limits of a parameter."""
    if "description" in schema:
        yield escape_text(schema["description"]).removesuffix(".")
    if "default" in schema:
        yield f"default `{schema['default']}`"
    for keyword, words in LIMITS.items():
        if keyword in schema and (keyword, schema[keyword]) != ("minLength", 1):
            number = schema[keyword]
            yield words.format(f"{number:,}" if isinstance(number, (int, float)) else number)


def escape_text(text: str) -> str:
    """Return text for a table cell or a paragraph on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    recorded, end, after = rest.partition(END)
    if not begin or not end:
        print(f"docs/tools.md has no place for the reference: {BEGIN.strip()} … {END.strip()}")
        return 1
    tools = list_builtin_tools()
    now = "\n" + "\n".join(describe_tools(tools)).rstrip() + "\n\n"
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{begin}{now}{end}{after}", encoding="utf-8")
        return 0
    if now == recorded:
        print(f"docs/tools.md describes the {len(tools)} built-in tools")
        return 0
    print("docs/tools.md differs from the registry: python scripts/tools_reference.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
