"""A place in a run, to which code goes back in any thread, task or callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry import context as otel_context

from traced_tools.run.context import RunContext, current_run, leave_ended_runs, make_current

if TYPE_CHECKING:
    from opentelemetry.context import Context


class RunPlace:
    """A `with` block in which a run and a span of it are current, whatever is current around the block.

    Threads, and callbacks of other libraries, have contexts that know neither the run nor its spans. What was current
    is restored by value: the block may end in another context, where OpenTelemetry refuses a token.

    Args:
        run: the run.
        context: the OpenTelemetry context with the span.
    """

    def __init__(self, run: RunContext, context: Context) -> None:
        self._run = run
        self._context = context

    def __enter__(self) -> Self:
        self._outer_run, self._outer_context = current_run(), otel_context.get_current()
        make_current(self._run)
        if self._context is not self._outer_context:
            otel_context.attach(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        if current_run() is self._run:
            make_current(self._outer_run)
        if otel_context.get_current() is self._context:  # baggage that the block has attached stays
            otel_context.attach(self._outer_context)
        leave_ended_runs()
