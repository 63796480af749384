"""Helpers that read files of exported events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from traced_tools.events import JsonLinesExporter
from traced_tools.observe import Event


def lines_of(*paths: Path) -> list[dict[str, object]]:
    """What the lines of files say; every one of them is whole."""
    found = []
    for path in paths:
        data = path.read_bytes()
        assert data == b"" or data.endswith(b"\n"), f"{path.name} has a torn end"
        found += [json.loads(line) for line in data.splitlines()]
    return found


def ids(events: Sequence[Event]) -> list[object]:
    return [event.id for event in events]


def ids_in(*paths: Path) -> list[object]:
    return [line["id"] for line in lines_of(*paths)]


def exported(path: Path, events: Sequence[Event], **options: object) -> None:
    exporter = JsonLinesExporter(path, **options)  # type: ignore[arg-type]
    exporter.export(events)
    exporter.close()


def put_away(path: Path) -> list[Path]:
    return sorted(each for each in path.parent.iterdir() if each.name.startswith(f"{path.stem}-"))
