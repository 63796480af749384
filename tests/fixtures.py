"""Where the recorded traffic of real providers and the published tool sets lie, and how a case of them is read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
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


# Published sets of tools and schemas.


@dataclass(frozen=True)
class ReferenceCall:
    """A tool call that a benchmark takes for right: the query's id, the tool's schema and the arguments."""

    query: str
    schema: dict[str, Any]
    arguments: dict[str, Any]


def bfcl_tools() -> tuple[dict[str, Any], ...]:
    """Return the tools of the Berkeley function-calling leaderboard, all variants of each name; skips without them."""
    return _lines("bfcl/tools.jsonl")


def bfcl_queries() -> tuple[dict[str, Any], ...]:
    """Return the leaderboard's queries; `offered` and `expected` are ids of tools, `calls` name them by name."""
    return _lines("bfcl/queries.jsonl")


def bfcl_calls() -> list[ReferenceCall]:
    """Return the leaderboard's reference calls; the tool of a call is the one of its name that the query offers."""
    schemas = {tool["id"]: (tool["name"], tool["parameters"]) for tool in bfcl_tools()}
    found = []
    for query in bfcl_queries():
        offered = dict(schemas[tool] for tool in query["offered"])
        for call in query.get("calls", ()):
            found += [ReferenceCall(query["id"], offered[name], _reference(given)) for name, given in call.items()]
    return found


def _reference(accepted: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the first accepted value of each argument, if there is one; `""` says that the argument is left out."""
    return {name: _plain(values[0]) for name, values in accepted.items() if values and values[0] != ""}


def _plain(value: Any) -> Any:
    """Return a value without the lists of accepted values that stand in the objects inside it (in all but one)."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    is_accepted = isinstance(value, dict) and all(isinstance(item, list) for item in value.values())
    return _reference(value) if is_accepted else value


def livemcp_tools() -> tuple[dict[str, Any], ...]:
    """Return the tools of 70 real MCP servers; skips without them."""
    return _lines("livemcp/tools.jsonl")


def livemcp_queries() -> tuple[dict[str, Any], ...]:
    """Return tasks for the tools of those servers; `expected` has, for each tool that a task needs, the ids that do."""
    return _lines("livemcp/queries.jsonl")


def metatool_tools() -> tuple[dict[str, Any], ...]:
    """Return the tools of MetaTool, which have descriptions but no schemas; skips without them."""
    return _lines("metatool/tools.jsonl")


def metatool_queries() -> tuple[dict[str, Any], ...]:
    """Return MetaTool's queries, of the categories `single` and `multi`; `expected` are ids of tools."""
    return _lines("metatool/queries.jsonl")


def json_schema_groups(draft: str) -> dict[str, dict[str, Any]]:
    """Return the groups of the JSON Schema test suite for `draft`, such as `draft7`, by name; skips without them."""
    groups = _lines(f"jsonschema/{draft}.jsonl")
    named = {f"{group['keyword']}: {group['description']}": group for group in groups}
    assert len(named) == len(groups)
    return named


_NO_SETS = "the published tool sets are not here: set TRACED_TOOLS_FIXTURES"


@cache
def _lines(name: str) -> tuple[dict[str, Any], ...]:
    file = _FOLDER / name
    if not file.is_file():
        pytest.skip(_NO_SETS)
    with file.open(encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)
