"""Assembles a function call whose arguments Gemini streams as values, or pieces of texts, with a JSON path for each.

Format: https://googleapis.github.io/js-genai/release_docs/interfaces/types.FunctionCall.html (`partialArgs`,
`willContinue`). The paths follow https://datatracker.ietf.org/doc/html/rfc9535, but contain only names and indices.
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
from traced_tools.models.parsing import MOST_ITEMS

_PATH_SEGMENT = re.compile(
    r"""\.(?P<name>[^.*\[\]]+) | \[(?P<index>\d{1,9})\]
    | \['(?P<single>(?:[^'\\]|\\.)*)'\] | \["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE | re.DOTALL,
)
_MAX_DEPTH = 100
_MISSING = object()


class PartialCall:
    """One call, assembled from the pieces that have arrived."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._id: str | None = None
        self._signature: str | None = None
        self._arguments: dict[str, Any] = {}
        self._container_count = 0
        self._open_text_count = 0

    def add(self, call: GeminiFunctionCall, signature: str | None) -> None:
        """Add a piece; raises `ValueError` if it belongs to another call or its path doesn't fit the arguments."""
        self._name = _merge(self._name, call.name)
        self._id = _merge(self._id, call.id)
        self._signature = self._signature or signature
        self._arguments |= call.args or {}
        for piece in call.partial_args or ():
            self._put_value(piece)

    def part(self) -> ToolCall:
        """Return the whole call. If it ends inside a text, its arguments become invalid JSON and it does not run."""
        arguments = json.dumps(self._arguments, ensure_ascii=False, default=_PartialText.getvalue)
        if self._open_text_count:
            arguments = arguments.removesuffix("}")
        return ToolCall(self._name or "", arguments, self._id, signature=self._signature)

    def _put_value(self, piece: PartialArg) -> None:
        """Store the value of a piece at its path; a piece of text extends the text that is there."""
        if not piece.has_value:
            return
        steps = list(_parse_path(piece.json_path))
        holder: Any = self._arguments
        for step, following in pairwise(steps):
            holder = self._container(holder, step, dict if isinstance(following, str) else list)
        current, value = _get_item(holder, steps[-1]), piece.value
        text = current if isinstance(current, _PartialText) else _PartialText()
        self._open_text_count -= text.will_continue is True
        if not isinstance(value, str):
            _set_item(holder, steps[-1], value)
            return
        text.add(value, piece.will_continue)
        self._open_text_count += text.will_continue is True
        _set_item(holder, steps[-1], text)

    def _container(self, holder: Any, step: str | int, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
        """Return the container at `step` in `holder`; create one if there is none."""
        container = _get_item(holder, step)
        if container is _MISSING:
            self._container_count += 1
            if self._container_count > MOST_ITEMS:
                raise ValueError(f"it has more than {MOST_ITEMS} objects and arrays")
            container = kind()
            _set_item(holder, step, container)
        return container


class _PartialText(StringIO):
    """A text that arrives in pieces.

    `will_continue` is True if another piece follows, False after the last piece, and None as long as no piece has had
    the field. Some servers never send it; their pieces are joined.
    """

    will_continue: bool | None = None

    def add(self, piece: str, will_continue: bool | None) -> None:
        """Add a piece; raises `ValueError` for a piece after the last."""
        if self.will_continue is False and piece:
            raise ValueError("a text continues after its last piece")
        self.write(piece)
        if will_continue is not None or self.will_continue is not None:
            self.will_continue = bool(will_continue)


def _merge(current: str | None, addition: str | None) -> str | None:
    if current and addition and current != addition:
        raise ValueError("another call begins before this one ends")
    return current or addition


def _parse_path(path: str) -> Iterator[str | int]:
    """Yield the names and indices of a JSON path; raises `ValueError` if there are none or the path is invalid."""
    place, number = 1, 0
    while segment := _PATH_SEGMENT.match(path, place):
        if segment["index"] is not None:
            yield int(segment["index"])
        else:
            yield segment["name"] or re.sub(
                r"\\(.)", r"\1", segment["single"] or segment["double"] or "", flags=re.DOTALL
            )
        place, number = segment.end(), number + 1
    if not path.startswith("$") or place != len(path) or not 0 < number <= _MAX_DEPTH:
        raise ValueError("not a path of names and indices")


def _get_item(holder: Any, step: str | int) -> Any:
    """Return the value at `step` in `holder`, `_MISSING` if there is none; a list grows by one item at a time."""
    if isinstance(holder, dict) and isinstance(step, str):
        return holder.get(step, _MISSING)
    if isinstance(holder, list) and isinstance(step, int) and step <= len(holder):
        return holder[step] if step < len(holder) else _MISSING
    raise ValueError("no such place in the arguments")


def _set_item(holder: Any, step: Any, value: Any) -> None:
    if isinstance(holder, list) and step == len(holder):
        holder.append(value)
    else:
        holder[step] = value
