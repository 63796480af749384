"""The observation of a requested tool call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from traced_tools.core.policy_verdict import PolicyVerdict, decision_with
from traced_tools.core.tool_definition import own_name_of
from traced_tools.observe import names
from traced_tools.observe.content import may_capture
from traced_tools.observe.failures import error_type, unfinished
from traced_tools.observe.sanitize import safe_identifier, safe_person_name
from traced_tools.observe.stages.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from traced_tools.core.enums import Decision, PolicyDecision, ToolOutcome
    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.observe.stages.subjects import AdvisedCall
    from traced_tools.observe.time_ledger import TimeLedger
    from traced_tools.observe.typed_events.types import ToolIntended


class ObservedCall(Protocol):
    """What a `ToolCallListener` reads of a requested call, at each event of the call."""

    @property
    def call(self) -> ToolCall:
        """What the model asked for."""

    @property
    def definition(self) -> ToolDefinition | None:
        """What the model knows of the tool; None if there is no such tool."""

    @property
    def own_name(self) -> str | None:
        """The name by which the source itself knows the tool; None if there is no such name."""

    @property
    def pin_changes(self) -> tuple[str, ...]:
        """What differs from the pinned tool of an MCP server."""

    @property
    def may_capture(self) -> bool:
        """Whether arguments, results and reasons of the call may be captured."""

    @property
    def intent(self) -> str | None:
        """The reason that the model stated, if it is known."""

    @property
    def by(self) -> str | None:
        """The person or service that decided, if the application named one."""

    @property
    def principal(self) -> str | None:
        """On whose behalf the run of the call is, if that is known."""

    @property
    def is_cut(self) -> bool:
        """Whether the tool had begun in a run before, whose process ended, so that it does not run in this one."""

    @property
    def runs_with(self) -> str | None:
        """The arguments that the tool runs with, if advisors saw the call; None otherwise."""

    @property
    def returned_text(self) -> str | None:
        """What the tool returned, as the model reads it; None before the tool has finished."""


class ToolCallListener:
    """An advisor that is handed each requested call itself, and not only the events of the call."""

    def on_tool_call(self, call: ObservedCall, event: ToolIntended) -> None:
        """Take a call that the model asks for; called after all `on_event` of `event`, and before any later event.

        Args:
            call: the call. It changes while the call goes on, always before the event of the change.
            event: the event that announces the call.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it does with a call")


