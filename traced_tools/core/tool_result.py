"""What became of a requested call, and of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from traced_tools.core.conversion import ToolContent, truncate_content
from traced_tools.core.enums import Decision, ToolOutcome
from traced_tools.core.messages import ImagePart, Message, ToolResultPart, encodable
from traced_tools.core.quick_init import quick_init
from traced_tools.errors import picklable


@quick_init
@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of one requested call, run or refused.

    Attributes:
        call_id: the call's id.
        name: the tool's name, as the model wrote it.
        content: what the model reads.
        images: the images it sees beside that.
        cut: whether `content` is only a part of what the tool said.
        value: what the tool returned, before conversion; None unless it ran and succeeded.
        decision: what was decided about the call: `allowed`, `denied`, `answered` (by an advisor or by hand),
            `approved`, `limited`, `repeated`, `unknown_tool` or `invalid_arguments`.
        outcome: how the tool ended, `ok`, `error` or `timeout`; None for a call that did not run.
        error_type: class of the error, or a word from the closed list.
        error: the exception the tool raised, or the `ToolTimeout` or `InvalidArguments` that stands for what happened.
        advisor: the advisor that decided, when one did.
        reason_code: why it was decided: a code set in code, such as the broken limit or the rule of a policy.
        by: the person or service that approved or refused the call, as the application names them.
        ends_run: whether it is the run's answer, as an advisor decided with `call.end`.

    A pickled result has None for a `value` or an `error` that cannot be pickled.
    """

    call_id: str
    name: str = field(repr=False)
    content: str = field(repr=False)
    images: tuple[ImagePart, ...] = field(default=(), repr=False)
    cut: bool = False
    value: Any = field(default=None, repr=False)
    decision: Decision = "allowed"
    outcome: ToolOutcome | None = None
    error_type: str | None = None
    error: Exception | None = field(default=None, repr=False)
    advisor: str | None = None
    reason_code: str | None = None
    by: str | None = None
    ends_run: bool = False

    def __post_init__(self) -> None:
        if not self.content.isascii():
            object.__setattr__(self, "content", encodable(self.content))

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolResult:
        return replace(self, value=deepcopy(self.value, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return _result, ({**told, "value": picklable(self.value), "error": picklable(self.error)},)

    @property
    def ok(self) -> bool:
        """Whether the tool ran and succeeded."""
        return self.outcome == "ok"

    @property
    def size(self) -> int:
        """Bytes of what the model reads and sees."""
        return len(self.content.encode()) + sum(len(image.data or b"") for image in self.images)

    def limited(self, characters: int) -> ToolResult:
        """Return this result with a content of so many characters at most, marked when it is cut."""
        if len(self.content) <= characters:
            return self
        content = truncate_content(ToolContent(self.content), characters).text
        return replace(self, content=content, cut=True)

    def part(self) -> ToolResultPart:
        """Return this result as the model reads it."""
        failed = self.outcome != "ok" and self.decision != "answered"
        return ToolResultPart(
            call_id=self.call_id, name=self.name, content=self.content, images=self.images, is_error=failed
        )


def _result(told: dict[str, Any]) -> ToolResult:
    return ToolResult(**told)


@quick_init
@dataclass(frozen=True, slots=True)
class ToolExecutionResult:
    """What became of one batch.

    Attributes:
        conversation_history: the conversation that was sent, the model's answer, and the results.
        return_direct: whether the results are the run's answer: each called tool says so and each succeeded.
        results: one per call, in call order.
        ended_by: the result with which an advisor ended the run, the first in call order; None when none did.
    """

    conversation_history: tuple[Message, ...] = field(repr=False)
    return_direct: bool = False
    results: Sequence[ToolResult] = ()
    ended_by: ToolResult | None = None
