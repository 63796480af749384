"""What a record says, made of its draft: contents become digests, and odd values something that can be written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.records import (
    ERASABLE_VERSION,
    REQUESTED_ARGUMENTS,
    SCHEMA_VERSION,
    Content,
    Draft,
    body_of,
    timestamp,
)
from traced_tools.audit.schema import MOST_NAME, REPEATED, column_value

ContentMode = Literal["digest", "redacted", "full"]
Redactor = Callable[[str, object], object]

MOST_TEXT: Final = 4096
"""Characters of any other text of a record."""
MOST_CONTENT: Final = 16_384
"""Characters of a content that is stored in words."""
_PLAIN_BODY: Final = 2048
_DEEPEST: Final = 32


class RecordMaker:
    """Makes what records say of drafts.

    Args:
        key: makes the digests.
        mode: what is stored of contents: their `digest` alone, what the redactor leaves of them, or all of it.
        redactor: is given a content's name and value and returns what may be stored of it; None for nothing.
        common: fields that all records have.
    """

    def __init__(self, key: AuditKey, mode: ContentMode, redactor: Redactor | None, common: Mapping[str, Any]) -> None:
        self.key: Final = key
        self._stored = _STORED[mode]
        self._redactor = redactor
        self._common = {"schema_version": SCHEMA_VERSION, **common}

    def fields(self, draft: Draft, time: int) -> dict[str, Any]:
        """Return what the record says, all but its place in a chain; `time` in nanoseconds of Unix time."""
        fields = {**self._common, **draft.fields, "kind": draft.kind, "time": timestamp(time)}
        if draft.subject is not None:
            draft.subject.add_to(fields)
        for name, content in draft.contents.items():
            told = self.key.content(content.text, content.is_json)
            if name == REQUESTED_ARGUMENTS and told["digest"] == fields["arguments"]["digest"]:
                continue  # the model wrote what runs, with other blanks or another order of keys
            fields[name] = told
            stored_as = "arguments" if name == REQUESTED_ARGUMENTS else name  # the redactor's name for both
            if content.may_be_stored and (text := self._stored(stored_as, content, self._redactor)) is not None:
                told |= self.key.committed(text[:MOST_CONTENT], cut=len(text) > MOST_CONTENT)
                fields["schema_version"] = ERASABLE_VERSION
        return fields


def _nothing(name: str, content: Content, redactor: Redactor | None) -> str | None:
    return None


def _all(name: str, content: Content, redactor: Redactor | None) -> str | None:
    return content.text


def _redacted(name: str, content: Content, redactor: Redactor | None) -> str | None:
    """Return what the redactor leaves; a redactor that fails leaves nothing."""
    assert redactor is not None
    try:
        left = redactor(name, _value_of(content))
        return left if left is None or isinstance(left, str) else json.dumps(left, ensure_ascii=False)
    except Exception:
        return None


def _value_of(content: Content) -> object:
    try:
        return json.loads(content.text) if content.is_json else content.text
    except ValueError:
        return content.text


_STORED: Final = {"digest": _nothing, "redacted": _redacted, "full": _all}


def written(fields: dict[str, Any], careful: bool = False) -> str:
    """Return the body of a record; what cannot be written or stored is made fit first, in `fields` too.

    Args:
        fields: what it says.
        careful: whether to look at each field; else only at what cannot be written.
    """
    try:
        body = body_of(fields)
    except (TypeError, ValueError, RecursionError):
        body = ""
    if body and not careful and len(body) < _PLAIN_BODY and "\\u0000" not in body and "\\ud" not in body:
        return body
    _make_fit(fields)
    return body_of(fields)


def _make_fit(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        fields[name] = value if _is_content(value) else plain(value)
    for name in REPEATED:
        if name in fields:
            fields[name] = column_value(name, fields[name])


def plain(value: object, levels: int = _DEEPEST) -> Any:
    """Return a value as JSON can hold it: long texts cut, and of what is no JSON its type's name."""
    if isinstance(value, str):
        return str(value[:MOST_TEXT])
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else _kind(value)
    if isinstance(value, float):
        return value if value - value == 0 else repr(float(value))
    if isinstance(value, Mapping) and levels:
        return {str(key)[:MOST_NAME]: plain(each, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple) and levels:
        return [plain(each, levels - 1) for each in value[:MOST_NAME]]
    return _kind(value)


def _is_content(value: object) -> bool:
    return isinstance(value, dict) and "digest" in value and "form" in value


def _kind(value: object) -> str:
    return type(value).__name__
