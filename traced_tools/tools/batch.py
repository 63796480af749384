"""The step that runs the tool calls of one answer in parallel."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from time import perf_counter, perf_counter_ns
from types import MappingProxyType
from typing import Any, Final, Literal

from traced_tools.core.approval import Approve, CallDecision, DecidedPause, Denied, PendingCall, Reject, nested_id
from traced_tools.core.enums import Decision
from traced_tools.core.messages import ToolCall, ToolResultPart
from traced_tools.core.tool_definition import definition_digest
from traced_tools.core.tool_input import GivenInput, Provide
from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.flow import Flow
from traced_tools.flow.steps import ParallelFlows
from traced_tools.observe.time_ledger import TimeLedger
from traced_tools.run.context import RunContext
from traced_tools.tools.approval import Approval, check_decision, check_scope, check_unchanged
from traced_tools.tools.augmented_tool import AugmentedTool
from traced_tools.tools.binding import ArgumentBinding
from traced_tools.tools.execution import ToolExecution
from traced_tools.tools.refusals import (
    denied_result,
    ended_result,
    interrupted_result,
    waiting_result,
)
from traced_tools.tools.schema.values import read_only
from traced_tools.tools.toolset import ToolSet

Hold = Literal["call", "batch"]
_NONE_PENDING: Final[Mapping[str, PendingCall]] = MappingProxyType({})
_LIMITED: Final = ("limited", "repeated")
"""The decisions of limits."""


class ExecuteTools(ParallelFlows[ToolResult]):
    """A step that runs the tool calls of one answer in parallel; its result is their results in call order.

    Attributes:
        calls: the tool calls of the model's answer that have no result yet.
    """

    __slots__ = (
        "_approved",
        "_batch",
        "_bound",
        "_cancelled",
        "_cut_ids",
        "_held_back_ns",
        "_hold",
        "_inputs",
        "_iteration",
        "_most_characters",
        "_nested_decisions",
        "_pending",
        "_refusals",
        "_run",
        "_tools",
        "_under_way",
        "calls",
    )

    def __init__(
        self,
        run: RunContext,
        calls: tuple[ToolCall, ...],
        tools: ToolSet,
        iteration: int,
        *,
        max_concurrency: int = sys.maxsize,
        most_characters: int | None = None,
        places: Sequence[tuple[int, int]] = (),
        hold: Hold = "call",
        pending: Mapping[str, PendingCall] = _NONE_PENDING,
        cut_ids: Set[str] = frozenset(),
    ) -> None:
        self._cut_ids = cut_ids
        self._held_back_ns = 0
        self._hold = hold
        self._pending = pending
        self._limit = max_concurrency
        self._batch = places or [(index, len(calls)) for index in range(len(calls))]
        self._most_characters = most_characters
        self.calls = calls
        self._under_way: list[ToolExecution] = []
        self._cancelled = False
        self._run = run
        self._tools = tools
        self._iteration = iteration
        self._refusals: dict[int, ToolResult] = {}
        self._approved: dict[int, Approval] = {}
        self._inputs: dict[int, GivenInput] = {}
        self._nested_decisions: dict[str, dict[str, CallDecision | Denied]] = {}
        self._bound: dict[int, str] = {}
        for index, call in enumerate(calls) if pending else ():
            earlier = pending.get(call.id or "")
            if earlier is not None and earlier.bound:
                self._bound[index] = earlier.bound
            if earlier is not None and earlier.nested is not None:
                self._keep_approval(index, earlier)

    def args(self, call_id: str | None) -> Mapping[str, Any]:
        """Return the arguments that the tool of a call would receive, as a read-only JSON object.

        The arguments are repaired and validated, and include the tool's defaults. The tool gets these defaults, even if
        it computes others each time. Arguments that `augmented` adds are not among them unless the tool receives them,
        too.

        Raises:
            KeyError: if no call of the batch has the id, or the request has no tool with the call's name.
            InvalidArguments: if the arguments are invalid; the tool will not run.
        """
        index = self._places(call_id)[0]
        call = self.calls[index]
        if call.name not in self._tools.by_name:
            raise KeyError(f"the call {call_id!r} names no tool of the request")
        tool = self._tools.by_name[call.name]
        arguments = tool.separate(call.arguments).own if isinstance(tool, AugmentedTool) else call.arguments
        binding = ArgumentBinding(self._tools.invocable(call.name))
        binding.bind(arguments, self._bound.get(index))
        if binding.failure is not None:
            raise binding.failure
        # kept for the call: the tool gets the arguments seen here, even if a default or a validator would give others
        self._bound[index], values = binding.shown()
        arguments_object: Mapping[str, Any] = read_only(values)
        return arguments_object

    def approve(
        self, call_id: str | None, *, by: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a call that requires approval. This replaces an earlier decision of the caller about the call.

        If an advisor changes the arguments, the approval doesn't cover the changed ones.

        Args:
            call_id: the call's id.
            by: the person or service that approves. The audit trail, spans and events have a pseudonym of
                the name, unless the trail stores texts, or content is captured.
            arguments: other arguments for the tool, which are validated, and policies decide about them; None for those
                of the call.

        Raises:
            KeyError: if no call of the batch has the id.
        """
        self.decide(call_id, Approve(by=by, arguments=arguments))

    def decide(self, call_id: str | None, decision: CallDecision | Denied) -> None:
        """Decide about a call that requires approval, or that waits for input.

        The decision is for the arguments with which the call has waited; for the arguments before any advisor, if the
        call has not waited.

        Args:
            call_id: the call's id; of a call in a nested run, the id in `pending`.
            decision: the decision. The `scope` of an approval must be `call`.

        Raises:
            KeyError: if no call of the batch has the id.
            ResumeError: for a decision that the call does not wait for. For an approval of a call that waited, or input
                for it, also if its tool is gone or has another definition or source.
        """
        # all checks come first: two calls may have the same id, and a refused decision must leave both as they are
        if self._decide_nested(call_id or "", decision):
            return
        pending = self._pending.get(call_id or "")
        requests = None if pending is None or pending.input is None else pending.input.requests
        check_decision(call_id or "", requests, decision)
        if pending is not None and isinstance(decision, Approve | Provide):
            digest, tool = definition_digest(pending.definition), self._tools.by_name.get(pending.tool)
            check_unchanged(pending.call_id, pending.tool, digest, pending.source, tool)
        for index in self._places(call_id):
            call = self.calls[index]
            match decision:
                case Approve():
                    self._approve(index, _approval(call, decision, pending))
                case Provide() if pending is not None and pending.input is not None:
                    self._inputs[index] = GivenInput(pending.input, decision, pending.arguments)
                    self._keep_approval(index, pending)
                case Reject() | Denied():
                    self._set(index, ended_result(call, decision, pending))
                case _:
                    raise TypeError("decision must be an Approve, a Reject, a Denied or a Provide")

    def _decide_nested(self, call_id: str, decision: CallDecision | Denied) -> bool:
        """Record a decision about a call of a nested run; return False if no nested run waits for the call."""
        for pending in self._pending.values():
            inner = call_id.removeprefix(nested_id(pending.call_id, ""))
            if pending.nested is not None and inner != call_id and pending.nested.run.waits_for(inner):
                pending.nested.run.check_decisions({inner: decision})
                check_scope(decision)
                self._nested_decisions.setdefault(pending.call_id, {})[inner] = decision
                return True
        return False

    def _keep_approval(self, index: int, pending: PendingCall) -> None:
        """Approve a call whose tool has begun and waited, with the approval that it had when it began."""
        if (approval := pending.approval) is not None:  # perhaps for other arguments than those of the model
            self._approve(index, Approval(approval.by, approval.code, instead=pending.arguments))

    def deny(self, call_id: str | None, reason: str, *, code: str | None = None, by: str | None = None) -> None:
        """Refuse one of the calls. This replaces an earlier decision about the call.

        Args:
            call_id: the call's id.
            reason: what the model reads.
            code: the reason code, set in code, such as the name of a rule. Spans, events, the decisions metric and the
                audit trail record it.
            by: the person or service that refuses. The audit trail, spans and events have a pseudonym of
                the name, unless the trail stores texts, or content is captured.

        Raises:
            KeyError: if no call of the batch has the id.
        """
        for index in self._places(call_id):
            call = self.calls[index]
            self._set(index, denied_result(call.id or "", call.name, reason, code, by))

    def answer(self, call_id: str | None, content: str, value: Any = None) -> None:
        """Set the result of a call, so that its tool does not run; raises `KeyError` if no call has the id."""
        for index in self._places(call_id):
            self.refuse(index, "answered", content, value)

    def refuse(
        self,
        index: int,
        decision: Decision,
        content: str,
        value: Any = None,
        code: str | None = None,
        by: str | None = None,
    ) -> None:
        """Set the decision on the call at `index` (from 0), so that its tool does not run.

        The model reads `content`; `code` is the reason code, and `by` who decided.
        """
        call = self.calls[index]
        self._set(
            index,
            ToolResult(call.id or "", call.name, content, value=value, decision=decision, reason_code=code, by=by),
        )

    def _set(self, index: int, result: ToolResult) -> None:
        """Set the result of a call whose tool does not run. The last decision about a call counts."""
        self._approved.pop(index, None)
        self._refusals[index] = result

    def _approve(self, index: int, approval: Approval) -> None:
        """Approve a call. The last decision about a call counts, but no approval lifts a limit."""
        self._approved[index] = approval
        if index in self._refusals and self._refusals[index].decision not in _LIMITED:
            del self._refusals[index]

    def _places(self, call_id: str | None) -> list[int]:
        places = [index for index, call in enumerate(self.calls) if call.id == call_id]
        if not places:
            raise KeyError(f"no call of this batch has the id {call_id!r}")
        return places

    def waves(self) -> list[list[Flow[ToolResult]]]:
        """Return one flow per call, in groups that run one after the other; sequential tools have their own group.

        Raises:
            RuntimeError: if the step was performed before, because its tools would run again.
        """
        self.check_unperformed()
        now = perf_counter()
        self._under_way = [self._execution(index, now) for index in range(len(self.calls))]
        if self._cancelled:  # checked after the calls are set, so that a concurrent `cancel` is not missed
            self.cancel()
        if len(self._under_way) == 1:  # the common case
            return [[self._under_way[0].result()]]
        waves: list[list[Flow[ToolResult]]] = []
        starts_wave = True
        for index, execution in enumerate(self._under_way):
            is_sequential = self._is_sequential(index)
            if starts_wave or is_sequential:
                waves.append([])
            waves[-1].append(execution.result())
            starts_wave = is_sequential
        return waves

    @property
    def places(self) -> list[int]:
        """The positions of the calls among all calls of the answer, from 0."""
        return [index for index, _ in self._batch]

    @property
    def is_performed(self) -> bool:
        """Whether the step was performed, at least in part."""
        return bool(self._under_way)

    def check_unperformed(self) -> None:
        """Raise `RuntimeError` if the step was performed."""
        if self.is_performed:
            raise RuntimeError(
                "this ExecuteTools step was performed before, and its tools would run again: "
                "pass its results to run.answer(step, results)"
            )

    def _is_sequential(self, index: int) -> bool:
        """Return whether the call at `index` runs a tool that must not run in parallel."""
        tool = self._tools.by_name.get(self.calls[index].name)
        return tool is not None and tool.metadata.sequential and index not in self._refusals

    def _execution(self, index: int, now: float) -> ToolExecution:
        # by position, because a class that is called with names makes a dictionary of them first
        return ToolExecution(
            self._run,
            self._tools,
            self.calls[index],
            self._batch[index],
            self._iteration,
            self._refusals.get(index) or self._open_question(index),
            now,
            self._approved.get(index),
            self._most_characters,
            None if self._hold == "call" else self._are_all_decided,
            self._bound.get(index),
            self._inputs.get(index) or (self._nested_pause(index) if self._pending else None),
            bool(self._cut_ids) and self.calls[index].id in self._cut_ids,
        )

    def _nested_pause(self, index: int) -> DecidedPause | None:
        """Return the nested run for which a call has waited and with which it goes on; None for another call."""
        pending = self._pending.get(self.calls[index].id or "")
        if pending is None or pending.nested is None:
            return None
        return DecidedPause(pending.nested.run, self._nested_decisions.get(pending.call_id, {}), pending.arguments)

    def _open_question(self, index: int) -> ToolResult | None:
        """Return the result of a call that still waits for input; None for another call."""
        pending = self._pending.get(self.calls[index].id or "")
        if pending is None or pending.input is None or index in self._inputs:
            return None
        return waiting_result(pending)

    def _are_all_decided(self) -> bool:
        return all(execution.is_decided for execution in self._under_way)

    def results_so_far(self) -> list[ToolResultPart]:
        """Return the present results of the calls for the model, in call order, for a step that is interrupted."""
        if not self._under_way:  # the step was never performed
            return [interrupted_result(call, has_begun=False) for call in self.calls]
        return [execution.result_so_far() for execution in self._under_way]

    def skip(self) -> None:
        """Emit the spans of the calls, none of which begins, because the application has left them."""
        now = perf_counter()
        for index in range(len(self.calls)):
            self._execution(index, now).emit_skipped_span()

    def on_flow_skipped(self, place: int) -> None:
        """Emit the span of a call that never started because the batch ended early."""
        self._under_way[place].emit_skipped_span()

    def held_back_since(self, began: int) -> None:
        """Record that the caller has let the step wait since `began`, by `perf_counter_ns()`."""
        self._held_back_ns += perf_counter_ns() - began

    def book(self, ledger: TimeLedger, nanoseconds: int) -> None:
        """Book the time of the step: the time of the calls, in proportion, and the time of the run's caller."""
        if self._held_back_ns:
            ledger.book_downstream("reader", self._held_back_ns)
        ledger.book_parallel(nanoseconds - self._held_back_ns, self.ledgers, otherwise="tool")

    @property
    def ledgers(self) -> list[TimeLedger]:
        """The ledgers of the calls that have their own."""
        return [execution.ledger for execution in self._under_way if execution.ledger is not None]

    def cancel(self) -> None:
        """Start no further tool, and mark the running ones as cancelled."""
        self._cancelled = True
        for execution in self._under_way:
            execution.cancel()

    def __repr__(self) -> str:
        return f"<ExecuteTools: {len(self.calls)} calls>"


def _approval(call: ToolCall, decision: Approve, pending: PendingCall | None) -> Approval:
    """Return the approval of a call, for the arguments with which it has waited.

    Raises:
        ValueError: if the decision is about more than the call.
    """
    check_scope(decision)
    if decision.arguments is not None:
        return Approval(decision.by, decision.code, instead=ToolCall(call.name, decision.arguments).arguments)
    return Approval(decision.by, decision.code, None if pending is None else pending.arguments)
