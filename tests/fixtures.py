"""Where the recorded traffic of real providers lies, and how a case of it is read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from traced_tools.testing import Reply

_FOLDER = Path(os.environ.get("TRACED_TOOLS_FIXTURES") or Path(__file__).parents[1] / "../shared/fixtures").resolve()


@dataclass(frozen=True)
class Exchange:
    """One recorded request and its response."""

    request: dict[str, Any]
    body: bytes
    status: int
    content_type: str
    streamed: bool
    tool_calls: int

    def reply(self) -> Reply:
        """Return the response as a server sends it."""
        return Reply([self.body], self.status, content_type=self.content_type)


def wire_cases(*prefixes: str) -> list[Any]:
    """Return the names of the recorded cases that begin with one of `prefixes`, or one that is skipped."""
    names = sorted(path.parent.name for path in (_FOLDER / "wire").glob("*/meta.json"))
    found = [name for name in names if name.startswith(prefixes)]
    reason = "the recorded traffic is not here: set TRACED_TOOLS_FIXTURES"
    return found or [pytest.param("", marks=pytest.mark.skip(reason=reason))]


def exchanges(case: str) -> list[Exchange]:
    """Return the exchanges of a recorded case, in order."""
    folder = _FOLDER / "wire" / case
    described = json.loads((folder / "meta.json").read_text())["exchanges"]
    return [_exchange(folder, number, about) for number, about in enumerate(described, start=1)]


def _exchange(folder: Path, number: int, about: dict[str, Any]) -> Exchange:
    (response,) = folder.glob(f"{number}.response.*")
    return Exchange(
        request=json.loads((folder / f"{number}.request.json").read_text()),
        body=response.read_bytes(),
        status=about["status"],
        content_type=about["content_type"] or "application/json",
        streamed=response.suffix == ".sse",
        tool_calls=about["tool_calls"],
    )
