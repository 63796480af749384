"""An iteration of a loop that the application drives: one model call, and the tool calls that the model asks for."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import context as otel_context

from traced_tools.observe.observations import observe_iteration

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from traced_tools.core.enums import StopReason
    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.models.base import ChatResponse
    from traced_tools.observe.manual.place import RunPlace
    from traced_tools.run.context import RunContext


class ManualIteration:
    """An iteration, as a `with` block around it. `ManualRun.iteration` makes them.

    Attributes:
        index: the number of the iteration, from 1.
        limit: the limit that the run has reached; None before that. Ask the model without tools then: a call of this
            iteration is refused, and there is no iteration after it.
        context: the OpenTelemetry context with the span of the iteration.
        spent: the budget of the run, of tokens or of time, that the last answer used up; None if there is none.
        response: the last answer of the iteration; None before that.
        results: the results of calls, by the call's id.
    """

    context: Context

    def __init__(
        self,
        run: RunContext,
        index: int,
        limit: StopReason | None,
        place: RunPlace | None,
        began: Callable[[ManualIteration], None],
        ended: Callable[[ManualIteration], None],
    ) -> None:
        self.index = index
        self.limit = limit
        self.spent = limit
        self.response: ChatResponse | None = None
        self.results: dict[str, ToolResult] = {}
        self._run = run
        self._place = place
        self._began, self._ended = began, ended

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._place is not None:
                stack.enter_context(self._place)
            self._observed = stack.enter_context(observe_iteration(self._run, self.index))
            self._stack = stack.pop_all()
        self.context = otel_context.get_current()
        self._began(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._ended(self)
        except BaseException as problem:
            self._stack.__exit__(type(problem), problem, problem.__traceback__)
            raise
        self._stack.__exit__(kind, error, traceback)

    def answered(self, response: ChatResponse) -> None:
        """Record the answer, whose calls are those of the iteration."""
        self.response = response
        self.spent = self.limit or self._run.tally.exhausted_budget(self._run.spent())
        self._observed.requested(len(response.tool_calls))

    def place_of(self, call: ToolCall) -> tuple[int, int]:
        """Return the position of a call in the answer, from 0, and the number of calls of the answer."""
        calls = () if self.response is None else self.response.tool_calls
        for index, requested in enumerate(calls):
            if requested.id == call.id:
                return index, len(calls)
        index = max(len(self.results), len(calls))  # the answer was not reported, or the application adds a call
        return index, index + 1

    def open_calls(self) -> list[ToolCall]:
        """Return the calls of the answer that have no result."""
        calls = () if self.response is None else self.response.tool_calls
        return [call for call in calls if call.id not in self.results]

    def __repr__(self) -> str:
        return f"<ManualIteration {self.index} of run {self._run.id}>"
