"""Builds the fields of records from drafts: contents become digests, and values become valid JSON."""

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
from traced_tools.observe.content import pseudonym_by

ContentMode = Literal["digest", "redacted", "full"]
Redactor = Callable[[str, object], object]

MOST_TEXT: Final = 4096
"""Maximum characters of a text in a record, other than arguments, results and other contents."""
MOST_CONTENT: Final = 16_384
"""Maximum characters of a stored argument, result or other content."""
_PLAIN_BODY: Final = 2048
_DEEPEST: Final = 32


class RecordMaker:
    """Builds the fields of records from drafts.

    Args:
        key: makes the digests.
        mode: how contents are stored: only their `digest`, the output of the redactor, or the text.
        redactor: a function of a content's name and value that returns what to store, None for nothing.
        common: fields that all records have.
    """

    def __init__(self, key: AuditKey, mode: ContentMode, redactor: Redactor | None, common: Mapping[str, Any]) -> None:
        self.key: Final = key
        self._get_text = _STORED[mode]
        self._redactor = redactor
        self._common = {"schema_version": SCHEMA_VERSION, **common}

    def fields(self, draft: Draft, time: int) -> dict[str, Any]:
        """Return the fields of a record, without its place in a chain; `time` is in nanoseconds of Unix time."""
        fields = {**self._common, **draft.fields, "kind": draft.kind, "time": timestamp(time)}
        if draft.subject is not None:
            draft.subject.add_to(fields)
        for name, content in draft.contents.items():
            digested = self.key.content(content.text, content.is_json)
            if name == REQUESTED_ARGUMENTS and digested["digest"] == fields["arguments"]["digest"]:
                continue  # the model's text differs only in spaces or the order of keys
            fields[name] = digested
            if content.pseudonym not in (None, pseudonym_by(digested["digest"])):
                digested["pseudonym"] = content.pseudonym
            stored_as = "arguments" if name == REQUESTED_ARGUMENTS else name  # the redactor's name for both
            if content.may_be_stored and (text := self._get_text(stored_as, content, self._redactor)) is not None:
                digested |= self.key.committed(text[:MOST_CONTENT], cut=len(text) > MOST_CONTENT)
                fields["schema_version"] = ERASABLE_VERSION
        return fields


def _nothing(name: str, content: Content, redactor: Redactor | None) -> str | None:
    return None


def _all(name: str, content: Content, redactor: Redactor | None) -> str | None:
    return content.text


def _redact(name: str, content: Content, redactor: Redactor | None) -> str | None:
    """Return the text from the redactor; nothing is stored if the redactor fails."""
    assert redactor is not None
    try:
        replacement = redactor(name, _parse_value(content))
        if replacement is None or isinstance(replacement, str):
            return replacement
        return json.dumps(replacement, ensure_ascii=False)
    except Exception:
        return None


def _parse_value(content: Content) -> object:
    try:
        return json.loads(content.text) if content.is_json else content.text
    except ValueError:
        return content.text


_STORED: Final = {"digest": _nothing, "redacted": _redact, "full": _all}


def written(fields: dict[str, Any], careful: bool = False) -> str:
    """Return the body of a record; replace values that cannot be written or stored, in `fields` as well.

    Args:
        fields: the fields of the record.
        careful: whether to check each field in any case; otherwise only if the body is long or cannot be stored.
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
    """Return a JSON value: long texts are truncated, and values that are not JSON become the names of their types."""
    if isinstance(value, str):
        return str(value[:MOST_TEXT])
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else _kind(value)
    if isinstance(value, float):
        return value if value - value == 0 else repr(float(value))
    if isinstance(value, Mapping) and levels:
        return {str(key)[:MOST_NAME]: plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and levels:
        return [plain(item, levels - 1) for item in value[:MOST_NAME]]
    return _kind(value)


def _is_content(value: object) -> bool:
    return isinstance(value, dict) and "digest" in value and "form" in value


def _kind(value: object) -> str:
    return type(value).__name__
