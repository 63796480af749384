"""Exports records as JSON Lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final, Literal
from unicodedata import category, normalize

from traced_tools.audit.reading.read_connection import parsed
from traced_tools.audit.records import PRINCIPAL, AuditRecord, body_of, person_of, timestamp
from traced_tools.audit.schema import REPEATED
from traced_tools.errors import ConfigurationError

ExportFormat = Literal["jsonl", "csv"]

_NAMED: Final = (
    *("service", "agent", "run_id", "parent_run_id", "call_id", "tool", "conversation_id", "attributes"),
    *("trace_id", "span_id", "decision", "advisor", "reason_code", "by", "outcome", "error_type"),
    *("source", "model", "provider", "response_id", "definition_digest"),
    *("iteration", "batch_index", "batch_size", "attempts", "rule", PRINCIPAL, "actors", "policy_digest"),
)
_FIELDS: Final = (*_NAMED, *(name for name in REPEATED if name not in _NAMED))
"""Fields of the body, each a column. The order of `_NAMED` is part of the format; new columns of the store follow."""
_CONTENTS: Final = ("arguments", "requested_arguments", "reason", "result")
COLUMNS: Final = (
    *("chain_id", "sequence", "time", "kind"),
    *_FIELDS,
    "duration",
    *(f"{name}_{part}" for name in _CONTENTS for part in ("digest", "size")),
    *("previous", "hash", "body"),
)
"""The columns of CSV. A row is a record; its `body` is the whole record."""
_FORMULA: Final = "=+-@\N{MINUS SIGN}"
"""The first characters of a formula. Full-width, small and superscript forms count as these (Unicode's NFKC)."""
_FILLERS: Final = " \u115f\u1160\u2800\u3164\uffa0"
"""Characters that are printable and look blank."""


def export(records: Iterable[AuditRecord], format: ExportFormat, file: IO[bytes]) -> int:
    """Write records to a file as they come, and return how many.

    Args:
        records: the records, such as from `AuditReader.records()`.
        format: `jsonl`: one line per record, its body with an additional field `hash`. `csv`: one row per record; a
            value that a spreadsheet may read as a formula gets an apostrophe in front.
        file: a file that is open for writing bytes.

    Raises:
        ConfigurationError: for an unknown format.
    """
    if format not in _WRITERS:
        raise ConfigurationError(f"format must be one of {', '.join(_WRITERS)}")
    return _WRITERS[format](records, file)


def json_fields(record: AuditRecord) -> dict[str, Any]:
    """Return a record's fields and its `hash`. If its body cannot be read: the store's columns, and `damaged`."""
    fields = parsed(record.body)
    return _damaged_fields(record) if fields is None else {**fields, "hash": str(record.hash)}


def _damaged_fields(record: AuditRecord) -> dict[str, Any]:
    names = ("chain_id", "sequence", "kind", "body", "hash")
    return {"damaged": True, **{name: str(getattr(record, name)) for name in names}}


def json_line(record: AuditRecord) -> str:
    """Return a record as a line of JSON in printable ASCII: its fields and its `hash`."""
    try:
        return body_of(json_fields(record))
    except (ValueError, RecursionError):  # a number beyond the range of a float, read as infinite
        return body_of(_damaged_fields(record))


def _write_jsonl(records: Iterable[AuditRecord], file: IO[bytes]) -> int:
    count = 0
    for record in records:
        file.write(f"{json_line(record)}\n".encode())
        count += 1
    return count


def _write_csv(records: Iterable[AuditRecord], file: IO[bytes]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        table = csv.writer(text, lineterminator="\r\n")  # RFC 4180
        table.writerow(COLUMNS)
        count = 0
        for row in _rows(records):
            table.writerow([_cell(value) for value in (row | {"time": _time(row["time"])}).values()])
            count += 1
        text.flush()
        return count
    finally:
        text.detach()


_WRITERS: Final[dict[str, Callable[[Iterable[AuditRecord], IO[bytes]], int]]] = {
    "jsonl": _write_jsonl,
    "csv": _write_csv,
}


def _rows(records: Iterable[AuditRecord]) -> Iterator[dict[str, Any]]:
    """Yield the row of each record. If its body cannot be read, the row has only the columns of the store."""
    for record in records:
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        fields = parsed(record.body) or {}
        row |= {name: fields[name] for name in (*_FIELDS, "duration", "previous") if name in fields}
        for name in _CONTENTS:
            content = fields.get(name)
            if isinstance(content, dict):
                row |= {f"{name}_digest": content.get("digest"), f"{name}_size": content.get("size")}
        columns = ("chain_id", "sequence", "kind", "hash", "body")
        row |= {name: person_of(fields, name) for name in ("by", PRINCIPAL)}
        yield row | {name: getattr(record, name) for name in columns} | {"time": record.time}


def _cell(value: object) -> object:
    """Return a value that is safe to open in a spreadsheet (OWASP, CSV injection), without control characters."""
    if value is None or type(value) in (int, float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else _escape(character) for character in text)
    return f"'{text}" if _begins_formula(text) else text


def _begins_formula(text: str) -> bool:
    """Whether a spreadsheet may read a text as a formula after it drops invisible characters at the beginning.

    At this point only spaces, fillers and combining marks can be invisible: `_cell` has escaped the rest.
    """
    for character in text:
        if character in _FILLERS or category(character).startswith("M"):
            continue
        return normalize("NFKC", character)[0] in _FORMULA
    return False


def _escape(character: str) -> str:
    """Return a character as a JSON escape, so that a body keeps its meaning."""
    return json.dumps(character)[1:-1]


def _time(time: object) -> object:
    try:
        return timestamp(time) if isinstance(time, int) else time
    except (ValueError, OverflowError):
        return time
