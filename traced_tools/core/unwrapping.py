"""Removes what models and gateways wrap arguments in: blanks, a Markdown code fence, a JSON string, empty objects."""

from __future__ import annotations

import json
import re
from typing import Any

from traced_tools.core.enums import Repair

_FENCE = "```"
_FENCE_OPENING = re.compile(r"``` *[\w-]*")
_EMPTY_OBJECTS = re.compile(r"(\{\s*\}\s*)+(?=\{)")
"""Empty objects before the arguments: some gateways stream one before the pieces of the arguments."""
_BEFORE_LAST = ("{", " ", "\n", "\r", "\t")
"""The characters before the last one of a text that may end with an empty object."""
_MAX_WRAPPINGS = 3


def unwrap_arguments(text: str) -> tuple[str, tuple[Repair, ...]]:
    """Return the JSON text inside all wrappings, and the repairs that removing them takes."""
    repairs: list[Repair] = []
    for _ in range(_MAX_WRAPPINGS):
        text, repair = _unwrap_once(text.strip())
        if repair is None:
            break
        repairs.append(repair)
    return text, tuple(repairs)


def _unwrap_once(text: str) -> tuple[str, Repair | None]:
    if not text:
        return "{}", "blank"
    if text == "null":
        return "{}", "null"
    if text.startswith('"'):
        try:
            inner: Any = json.loads(text)
        except ValueError:
            return text, None
        return inner, "string"
    opening = _FENCE_OPENING.match(text)
    if opening and text.endswith(_FENCE, opening.end()):
        return text[opening.end() : -len(_FENCE)], "code_fence"
    if text[1:2] != '"' and (empty := _EMPTY_OBJECTS.match(text)):
        return text[empty.end() :], "empty_object"
    if text[-2:-1] in _BEFORE_LAST and text[-1] == "}" and (before := text[:-1].rstrip()).endswith("{"):
        first = before[:-1].rstrip()
        if first.endswith("}"):
            return first, "empty_object"
    return text, None
