"""Compare the reference of the built-in tools in `docs/tools.md` with the registry.

python scripts/tools_reference.py            fail if they differ
python scripts/tools_reference.py --write    write the reference
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolfold import Tool, load_config, open_runtime

PAGE = Path(__file__).parent.parent / "docs" / "tools.md"
BEGIN = "<!-- The reference below is written by scripts/tools_reference.py --write -->\n"
END = "<!-- end of the reference -->\n"
SENTENCE = re.compile(r"[.;:] ")


def list_builtin_tools() -> list[Tool]:
    """Return the built-in tools with the default configuration, by toolset and name."""
    with tempfile.TemporaryDirectory() as directory:
        config = load_config(project=Path(directory), env={"TOOLFOLD_HOME": directory, "HOME": directory})
        with open_runtime(config) as runtime:
            tools = [tool for tool in runtime.registry.snapshot().values() if tool.source.kind == "builtin"]
    return sorted(tools, key=lambda tool: (tool.toolset, tool.name))


def describe_tools(tools: list[Tool]) -> Iterator[str]:
    """Yield the lines of the reference, one for each tool."""
    for tool in tools:
        summary = SENTENCE.split(escape_text(tool.description))[0].removesuffix(".")
        call = f"{tool.name}({', '.join(list_parameters(tool))})"
        yield f"* `{call}`: {summary}. *{'; '.join(list_facts(tool))}*"


def list_parameters(tool: Tool) -> Iterator[str]:
    """Yield the names of a tool's parameters; optional ones end in a question mark."""
    required = set(tool.parameters.get("required") or ())
    for name in tool.parameters.get("properties") or {}:
        yield name if name in required else f"{name}?"


def list_facts(tool: Tool) -> Iterator[str]:
    """Yield the toolset, effects and requirements of a tool."""
    yield tool.toolset
    if tool.effects:
        yield ", ".join(sorted(tool.effects))
    if tool.requires_env:
        yield " ".join(tool.requires_env)
    if tool.agent_level:
        yield "an agent"
    if tool.standalone:
        yield "not from code"


def escape_text(text: str) -> str:
    """Return text as Markdown on one line."""
    return " ".join(text.split()).replace("<", "&lt;")


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
