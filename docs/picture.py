"""Draws the README's picture of the demo: python docs/picture.py, from the root of the repository."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from traced_tools.demo.run import run_demo

PICTURE = Path(__file__).parent / "images" / "demo.svg"


def main() -> None:
    """Run the demo on a recording console and write what it printed."""
    console = Console(record=True, width=88, file=io.StringIO(), force_terminal=True)
    run_demo(console)
    svg = console.export_svg(title="make demo")
    # rich refers to a web font; the reader's own monospace one will do
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
