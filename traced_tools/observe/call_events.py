"""The events of a requested tool call."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from traced_tools.observe import names
from traced_tools.observe.content import may_capture
from traced_tools.observe.dispatch import current_span
from traced_tools.observe.event_types import Event, ToolDecided, ToolFinished, ToolIntended, ToolStarted
from traced_tools.observe.genai_messages import from_json
from traced_tools.observe.sanitize import safe_identifier, safe_person_name
from traced_tools.observe.scope import error_type, unfinished

if TYPE_CHECKING:
    from traced_tools.core.enums import Decision
    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.observe.dispatch import RunEvents


class CallWatch:
    """Tells what becomes of a requested call: intended, decided, and where it runs, started and finished.

    Args:
        events: of the run.
        call: what the model asked for.
        tool: the tool of that name, None when there is none.
        iteration: the pass of the loop, 0 outside one.
        place: position among the calls asked for at once, from 0, and how many those are.
    """

    def __init__(
        self, events: RunEvents, call: ToolCall, tool: ToolCallback | None, iteration: int, place: tuple[int, int]
    ) -> None:
        self._events = events
        self._call = call
        self._tool = tool
        self._iteration = iteration
        self._identity = {
            "call_id": safe_identifier(call.id or ""),
            "tool": names.UNKNOWN_TOOL if tool is None else tool.definition.name,
            "source": names.LOCAL if tool is None else tool.metadata.source,
            "batch_index": place[0],
            "batch_size": place[1],
        }
        self._may_tell = may_capture(tool)
        self._decision: Decision = "allowed"
        self._by: str | None = None
        self._intent: str | None = None
        self._arguments: str | None = None
        self._is_decided = False
        self._attempts = 0  # of the tool that is running
        self._began = 0.0

    def __enter__(self) -> CallWatch:
        self._span = current_span()
        self._tell_intention(failing=False)
        return self

    def left_out(self) -> None:
        """Tell of a call that nobody came to: what was intended, and nothing after it."""
        self._span = current_span()
        self._tell_intention(failing=True)

    def _tell_intention(self, *, failing: bool) -> None:
        told = self._told(names.TOOL_CALL_ARGUMENTS, self._call.arguments)
        size = len(self._call.arguments.encode(errors="replace"))
        fields = {"arguments_size": size, "arguments": told}
        self._tell(ToolIntended, fields, failing=failing, keep=(self._call, self._tool), span=self._span)

    def approved(self, by: str | None) -> None:
        """Record that the call is approved, and by which person or service if the application named one."""
        self._decision = "approved"
        self._by = by

    def advised(self, reason: str | None, arguments: str) -> None:
        """Note the reason the model gave, and what the tool is to be called with, when advice lets the call through."""
        if self._is_decided and arguments != self._arguments:  # an advisor has the tool run again, and otherwise
            self._is_decided = False
        self._intent = reason
        self._arguments = arguments

    def started(self) -> None:
        """Note that the tool itself starts now; once per attempt."""
        if not self._is_decided:
            self._tell_decision(self._decision)
        self._attempts += 1
        if self._attempts == 1:
            self._began = perf_counter()
            self._tell(ToolStarted, {})

    def ran(self, result: ToolResult) -> None:
        """Tell what came of the tool, whatever advice makes of it."""
        told = self._told(names.TOOL_CALL_RESULT, result.content)
        fields: dict[str, Any] = {"outcome": result.outcome or "error", "error_type": _word(result.error_type)}
        fields |= {"result_size": result.size, "result": told}
        self._tell(ToolFinished, {**fields, **self._ended()}, keep=result.content)

    def decided(self, result: ToolResult) -> None:
        """Tell of the decision, unless the tool has started and it was told then."""
        if self._attempts:  # the arguments fitted the first attempt and do not fit another
            self.ran(result)
        elif not self._is_decided:
            self._tell_decision(result.decision, result)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._attempts and error is not None:
            fields = {"outcome": unfinished(error), "error_type": error_type(error), **self._ended()}
            self._tell(ToolFinished, fields, failing=True, span=self._span)

    def _ended(self) -> dict[str, Any]:
        attempts, self._attempts = self._attempts, 0
        return {"attempts": attempts, "duration": perf_counter() - self._began}

    def _tell_decision(self, decision: Decision, result: ToolResult | None = None) -> None:
        self._is_decided = True
        told = self._told(names.INTENT, self._intent)
        by = self._by if result is None else result.by
        fields: dict[str, Any] = {
            "decision": decision,
            "intent": told,
            "by": None if by is None else safe_person_name(by),
        }
        if result is not None:
            words = {"reason_code": _word(result.reason_code), "error_type": _word(result.error_type)}
            fields |= {"advisor": result.advisor, **words}
        self._tell(ToolDecided, fields, keep=self._arguments if result is None else None)

    def _told(self, name: str, content: str | None) -> str | None:
        if content is None or not self._may_tell or self._events.content is None:
            return None
        made = content if name == names.INTENT else from_json(content)
        return self._events.told({name: lambda: made}, name)[0]

    def _tell(
        self,
        kind: type[Event],
        fields: dict[str, Any],
        *,
        failing: bool = False,
        keep: Any = None,
        span: dict[str, str] | None = None,
    ) -> None:
        fields = {**self._identity, **fields}
        self._events.tell(kind, self._iteration, fields, failing=failing, keep=keep, span=span)


def _word(text: str | None) -> str | None:
    """Return a word that somebody else set, such as the name of a rule; what is no word may quote content."""
    return None if text is None else safe_identifier(str(text))
