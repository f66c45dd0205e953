"""Draw `docs/demo.svg`, an image in the README, from the output of `toolfold demo`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 104
PICTURE = Path(__file__).parent.parent / "docs" / "demo.svg"


def main() -> None:
    toolfold = str(Path(sys.executable).with_name("toolfold"))
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    printed = subprocess.run([toolfold, "demo"], env=environment, capture_output=True, text=True, check=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi("$ toolfold demo\n" + printed.stdout))
    svg = console.export_svg(title="toolfold demo")
    # Without the web font, so that the image loads nothing from the network.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
