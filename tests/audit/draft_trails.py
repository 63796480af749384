"""A trail that keeps drafts in memory, and ways to read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tests.captured import Telemetry, total
from tests.sample_tools import add, fail
from traced_tools import Advisor, ChatClient, ToolResult
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.records import Draft
from traced_tools.errors import AuditUnavailable
from traced_tools.flow import Step, perform
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

RAN = ["intent add", "allowed", "ok"]
"""The story of a call of `add` that ran."""


def person_of(decision: Draft) -> str | None:
    """Return the name of who decided, which is a content of the record."""
    by = decision.contents.get("by")
    return None if by is None else by.text


class KeptTrail:
    """Stands for an `AuditTrail`: keeps what it is given, in order.

    Attributes:
        drafts: what was written and submitted.
        waits: how often somebody waited for a draft.
        timeouts: how long each of them was ready to; None for the trail's own time-out.
        is_out: whether writing fails; the record is kept all the same, as by a trail whose store comes back.
    """

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.waits = 0
        self.timeouts: list[float | None] = []
        self.is_out = False
        self.problem: str | None = None

    def write(self, draft: Draft, timeout: float | None = None) -> Step[None]:
        self.timeouts.append(timeout)
        return perform(self._write, draft)

    def _write(self, draft: Draft) -> None:
        self.waits += 1
        if not any(each is draft for each in self.drafts):  # as who waits again does
            self.submit(draft)
        self.problem = "the disk is full" if self.is_out else None
        if self.is_out:
            raise AuditUnavailable("the record is not durable in time")

    def submit(self, draft: Draft) -> None:
        self.drafts.append(draft)

    def of(self, kind: str) -> list[Draft]:
        """The drafts of a kind."""
        return [draft for draft in self.drafts if draft.kind == kind]

    def one(self, kind: str) -> Draft:
        """The only draft of a kind."""
        (draft,) = self.of(kind)
        return draft

    def stories(self) -> list[list[str]]:
        """What is on record of each call, in the order of the calls within their passes and runs."""
        return stories_of(self.drafts)


def stories_of(drafts: Iterable[Draft]) -> list[list[str]]:
    """The drafts of each call as words, in their order."""
    found: dict[str, dict[Any, list[str]]] = {}  # runs in the order they began: ids of one millisecond have none
    for draft in drafts:
        assert draft.subject is not None
        calls = found.setdefault(draft.subject.run_id, {})
        calls.setdefault((draft.subject.iteration, draft.subject.batch_index), []).append(word_of(draft))
    return [calls[key] for calls in found.values() for key in sorted(calls)]


def word_of(draft: Draft) -> str:
    """The word of a decision or an outcome; of an intent, the tool."""
    if draft.kind == "intent":
        assert draft.subject is not None
        return f"intent {draft.subject.tool}"
    return str(draft.fields[draft.kind])


def auditing(trail: KeptTrail, **options: Any) -> AuditAdvisor:
    """An advisor that records in `trail`."""
    return AuditAdvisor(cast(Any, trail), **options)


def client_of(trail: KeptTrail, turns: list[Any], *advisors: Advisor, tools: Any = (add, fail), **options: Any) -> Any:
    """A client with further advisors and one that records in `trail`."""
    return ChatClient(ScriptedChatModel(turns), tools=tools, advisors=[*advisors, auditing(trail)], **options)


def assert_reconciled(trail: KeptTrail, telemetry: Telemetry) -> None:
    """Each call has one intent and one span, and each decision is counted, on its span, and on record."""
    spans = [each for each in telemetry.spans if each.name.startswith(("execute_tool", "refuse_tool"))]
    assert len(spans) == len(trail.of("intent"))
    decided = [each.attributes[names.TOOL_DECISION] for each in spans if names.TOOL_DECISION in (each.attributes or {})]
    counted = {each.attributes[names.TOOL_DECISION]: 0.0 for each in telemetry.metric(names.TOOL_DECISIONS.name)}
    for point in telemetry.metric(names.TOOL_DECISIONS.name):
        counted[point.attributes[names.TOOL_DECISION]] += total(point)
    assert sum(counted.values()) == len(decided) == len(trail.of("decision"))
    recorded = [each.fields["decision"] for each in trail.of("decision")]
    assert sorted("limited" if each == "repeated" else str(each) for each in decided) == sorted(recorded)
    ids = {f"{span.get_span_context().span_id:016x}" for span in spans}
    assert ids == {draft.subject.span_id for draft in trail.drafts if draft.subject is not None}


class Twice(Advisor):
    """Has each tool run again."""

    name = "twice"

    def __init__(self, order: int) -> None:
        self.order = order

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return await call_next(call)
