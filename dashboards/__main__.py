"""Generates the files of the dashboards: `python -m dashboards` from the repository's root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboards import classic, v2
from dashboards.boards import BOARDS

FOLDER = Path(__file__).parent


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each generated file."""
    for board in BOARDS:
        resource = v2.resource(board)
        yield FOLDER / "classic" / f"{board.uid}.json", _text(classic.dashboard(resource))
        yield FOLDER / "v2" / f"{board.uid}.json", _text(resource)


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for path, text in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
