"""What a tool can learn about its call and its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from traced_tools.core.checks import expect

if TYPE_CHECKING:
    from traced_tools.core.tool_input import GivenInput

OnProgress = Callable[[float, float | None, str | None], object]
"""Takes how far a tool is, the value at which it is done, if known, and what it does now, if known."""


class ToolContext(Mapping[str, Any]):
    """The caller's `tool_context=` as a read-only mapping, and the identity of the call. Never sent to the model.

    A tool receives it in a parameter annotated `ToolContext`.

    Attributes:
        call_id: the call's id.
        tool: the tool's name.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
        conversation_id: the id of the caller's conversation, if it passed one.
        principal: the owner of the conversation, if the caller passed one.
        run_id: the run's id.
        deadline: when the time of the run or of this attempt ends, whichever is first, on the clock of
            `time.monotonic()`; None without a limit.
        cancelled: whether the tool timed out or the run was cancelled. Long-running blocking tools should check it
            regularly, because nothing else can stop them.
        input: the questions that the tool asked with `InputRequired`, and the answers; None unless the call goes on
            with answers.
        on_progress: what `report_progress` calls; None if nothing listens to the progress of the call.
    """

    __slots__ = (
        "_values",
        "call_id",
        "cancelled",
        "conversation_id",
        "deadline",
        "input",
        "iteration",
        "on_progress",
        "principal",
        "run_id",
        "tool",
    )

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        call_id: str = "",
        tool: str = "",
        iteration: int = 0,
        conversation_id: str | None = None,
        principal: str | None = None,
        run_id: str = "",
        deadline: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._values = values or {}
        self.call_id: str = call_id
        self.tool: str = tool
        self.iteration: int = iteration
        self.conversation_id: str | None = conversation_id
        self.principal: str | None = principal
        self.run_id: str = run_id
        self.deadline: float | None = deadline
        self.on_progress: OnProgress | None = on_progress
        self.cancelled: bool = False
        self.input: GivenInput | None = None

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report how far the tool is, as the typed event `tool_progressed`. Any thread may call it.

        Args:
            progress: how far the tool is; it should grow with each report.
            total: the value of `progress` at which the tool is done, if it is known.
            message: what the tool does now. It is content.
        """
        expect("progress", progress, (int, float), "a number")
        expect("total", total, (int, float, type(None)), "a number or None")
        expect("message", message, (str, type(None)), "a str or None")
        if (on_progress := self.on_progress) is not None and not self.cancelled:  # another thread may end it
            on_progress(progress, total, message)

    def copy(self) -> ToolContext:
        """Return a copy for another attempt, which can be cancelled separately."""
        copied = ToolContext(
            self._values,
            call_id=self.call_id,
            tool=self.tool,
            iteration=self.iteration,
            conversation_id=self.conversation_id,
            principal=self.principal,
            run_id=self.run_id,
            deadline=self.deadline,
            on_progress=self.on_progress,
        )
        copied.input = self.input
        return copied

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<ToolContext of call {self.call_id!r}: {len(self)} values>"
