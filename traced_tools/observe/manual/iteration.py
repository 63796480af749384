"""An iteration of a loop that the application drives: one model call, and the tool calls that the model asks for."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import context as otel_context

from traced_tools.observe.manual.answer_calls import AnswerCalls
from traced_tools.observe.observations import observe_iteration

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from traced_tools.core.enums import StopReason
    from traced_tools.models.base import ChatResponse
    from traced_tools.observe.manual.place import RunPlace
    from traced_tools.run.context import RunContext
    from traced_tools.tools.toolset import ToolSet


class ManualIteration:
    """An iteration, as a `with` block around it. `ManualRun.iteration` makes them.

    Attributes:
        index: the number of the iteration, from 1.
        limit: the limit that the run has reached; None before that. Ask the model without tools then: a call of this
            iteration is refused, and there is no iteration after it.
        context: the OpenTelemetry context with the span of the iteration.
        response: the last answer of the iteration; None before that.
        calls: the calls of the answer.
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
        self.response: ChatResponse | None = None
        self.calls = AnswerCalls(spent=limit)
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

    def answered(self, response: ChatResponse, offered: ToolSet) -> None:
        """Record the answer, and the tools that the model was offered."""
        self.response, calls = response, response.tool_calls
        self.calls = AnswerCalls(calls, offered, self.limit or self._run.tally.exhausted_budget(self._run.spent()))
        self._observed.requested(len(calls))

    def __repr__(self) -> str:
        return f"<ManualIteration {self.index} of run {self._run.id}>"
