"""Try every built-in tool with an agent, and compare the table of the tools in `docs/seeds.md`.

python scripts/tools_table.py            fail if a tool fails or is not found, or the table differs
python scripts/tools_table.py --write    write the table, unless a tool fails or is not found
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seeds.md"
BEGIN = "<!-- The table below is written by scripts/tools_table.py --write -->\n"
END = "<!-- end of the table -->\n"


def try_tools() -> list[str]:
    """Call every built-in tool and search for it; return the problems."""
    from tests.tools.tool_examples import call_all_tools, find_missed_tools, open_everything

    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as project,
        open_everything(Path(home), Path(project)) as (runtime, server),
    ):
        called = call_all_tools(runtime, server)
        missed = find_missed_tools(runtime)
    return [
        *(f"{name} failed: {problem}" for name, problem in called.items() if problem),
        *(f"{name} is not selected for its message" for name in missed),
    ]


def main() -> int:
    sys.path.insert(0, str(ROOT))
    from tests.tools.tool_examples import EXAMPLES, render_table

    if problems := try_tools():
        print("\n".join(problems))
        return 1
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    recorded, end, after = rest.partition(END)
    if not begin or not end:
        print(f"docs/seeds.md has no place for the table: {BEGIN.strip()} … {END.strip()}")
        return 1
    table = f"\n{render_table()}\n"
    if "--write" in sys.argv:
        PAGE.write_text(f"{before}{begin}{table}{end}{after}", encoding="utf-8")
    elif table != recorded:
        print("docs/seeds.md differs: python scripts/tools_table.py --write")
        return 1
    print(f"an agent called the {len(EXAMPLES)} built-in tools, and each is found by its message")
    return 0


if __name__ == "__main__":
    sys.exit(main())
