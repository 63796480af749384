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

from traced_tools.core.messages import ToolCall
from traced_tools.models.gemini.wire import GeminiFunctionCall, PartialArg
from traced_tools.models.wire import MOST_ITEMS

_STEP = re.compile(
    r"""\.(?P<name>[^.*\[\]]+) | \[(?P<index>\d{1,9})\]
    | \['(?P<single>(?:[^'\\]|\\.)*)'\] | \["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 100
_MISSING = object()


class PartialCall:
    """One call, as far as its pieces have arrived."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._id: str | None = None
        self._signature: str | None = None
        self._arguments: dict[str, Any] = {}
        self._containers = 0
        self._open_texts = 0

    def add(self, call: GeminiFunctionCall, signature: str | None) -> None:
        """Add a piece; raises `ValueError` for a piece of another call, or one that has no place in the arguments."""
        self._name = _same(self._name, call.name)
        self._id = _same(self._id, call.id)
        self._signature = self._signature or signature
        self._arguments |= call.args or {}
        for piece in call.partial_args or ():
            self._put(piece)

    def part(self) -> ToolCall:
        """Return the whole call. If it ends inside a text, its arguments are not JSON, so that it is not run."""
        arguments = json.dumps(self._arguments, ensure_ascii=False, default=_Text.getvalue)
        if self._open_texts:
            arguments = arguments.removesuffix("}")
        return ToolCall(self._name or "", arguments, self._id, signature=self._signature)

    def _put(self, piece: PartialArg) -> None:
        """Put the value of a piece in its place; a text goes on with the text that is there."""
        if not piece.has_value:
            return
        steps = list(_steps(piece.json_path))
        holder: Any = self._arguments
        for step, following in pairwise(steps):
            holder = self._container(holder, step, dict if isinstance(following, str) else list)
        known, value = _item(holder, steps[-1]), piece.value
        text = known if isinstance(known, _Text) else _Text()
        self._open_texts -= text.goes_on is True
        if not isinstance(value, str):
            _set(holder, steps[-1], value)
            return
        text.add(value, piece.will_continue)
        self._open_texts += text.goes_on is True
        _set(holder, steps[-1], text)

    def _container(self, holder: Any, step: str | int, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
        """Return what is at `step` in `holder`, a new container if nothing is."""
        found = _item(holder, step)
        if found is _MISSING:
            self._containers += 1
            if self._containers > MOST_ITEMS:
                raise ValueError(f"it has more than {MOST_ITEMS} objects and arrays")
            found = kind()
            _set(holder, step, found)
        return found


class _Text(StringIO):
    """A text that arrives in pieces.

    `goes_on` is what the last piece says: True if another follows, False if it is the last, None as long as no piece
    says either. Some servers never say it, and their pieces are joined.
    """

    goes_on: bool | None = None

    def add(self, piece: str, will_continue: bool | None) -> None:
        """Add a piece; raises `ValueError` for one after the last."""
        if self.goes_on is False and piece:
            raise ValueError("a text goes on after its last piece")
        self.write(piece)
        if will_continue is not None or self.goes_on is not None:
            self.goes_on = bool(will_continue)


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


def _item(holder: Any, step: str | int) -> Any:
    """Return what is at `step` in `holder`, `_MISSING` if nothing is; a list grows by one item at a time."""
    if isinstance(holder, dict) and isinstance(step, str):
        return holder.get(step, _MISSING)
    if isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        return holder[step] if step < len(holder) else _MISSING
    raise ValueError("no such place in the arguments")


def _set(holder: Any, step: Any, value: Any) -> None:
    if isinstance(holder, list) and step == len(holder):
        holder.append(value)
    else:
        holder[step] = value