class ToolCallObservation(Observation):
    """One requested tool call, from the model's words to the result.

    Args:
        call: what the model asked for.
        tool: the tool of that name; None if there is none.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
        place: position among the calls of the same answer, from 0, and how many these are.
        queued: seconds that the call has waited for its turn.
        may_refuse: whether advisors stand between here and the tool.
        refused: whether the call is refused already.
        skipped: whether the call never starts, because the run has ended.
        ledger: where the time of the call is booked; None if its time is all the tool's.
        principal: on whose behalf the run of the call is.

    Attributes:
        call, tool, iteration, queued, may_refuse, refused, skipped, ledger, principal: as above; `queued` grows by
            the waits for a worker.
        name: the tool's name; `_unknown` for a name that the model made up.
        source: where the tool comes from.
        call_id: the call's id, sanitized.
        batch_index, batch_size: the two parts of `place`.
        repairs: what was repaired before the arguments were valid.
        is_approved: whether the call has an approval.
        intent: the reason that the model stated.
        is_cut: whether the tool had begun in a run before, which was cut off, so that it does not run in this one.
        arguments: the arguments after the advisors, canonical JSON; None if no advisor saw the call.
        changed_arguments: the same, if advisors or who approved the call changed them; else None.
        attempts: how often the tool was started, all executions together.
        returned: the result of the last execution of the tool; None while one goes on.
        result: the result of the call, once it is decided.
        failure: the exception behind `error_type`.
    """

    __slots__ = (
        "_allowed_for",
        "_approved_by",
        "_approved_for",
        "_evaluated",
        "_is_running",
        "_policy",
        "_rule",
        "arguments",
        "attempts",
        "batch_index",
        "batch_size",
        "call",
        "call_id",
        "changed_arguments",
        "failure",
        "intent",
        "is_approved",
        "is_cut",
        "iteration",
        "ledger",
        "may_refuse",
        "name",
        "principal",
        "queued",
        "refused",
        "repairs",
        "result",
        "returned",
        "skipped",
        "source",
        "tool",
    )

    def __init__(
        self,
        call: ToolCall,
        tool: ToolCallback | None,
        iteration: int,
        place: tuple[int, int],
        *,
        queued: float,
        may_refuse: bool,
        refused: bool,
        skipped: bool = False,
        ledger: TimeLedger | None,
        principal: str | None = None,
    ) -> None:
        self.ledger = ledger
        self.principal = principal
        self.call = call
        self.tool = tool
        if tool is None:
            self.name, self.source = names.UNKNOWN_TOOL, names.LOCAL
        else:
            self.name, self.source = tool.definition.name, tool.metadata.source
        self.call_id = safe_identifier(call.id or "")
        self.iteration = iteration
        self.batch_index, self.batch_size = place
        self.queued = queued
        self.may_refuse = may_refuse
        self.refused = refused
        self.skipped = skipped
        self.repairs: tuple[str, ...] = ()
        self.is_approved = self.is_cut = False
        self._approved_by: str | None = None
        self._approved_for: str | None = None
        self._allowed_for: str | None = None
        self._rule: str | None = None
        self._policy: PolicyVerdict | None = None
        self._evaluated: tuple[PolicyVerdict, ...] = ()
        self.intent: str | None = None
        self.arguments: str | None = None
        self.changed_arguments: str | None = None
        self.attempts = 0
        self._is_running = False
        self.returned: ToolResult | None = None
        self.result: ToolResult | None = None
        self.failure: BaseException | None = None

    # The facts, in the order in which they become known.

    def repaired(self, repairs: tuple[str, ...]) -> None:
        """Record what was repaired before the arguments were valid; an advisor or another attempt may add to it."""
        self.repairs += tuple(repair for repair in repairs if repair not in self.repairs) if self.repairs else repairs

    def cut_off(self) -> None:
        """Record that the tool had begun in a run before, which was cut off, so that it does not run in this one."""
        self.is_cut = True

    def approved(self, by: str | None, code: str | None) -> None:
        """Record the approval of the call, who approved it, if the application named them, and its reason code."""
        self.is_approved = True
        self._approved_by = by
        self._approved_for = code

    def provided(self, by: str | None) -> None:
        """Record who gave the input with which the call goes on; who approved it counts more."""
        self._approved_by = by if self._approved_by is None else self._approved_by

    def stated(self, intent: str | None) -> None:
        """Record the reason that the model stated; an advisor may replace it."""
        self.intent = intent

    def advised(self, call: AdvisedCall, *, is_changed: bool) -> None:
        """Record the stated reason, the arguments, the reason code and the rule with which it passes the advisors.

        `is_changed` says whether advisors, or who approved the call, changed the arguments.
        """
        self._events.advised(call.arguments)
        self.intent = call.intent
        self.arguments = call.arguments
        self.changed_arguments = call.arguments if is_changed else None
        self._scope.advised()
        self._allowed_for = call.code
        self._rule = call.rule
        self._policy = call.policy

    def evaluated(self, verdicts: tuple[PolicyVerdict, ...]) -> None:
        """Record the verdicts of policies that are only evaluated, the outermost first; later ones replace them."""
        self._evaluated = verdicts

    def started(self) -> None:
        """Record that the tool starts now; called for each attempt."""
        if not self._is_running:  # the first execution, or one more because an advisor asks for it
            self.returned = self.result = self.failure = self.error_type = None
        self._events.started()  # first, because what a listener raises keeps the tool from running
        self._is_running = True
        self.attempts += 1
        self._scope.started()

    def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        """Record how far the tool is; may be called in any thread, and when the observation is over."""
        self._events.progressed(progress, total, message)

    def stopped(self) -> None:
        """Record that the attempt is over."""
        self._scope.stopped()

    def waited(self, seconds: float) -> None:
        """Record how long an attempt waited for a free worker."""
        self.queued += seconds

    def retrying(self, error_type: str) -> None:
        """Record that an attempt failed with an error of that type and that another one follows."""
        self._scope.retrying(error_type)

    @property
    def late(self) -> Callable[[], None]:
        """Record that an attempt ended after it was given up; may be called when the observation is over."""
        late: Callable[[], None] = self._scope.late
        return late

    def finished(self, result: ToolResult) -> None:
        """Record what came of the tool's last attempt, whatever the advisors make of it."""
        self._is_running = False
        self.returned = result
        self._fails_with(result)
        self._scope.finished()
        self._events.finished()

    def invalid(self, result: ToolResult) -> None:
        """Record that the arguments are invalid, before the text for the model is known, which may fail."""
        self.result = result
        if not self.attempts:
            self._fails_with(result)
            self._scope.decided()

    def decided(self, result: ToolResult) -> None:
        """Record what became of the call."""
        self.result = result
        if self._is_running:  # the arguments were valid for the first attempt and are not for another one
            self.finished(result)
        else:
            if not self.attempts:
                self._fails_with(result)
                self._scope.decided()
            self._events.decided()

    def fails_run(self, error: BaseException) -> None:
        """Record that the run ends with `error`, which is raised because of this call."""
        self._scope.fails_run(error)

    def _fails_with(self, result: ToolResult) -> None:
        self.failure = result.error
        self.error_type = None if result.error_type is None else safe_identifier(str(result.error_type))

    def _failed(self, error: BaseException) -> None:
        if self.error_type is None:
            self.error_type = error_type(error)
            self.failure = error

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.failure = None  # its traceback holds this object

    # What follows from the facts.

    @property
    def definition(self) -> ToolDefinition | None:
        """What the model knows of the tool; None if there is no such tool."""
        return None if self.tool is None else self.tool.definition

    @property
    def own_name(self) -> str | None:
        """The name by which the source itself knows the tool; None if there is no such name."""
        return None if self.tool is None else own_name_of(self.tool.metadata)

    @property
    def pin_changes(self) -> tuple[str, ...]:
        """What differs from the pinned tool of an MCP server."""
        return () if self.tool is None else self.tool.metadata.pin_changes

    @property
    def may_capture(self) -> bool:
        """Whether arguments, results and reasons of the call may be captured."""
        return may_capture(self.tool)

    @property
    def executes(self) -> bool:
        """Whether the call counts as an execution: the tool has started, or nothing could have kept it from that."""
        return self.attempts > 0 or not (self.may_refuse or self.refused)

    @property
    def permission(self) -> Decision:
        """The decision about a call that runs."""
        return "approved" if self.is_approved else "allowed"

    @property
    def decision(self) -> Decision | None:
        """What was decided; None for a call that an advisor's error ended before the tool ran."""
        if self.result is not None:
            return self.result.decision
        return self.permission if self.executes else None

    @property
    def reason_code(self) -> str | None:
        """Why it was decided so, sanitized: the application or a third-party advisor may have chosen it."""
        code = self._approved_for or self._allowed_for if self.result is None else self.result.reason_code
        return None if code is None else safe_identifier(str(code))

    @property
    def rule(self) -> str | None:
        """The policy's rule that decided, sanitized, if one did."""
        rule = self._rule if self.result is None else self.result.rule
        return None if rule is None else safe_identifier(str(rule))

    @property
    def policy_digest(self) -> str | None:
        """The digest of the policy that decided, if one did."""
        return None if (policy := self._enforced) is None else safe_identifier(policy.policy_digest)

    @property
    def _enforced(self) -> PolicyVerdict | None:
        return self._policy if self.result is None else self.result.policy

    def evaluations(self, was: Decision | None) -> tuple[PolicyVerdict, ...]:
        """Return the verdicts of policies that are only evaluated, the outermost first.

        They have what would become of the decision `was`, which is None if nothing was decided.
        """
        if not self._evaluated:
            return ()
        enforced = None if self._enforced is None else self._enforced.decision
        tool_asks = self.tool is not None and self.tool.metadata.requires_approval is True
        return tuple(_compare(evaluation, was, enforced, tool_asks) for evaluation in self._evaluated)

    @property
    def by(self) -> str | None:
        """The person or service that decided, if the application named one."""
        by = self._approved_by if self.result is None else self.result.by
        return None if by is None else safe_person_name(by)

    @property
    def is_raised_by_tool(self) -> bool:
        """Whether the failure is what the tool raised, or its time-out."""
        return self.returned is not None and self.returned.outcome is not None

    @property
    def outcome(self) -> ToolOutcome:
        """How the tool ended, or how the call ended that the run no longer waits for."""
        outcome = None if self.returned is None else self.returned.outcome
        return outcome or unfinished(self.failure)

    @property
    def runs_with(self) -> str | None:
        """The arguments that the tool runs with, if advisors saw the call; None otherwise."""
        return self.arguments if self.result is None else None

    @property
    def returned_text(self) -> str | None:
        """What the tool returned, as the model reads it; None before the tool has finished."""
        return None if self.returned is None else self.returned.content

    def captured_traceback(self) -> str | None:
        """Return the traceback of the tool's error as content capture allows it; None if it does not."""
        traceback: str | None = self._scope.captured_traceback()
        return traceback


def _compare(
    verdict: PolicyVerdict, was: Decision | None, enforced: PolicyDecision | None, tool_asks: bool
) -> PolicyVerdict:
    """Return the verdict of a policy that is only evaluated, sanitized and with what it would change."""
    becomes = None if was is None else decision_with(verdict.decision, was, enforced, tool_asks=tool_asks)
    return replace(
        verdict,
        advisor=safe_person_name(verdict.advisor),
        reason_code=safe_identifier(verdict.reason_code),
        rule=None if verdict.rule is None else safe_identifier(verdict.rule),
        policy_digest=safe_identifier(verdict.policy_digest),
        becomes=becomes,
        changes=becomes != was,
    )
