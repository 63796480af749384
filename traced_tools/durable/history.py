"""What the log of a durable run says to those who operate it: when what happened, without contents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from traced_tools.core.frozen import frozen
from traced_tools.durable.records import (
    Answered,
    CallBegan,
    CallEnded,
    CallWaits,
    Claimed,
    Finished,
    LifeBegan,
    LifeFailed,
    Paused,
    Record,
    read_record,
)


@frozen
class LoggedRecord:
    """A record without contents.

    Attributes:
        number: its place in the log, from 0.
        recorded_at: when it was made, in UTC.
        life: the number of the life that made it, or that was the last one before it; 0 before the first life.
        kind: what it records, such as `call_began`; `unreadable` if it was altered or is of a later release.
        run_id: the id of a life that begins.
        iteration: the iteration of an answer.
        call_ids: the ids of the calls that it is about.
        tool: the tool of the call that begins or ends; None for a tool that does not exist.
        outcome: how a call, a life or the run ended.
    """

    number: int
    recorded_at: datetime
    life: int
    kind: str
    run_id: str | None = None
    iteration: int | None = None
    call_ids: tuple[str, ...] = ()
    tool: str | None = None
    outcome: str | None = None


def logged_records(rows: Iterable[tuple[int, datetime, str]]) -> list[LoggedRecord]:
    """Return the records of a log without contents.

    Args:
        rows: the number, the time and the JSON of each record, in order.
    """
    reader, records = _Reader(), []
    for number, recorded_at, body in rows:
        try:
            record = read_record(body)
        except ValidationError:  # its text may quote the record
            records.append(LoggedRecord(number, recorded_at, reader.life, "unreadable"))
        else:
            facts = reader.facts(record)
            records.append(LoggedRecord(number, recorded_at, reader.life, record.kind, **facts))
    return records


@dataclass(slots=True)
class _Reader:
    """What the records before say about the next one: the life, and the tools of the calls of the answer."""

    life: int = 0
    tools: dict[str, str] = field(default_factory=dict)

    def facts(self, record: Record) -> dict[str, Any]:
        """Return the fields of a `LoggedRecord` that only some kinds of records have."""
        match record:
            case LifeBegan():
                self.life += 1
                return {"run_id": record.run_id}
            case Answered():
                self.tools = {call.id: call.name for call in record.answer.tool_calls if call.id}
                return {"iteration": record.iteration, "call_ids": tuple(self.tools)}
            case CallBegan():
                return {"call_ids": (record.call_id,), "tool": self.tools.get(record.call_id)}
            case CallEnded(result=result):
                tool = None if result.decision == "unknown_tool" else result.name  # which the model made up
                return {"call_ids": (result.call_id,), "tool": tool, "outcome": result.outcome or result.decision}
            case CallWaits(call=call):
                return {"call_ids": (call.call_id,), "tool": call.tool}
            case Paused():
                return {"call_ids": tuple(call.call_id for call in record.waiting)}
            case Claimed():
                return {"call_ids": tuple(record.decisions)}
            case Finished():
                return {"outcome": record.stop_reason}
            case LifeFailed():
                return {"outcome": record.error_type}
        return {}
