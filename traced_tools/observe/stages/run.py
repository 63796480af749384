"""The observation of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from traced_tools.observe.failures import stop_reason_of
from traced_tools.observe.stages.observation import Observation
from traced_tools.observe.stages.subjects import ConversationInput, ModelOutput, ObservedModel

if TYPE_CHECKING:
    from traced_tools.core.enums import StopReason
    from traced_tools.core.limits import LoopLimits
    from traced_tools.core.totals import Totals
    from traced_tools.observe.agent_version import AgentDigests
    from traced_tools.observe.run_telemetry import RunTelemetry


class RunOutput(ModelOutput, Protocol):
    """The response of a run."""

    @property
    def stop_reason(self) -> StopReason:
        """Why the run ended."""


class RunObservation(Observation):
    """A run, from its start to its response.

    Args:
        telemetry: the run's telemetry.
        limits: how far the run may go.
        totals: what the run has used so far.
        model: the model at the end of the chain.
        asked: the request, before its tools are known.

    Attributes:
        model: that model.
        asked: the request.
        knows_tools: whether the request has its tools, so that content capture can respect them.
        limits, totals: as above.
        stop_reason: why the run ended.
        answer: the response; None if the run failed.
        digests: the digests of what the agent is sent; None before they are known.
    """

    __slots__ = ("_telemetry", "answer", "asked", "digests", "knows_tools", "limits", "model", "stop_reason", "totals")

    def __init__(
        self,
        telemetry: RunTelemetry,
        limits: LoopLimits,
        totals: Totals,
        model: ObservedModel,
        conversation: ConversationInput,
    ) -> None:
        self.model = model
        self.asked = conversation
        self.knows_tools = False
        self.limits = limits
        self.totals = totals
        self.stop_reason: StopReason = "error"
        self.answer: ModelOutput | None = None
        self.digests: AgentDigests | None = None
        self._telemetry = telemetry

    @property
    def trace_id(self) -> str | None:
        """The trace's id in hex; None if nothing is traced."""
        trace_id: str | None = self._scope.trace_id
        return trace_id

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the run's span; None if nothing is traced."""
        traceparent: str | None = self._scope.traceparent
        return traceparent

    def began(self, conversation: ConversationInput) -> None:
        """Record the request, now that its tools are known."""
        self.asked = conversation
        self.knows_tools = True
        if self._telemetry.content is not None:
            self._telemetry.guarded(self._telemetry.content.register_tools, conversation.tools)

    def calls(self, model: ObservedModel) -> None:
        """Record the model that the run calls, which code that drives its own loop may not name before."""
        self.model = model

    def identified(self, digests: AgentDigests, *, is_own: bool) -> None:
        """Record what the agent is sent; `is_own` says whether all of it is the client's own."""
        self.digests = digests
        self._telemetry.identified(digests, is_own=is_own)

    def answered(self, response: RunOutput) -> None:
        """Record the response."""
        self.stop_reason = response.stop_reason
        self.answer = response

    def _failed(self, error: BaseException) -> None:
        super()._failed(error)
        self.stop_reason = stop_reason_of(error)
        self.answer = None

    @property
    def answer_to_capture(self) -> ModelOutput | None:
        """The answer, unless it may be the result of a tool with capture disabled."""
        content = self._telemetry.content
        if content is None or not content.may_capture_answer(self.stop_reason, self.totals.tool_calls):
            return None
        return self.answer
