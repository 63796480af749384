"""A function call whose arguments Gemini streams: pieces of values, each with the JSON path of its place.

Format: https://googleapis.github.io/js-genai/release_docs/interfaces/types.FunctionCall.html (`partialArgs`,
`willContinue`) and https://datatracker.ietf.org/doc/html/rfc9535, of whose paths only names and indices occur.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from typing import Any

from traced_tools.messages import ToolCall
from traced_tools.models.gemini.wire import FunctionCall, PartialArg

_STEP = re.compile(
    r"""\.(?P<name>[^.*\[\]]+) | \[(?P<index>\d{1,9})\]
    | \['(?P<single>(?:[^'\\]|\\.)*)'\] | \["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 100


class PartialCall:
    """One call, as far as its pieces have arrived."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._id: str | None = None
        self._signature: str | None = None
        self._arguments: dict[str, Any] = {}

    def add(self, call: FunctionCall, signature: str | None) -> None:
        """Add a piece; raises `ValueError` for a piece of another call, or one that has no place in the arguments."""
        self._name = _same(self._name, call.name)
        self._id = _same(self._id, call.id)
        self._signature = self._signature or signature
        self._arguments |= call.args or {}
        for piece in call.partial_args or ():
            self._put(piece)

    def part(self) -> ToolCall:
        """Return the whole call."""
        arguments = json.dumps(self._arguments, ensure_ascii=False, default=StringIO.getvalue)
        return ToolCall(self._name or "", arguments, self._id, signature=self._signature)

    def _put(self, piece: PartialArg) -> None:
        """Put the value of a piece in its place; a text goes on with the text that is there."""
        if not piece.has_value:
            return
        steps = list(_steps(piece.json_path))
        holder: Any = self._arguments
        for step, following in pairwise(steps):
            holder = _item(holder, step, {} if isinstance(following, str) else [])
        known, value = _item(holder, steps[-1], None), piece.value
        if not isinstance(value, str):
            holder[steps[-1]] = value
            return
        text = known if isinstance(known, StringIO) else StringIO()
        text.write(value)
        holder[steps[-1]] = text


def _same(known: str | None, given: str | None) -> str | None:
    if known and given and known != given:
        raise ValueError("another call begins before this one ends")
    return known or given


def _steps(path: str) -> Iterator[str | int]:
    """Give the names and indices that a JSON path is made of, at least one."""
    place, number = 1, 0
    while found := _STEP.match(path, place):
        if found["index"] is not None:
            yield int(found["index"])
        else:
            yield found["name"] or re.sub(r"\\(.)", r"\1", found["single"] or found["double"] or "", flags=re.DOTALL)
        place, number = found.end(), number + 1
    if not path.startswith("$") or place != len(path) or not 0 < number <= _DEEPEST:
        raise ValueError("not a path of names and indices")


def _item(holder: Any, step: str | int, default: Any) -> Any:
    """Return what is at `step` in `holder`; put `default` there if nothing is. A list grows by one item at a time."""
    if isinstance(holder, dict) and isinstance(step, str):
        return holder.setdefault(step, default)
    if isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        if step == len(holder):
            holder.append(default)
        return holder[step]
    raise ValueError("no such place in the arguments")
