"""The result of a requested tool call, and of a batch of calls."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import field, fields, replace
from typing import Any, Final

from traced_tools.core.approval import PendingCall
from traced_tools.core.enums import Decision, ToolOutcome
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import ImagePart, Message, ToolResultPart, encodable, result_part_of_text
from traced_tools.core.pickling import picklable
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.core.result_conversion import ToolContent, truncate_content

_EDITED: Final = "The call ran with other arguments, which were approved instead of yours: {}. Its result:"
"""What the model reads before a result, so that it doesn't repeat the call with its own arguments."""


@frozen
class ToolResult:
    """The result of one requested call, whether it ran or was refused.

    Attributes:
        call_id: the call's id.
        tool: the tool's name, as the model wrote it.
        content: what the model reads.
        images: images that the model sees in addition.
        cut: whether `content` is only a part of the tool's output.
        value: what the tool returned, before conversion; None unless it ran and succeeded.
        decision: what was decided about the call: `allowed`, `denied`, `answered` (by an advisor or by the caller),
            `approved`, `rejected`, `pending` (it waits for approval), `limited`, `repeated`, `unknown_tool` or
            `invalid_arguments`.
        outcome: how the tool finished: `ok`, `error`, `timeout`, or `unknown` (`ToolOutcomeUnknown`); None for
            a call that did not run.
        error_type: the class of the error, or the value `timeout`, `unknown_tool` or `invalid_arguments`.
        error: the tool's exception, a `ToolTimeout` or an `InvalidArguments`; None if there is none.
        advisor: the name of the advisor that denied or answered the call, if one did.
        reason_code: the reason of the decision as a code, such as the limit that was reached or the rule of a policy.
        rule: the id of the policy's rule that decided about the call; None if no rule did.
        policy: the verdict of the policy that decided about the call; None if no policy did.
        by: the person or service that approved or refused the call, as named by the application.
        edited: the arguments, as JSON text, that were approved instead of the model's; None if none were edited. The
            model reads them before the content.
        ends_run: whether the result is the run's answer because an advisor called `call.end`.
        pending: the call, if it waits for approval; else None.

    In a pickled result, a `value` or `error` that cannot be pickled is None.
    """

    call_id: str
    tool: str = field(repr=False)
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
    rule: str | None = None
    by: str | None = field(default=None, repr=False)
    edited: str | None = field(default=None, repr=False)
    ends_run: bool = False
    pending: PendingCall | None = None
    policy: PolicyVerdict | None = None

    def __post_init__(self) -> None:
        if not self.content.isascii():
            object.__setattr__(self, "content", encodable(self.content))

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolResult:
        return replace(self, value=deepcopy(self.value, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        return _unpickled_result, ({**state, "value": picklable(self.value), "error": picklable(self.error)},)

    @property
    def ok(self) -> bool:
        """Whether the tool ran successfully."""
        return self.outcome == "ok"

    @property
    def size(self) -> int:
        """Bytes of the text and the images that the model receives."""
        return len(self.content.encode()) + sum(len(image.data or b"") for image in self.images)

    def limited(self, characters: int) -> ToolResult:
        """Return this result with at most `characters` of content; a notice in it says if it is cut."""
        if len(self.content) <= characters:
            return self
        content = truncate_content(ToolContent(self.content), characters).text
        return replace(self, content=content, cut=True)

    def part(self) -> ToolResultPart:
        """Return this result as the part of a message that the model reads."""
        is_error = self.outcome != "ok" and self.decision != "answered"
        content = self.content if self.edited is None else f"{_EDITED.format(encodable(self.edited))}\n{self.content}"
        if type(content) is str and not self.images:  # an advisor may have set content of another type
            return result_part_of_text(self.call_id, self.tool, content, is_error=is_error)
        return ToolResultPart(
            call_id=self.call_id, name=self.tool, content=content, images=self.images, is_error=is_error
        )


def _unpickled_result(state: dict[str, Any]) -> ToolResult:
    return ToolResult(**state)


@frozen
class ToolExecutionResult:
    """The results of one batch of calls.

    Attributes:
        conversation_history: the conversation that was sent, the model's answer, and the results.
        return_direct: whether the results are the run's answer: each called tool has `return_direct` and each call
            succeeded or was answered.
        results: one result per call, in call order.
        ended_by: the first result in call order with which an advisor ended the run, or None.
        pending: the calls to decide about, in call order. If a call waits for an agent, they are those of the agent's
            run. `conversation_history` has no result of the calls that wait.
    """

    conversation_history: tuple[Message, ...] = field(repr=False)
    return_direct: bool = False
    results: Sequence[ToolResult] = ()
    ended_by: ToolResult | None = None
    pending: tuple[PendingCall, ...] = ()

    @property
    def waiting(self) -> tuple[PendingCall, ...]:
        """The calls of the batch that wait, in call order."""
        if self.ended_by is not None:
            return ()
        return tuple(result.pending for result in self.results if result.pending is not None)
