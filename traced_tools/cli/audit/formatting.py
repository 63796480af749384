"""Formats records for the terminal. Text from models must neither move the cursor nor hide other output."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from traced_tools.audit.reading.queries import UNFINISHED
from traced_tools.audit.reading.reader import DAMAGED, AuditedCall
from traced_tools.audit.records import RAN, AuditRecord, person_of
from traced_tools.core.readable import readable_text
from traced_tools.observe.span_tree import format_seconds

_MOST: Final = 200
_WIDE: Final = 100_000
_STYLES: Final = {"ok": "green", "error": "red", "timeout": "red", DAMAGED: "bold red", UNFINISHED: "bold yellow"}


def escape(value: object, most: int = _MOST) -> str:
    r"""Return a text on one line, with unseen characters as `\x1b` or `\u202e`, and backslashes doubled.

    Args:
        value: the text; any other value is shown as JSON.
        most: the maximum number of characters before it is cut.
    """
    return readable_text(value if isinstance(value, str) else json.dumps(value, default=ascii), most)


def as_text(value: object, style: str = "", most: int = _MOST) -> Text:
    """Return a value as text without markup; None is blank."""
    return Text("" if value is None else escape(value, most), style)


def time_text(record: AuditRecord, digits: str = "") -> str:
    """Return the time of a record in UTC, or `no time` if it is unreadable; `digits` may be `milliseconds`."""
    return record.when.isoformat(" ", digits or "seconds").removesuffix("+00:00") if record.has_time else "no time"


def state_text(call: AuditedCall) -> Text:
    """Return how a call ended; a refused one has no outcome."""
    state = call.state
    if call.outcome is None and call.decision is not None and state not in (UNFINISHED, DAMAGED):
        return _add_marks(call, Text("-", "dim"))
    return _add_marks(call, Text(escape(state.upper() if state == UNFINISHED else state), _STYLES.get(state, "")))


def _add_marks(call: AuditedCall, text: Text) -> Text:
    marks = {" LATE": call.is_late, " CONFLICTING": bool(call.conflicting)}
    return text.append("".join(mark for mark, is_so in marks.items() if is_so), "bold red")


def decision_text(call: AuditedCall) -> Text:
    """Return the decision and the reason code."""
    fields = call.fields("decision")
    decision, reason = fields.get("decision"), reason_text(fields)
    text = "-" if decision is None else escape(decision) + (f" ({reason})" if reason else "")
    return Text(text, "" if decision in RAN else "yellow")


def verdict_text(call: AuditedCall) -> Text:
    """Return how a call ended and, unless it was allowed without a decider, who decided what, and why."""
    fields = call.fields("decision")
    refused = call.outcome is None and call.state != UNFINISHED
    text = _add_marks(call, as_text(call.state, "yellow")) if refused else state_text(call)
    decider = decider_text(fields)
    by_decider, reason = f" by {decider}" if decider else "", reason_text(fields)
    if refused:
        return text.append(f"{by_decider}{f' ({reason})' if reason else ''}", "not bold default")
    decision = fields.get("decision", "undecided")
    if not by_decider and decision in ("allowed", call.state):
        return text
    return text.append(f" ({escape(decision)}{by_decider}{f': {reason}' if reason else ''})", "not bold default")


def decider_text(decision: Mapping[str, Any]) -> str:
    """Return the person and the advisor of a decision record; may be blank."""
    deciders = (person_of(decision), decision.get("advisor"))
    return " via ".join(escape(name) for name in deciders if name is not None)


def reason_text(decision: Mapping[str, Any]) -> str:
    """Return the reason code, the rule and the error type of a decision record; may be blank."""
    codes = dict.fromkeys(decision.get(name) for name in ("reason_code", "rule", "error_type"))
    return ", ".join(escape(code) for code in codes if code not in (None, decision.get("decision")))


def duration_text(outcome: Mapping[str, Any]) -> str:
    """Return the duration of an outcome record; blank if it has none."""
    duration = outcome.get("duration")
    return format_seconds(duration) if isinstance(duration, int | float) else ""


def tool_name(call: AuditedCall) -> object:
    """Return the tool's name; for an unknown tool, also the name that the model wrote, if it is stored."""
    requested = call.fields("intent").get("requested_name")
    requested_name = requested.get("text") if isinstance(requested, dict) else None
    name = call.shared_field("tool")
    return name if requested_name is None else f'{name} "{requested_name}"'


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def json_text(value: object) -> str:
    """Return a value as JSON in printable ASCII."""
    return json.dumps(value, indent=2, default=ascii)


def call_json(call: AuditedCall) -> dict[str, Any]:
    """Return a call as `--json` prints it."""
    names = ("call_id", "agent", "tool", "conversation_id", "parent_run_id", "attributes", "trace_id", "span_id")
    decision, outcome = call.fields("decision"), call.fields("outcome")
    return {
        "time": call.when.isoformat() if call.records[0].has_time else None,
        "run_id": call.run_id,
        "iteration": call.iteration,
        "batch_index": call.batch_index,
        **{name: call.shared_field(name) for name in names},
        "principal": call.principal,
        "actors": list(call.actors),
        "state": call.state,
        "decision": decision.get("decision"),
        "decided_by": decision.get("advisor"),
        "by": person_of(decision),
        "reason_code": decision.get("reason_code"),
        "rule": decision.get("rule"),
        "policy_digest": decision.get("policy_digest"),
        "outcome": outcome.get("outcome"),
        "error_type": outcome.get("error_type") or decision.get("error_type"),
        "duration": outcome.get("duration"),
        "late": call.is_late,
        "conflicting": len(call.conflicting),
    }


def make_console(file: TextIO) -> Console:
    """Return a console as wide as the terminal; for a file or a pipe, lines are not wrapped."""
    reconfigure = getattr(file, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not end the listing
    bounded = file.isatty() or "COLUMNS" in os.environ
    return _Console(file=file, width=None if bounded else _WIDE, markup=False, highlight=False, emoji=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error for the command, which ends quietly."""
        raise BrokenPipeError
