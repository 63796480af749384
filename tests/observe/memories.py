"""Advisors that report what a memory of conversations does, without having one."""

from __future__ import annotations

from typing import Any

from tests.markers import MARKER
from traced_tools import AssistantMessage, BaseAdvisor, ChatClientRequest, TextPart, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ToolResultPart
from traced_tools.core.enums import MemoryOperation
from traced_tools.memory import MessageEntry
from traced_tools.memory.telemetry import memory_failed, observe_compaction, observe_memory
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.observe.observations import observe_missing_results, observe_model_call
from traced_tools.run.context import RunContext
from traced_tools.testing import ScriptedChatModel

CALL = ToolCall("look", {"at": MARKER}, id="c1")
RESULT = ToolResultPart(call_id="c1", name="look", content=f"a result {MARKER}")
ENTRIES = [
    MessageEntry(UserMessage(f"a question {MARKER}"), turn=1, id="e1"),
    MessageEntry(AssistantMessage([TextPart(f"an answer {MARKER}"), CALL]), turn=1, id="e2"),
    MessageEntry(ToolMessage([RESULT]), turn=1, id="e3"),
]
COMPACTED: dict[str, Any] = {
    "entry_id": "e-1",
    "strategy": "tool_results,summary",
    "covered": 12,
    "tokens_before": 900,
    "tokens_after": 300,
    "estimated": True,
    "through": 14,
    "branch": "research",
}
SUMMARIZER = ScriptedChatModel([])
SUMMARIZER.model = "summarizer"


def read_and_store(run: RunContext, iteration: int) -> None:
    """Read three messages of seven, and store two after a conflict."""
    with observe_memory(run, names.SEARCH_MEMORY, iteration) as reading:
        reading.looks_up("recall", f"the words {MARKER}")
        reading.read(3, 4, lambda: ENTRIES)
    with observe_memory(run, names.UPSERT_MEMORY, iteration) as appending:
        appending.conflict()
        appending.stored(2, lambda: ENTRIES[1:])


def summarize(request: ChatClientRequest, **changes: Any) -> None:
    """Compact the conversation by a summary."""
    with observe_compaction(request.run, "tokens", request.iteration) as observed:
        with observe_model_call(request.run, SUMMARIZER, request) as asking:
            asking.answered(ChatResponse(AssistantMessage(f"the summary {MARKER}")), None)
        observed.compacted(**{**COMPACTED, **changes})


def go_without(run: RunContext, operation: MemoryOperation) -> None:
    """Fail in an operation that the run survives."""
    try:
        with observe_memory(run, operation, 0):
            raise OSError(MARKER)
    except OSError as error:
        memory_failed(run, operation, error)


class Remembering(BaseAdvisor):
    """Does whatever a memory does, before each model call that it sees."""

    def __init__(self, order: int = 400) -> None:
        self.name, self.order = "remembering", order

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        run = request.run
        observe_missing_results(run, 2, 1, request.iteration)
        read_and_store(run, request.iteration)
        go_without(run, names.SEARCH_MEMORY)
        go_without(run, names.UPSERT_MEMORY)
        summarize(request)
        with observe_compaction(run, "tokens", request.iteration) as failing:
            failing.failed(ValueError(MARKER), "summary")
        return request
