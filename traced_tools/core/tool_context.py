"""What a tool may know of its call and its caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class ToolContext(Mapping[str, Any]):
    """What the caller passed as `tool_context=`, read-only, and which call this is. Never sent to the model.

    A tool that has a parameter annotated `ToolContext` gets it there.

    Attributes:
        call_id: the call's id.
        tool_name: the tool's name.
        iteration: the pass of the loop, from 1; 0 outside a loop.
        conversation_id: the caller's conversation, when it gave one.
        run_id: the run's id.
        deadline: when the time of the run, or of this attempt if that is sooner, is over, on the clock of
            `time.monotonic()`; None without a limit.
        cancelled: whether nobody waits for the tool any more: it was timed out, or the run was cancelled. A blocking
            tool that takes long should look at it now and then, since nothing else can stop it.
    """

    __slots__ = (
        "_values",
        "call_id",
        "cancelled",
        "conversation_id",
        "deadline",
        "iteration",
        "run_id",
        "tool_name",
    )

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        call_id: str = "",
        tool_name: str = "",
        iteration: int = 0,
        conversation_id: str | None = None,
        run_id: str = "",
        deadline: float | None = None,
    ) -> None:
        self._values = values or {}
        self.call_id = call_id
        self.tool_name = tool_name
        self.iteration = iteration
        self.conversation_id = conversation_id
        self.run_id = run_id
        self.deadline = deadline
        self.cancelled = False

    def copy(self) -> ToolContext:
        """Return the same for another attempt, which may be given up while this one goes on."""
        return ToolContext(
            self._values,
            call_id=self.call_id,
            tool_name=self.tool_name,
            iteration=self.iteration,
            conversation_id=self.conversation_id,
            run_id=self.run_id,
            deadline=self.deadline,
        )

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<ToolContext of call {self.call_id!r}: {len(self)} values>"
