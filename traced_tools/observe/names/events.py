"""The log-based events, each with its severity and the attributes it may carry."""

from __future__ import annotations

from typing import Final

from traced_tools.observe.names import attributes as at
from traced_tools.observe.names.registry_types import EventType
from traced_tools.observe.names.spans import CHAT_SPAN

_RUN = (at.RUN_ID, at.AGENT_NAME, at.CONVERSATION_ID)
_CALL = (*_RUN, at.ITERATION_INDEX, at.TOOL_NAME, at.TOOL_TYPE, at.TOOL_CALL_ID, at.TOOL_SOURCE)
_WHO_AND_WHY = (at.ADVISOR_NAME, at.REASON_CODE, at.APPROVAL_BY)
_EXCEPTION = (at.EXCEPTION_MESSAGE, at.EXCEPTION_STACKTRACE, at.CONTENT_TRUNCATED)

TOOL_INTENT_EVENT: Final = EventType(
    "traced_tools.tool.intent",
    "INFO",
    "The model asks for a tool; nothing has been decided and nothing has run.",
    (*_CALL, at.TOOL_BATCH_SIZE, at.TOOL_BATCH_INDEX, at.TOOL_ARGUMENTS_SIZE),
    (at.TOOL_REQUESTED_NAME, at.TOOL_CALL_ARGUMENTS, at.CONTENT_TRUNCATED),
)
TOOL_DECISION_EVENT: Final = EventType(
    "traced_tools.tool.decision",
    "INFO",
    "What was decided about the call; a tool that is allowed starts now.",
    (*_CALL, at.TOOL_DECISION, *_WHO_AND_WHY, at.ERROR_TYPE),
    (at.TOOL_REQUESTED_NAME, at.CONTENT_TRUNCATED),
)
TOOL_OUTCOME_EVENT: Final = EventType(
    "traced_tools.tool.outcome",
    "INFO",
    "How a tool that ran has ended.",
    (*_CALL, at.TOOL_OUTCOME, at.TOOL_ATTEMPTS, at.TOOL_RESULT_SIZE, at.ERROR_TYPE),
    (at.TOOL_CALL_RESULT, at.CONTENT_TRUNCATED),
)
LOOP_STOP_EVENT: Final = EventType(
    "traced_tools.loop.stop",
    "INFO",
    "Why the run has ended, and what it used.",
    (
        *_RUN,
        at.REQUEST_MODEL,
        at.LOOP_STOP_REASON,
        at.LOOP_ITERATIONS,
        at.LOOP_TOOL_CALLS,
        at.USAGE_INPUT_TOKENS,
        at.USAGE_OUTPUT_TOKENS,
        at.ERROR_TYPE,
        at.FAILED_STEP,
    ),
)
TOOL_EXCEPTION_EVENT: Final = EventType(
    "gen_ai.execute_tool.exception", "WARN", "A tool raised.", (at.EXCEPTION_TYPE,), _EXCEPTION
)
OPERATION_EXCEPTION_EVENT: Final = EventType(
    "gen_ai.client.operation.exception", "WARN", "A model call raised.", (at.EXCEPTION_TYPE,), _EXCEPTION
)
INFERENCE_DETAILS_EVENT: Final = EventType(
    "gen_ai.client.inference.operation.details",
    "DEBUG",
    "What a chat model was sent and what it answered; only where content is captured on events.",
    tuple(name for name in CHAT_SPAN.attributes if name != at.OPENINFERENCE_KIND),
    tuple(name for name in CHAT_SPAN.content if name != at.EXCEPTION_MESSAGE),  # which has an event of its own
)
_RECORD = (at.AUDIT_CHAIN_ID, at.AUDIT_SEQUENCE, at.AUDIT_HASH)
_RECORD_OF_CALL = (
    *_RECORD,
    *_RUN,
    at.ITERATION_INDEX,
    at.TOOL_NAME,
    at.TOOL_CALL_ID,
    at.TOOL_BATCH_INDEX,
)
AUDIT_INTENT_EVENT: Final = EventType(
    "traced_tools.audit.intent",
    "INFO",
    "The audit trail holds that the model asks for a tool; the body is the record, without texts of contents.",
    (
        *_RECORD_OF_CALL,
        at.TOOL_BATCH_SIZE,
        at.TOOL_SOURCE,
        at.TOOL_ARGUMENTS_SIZE,
        at.PROVIDER_NAME,
        at.RESPONSE_MODEL,
        at.RESPONSE_ID,
    ),
)
AUDIT_DECISION_EVENT: Final = EventType(
    "traced_tools.audit.decision",
    "INFO",
    "The audit trail holds what was decided about a call.",
    (*_RECORD_OF_CALL, at.TOOL_DECISION, *_WHO_AND_WHY, at.ERROR_TYPE),
)
AUDIT_OUTCOME_EVENT: Final = EventType(
    "traced_tools.audit.outcome",
    "INFO",
    "The audit trail holds how a call ended.",
    (*_RECORD_OF_CALL, at.AUDIT_OUTCOME, at.TOOL_ATTEMPTS, at.TOOL_RESULT_SIZE, at.ERROR_TYPE),
)
AUDIT_CHECKPOINT_EVENT: Final = EventType(
    "traced_tools.audit.checkpoint",
    "INFO",
    "The audit trail holds how many records its chain has, and the hash of the last one.",
    _RECORD,
)
AUDIT_GAP_EVENT: Final = EventType(
    "traced_tools.audit.gap",
    "WARN",
    "The audit trail holds that records came late, after what they should have come before, or were lost.",
    _RECORD,
)
AUDIT_ERASURE_EVENT: Final = EventType(
    "traced_tools.audit.erasure",
    "WARN",
    "The audit trail holds that stored texts of contents were erased, for whom and why.",
    _RECORD,
)
EXPORTED_EVENT: Final = EventType(
    "traced_tools.event",
    "INFO",
    "A typed event of a run, whose JSON is the body; only where an `OtlpEventExporter` sends them.",
    (
        *(at.EVENT_TYPE, at.EVENT_ID, at.EVENT_SEQUENCE),
        *(*_RUN, at.ITERATION_INDEX, at.TOOL_NAME, at.TOOL_CALL_ID),
    ),
)
EVENTS: Final = {
    each.name: each
    for each in (
        TOOL_INTENT_EVENT,
        TOOL_DECISION_EVENT,
        TOOL_OUTCOME_EVENT,
        LOOP_STOP_EVENT,
        TOOL_EXCEPTION_EVENT,
        OPERATION_EXCEPTION_EVENT,
        INFERENCE_DETAILS_EVENT,
        AUDIT_INTENT_EVENT,
        AUDIT_DECISION_EVENT,
        AUDIT_OUTCOME_EVENT,
        AUDIT_CHECKPOINT_EVENT,
        AUDIT_GAP_EVENT,
        AUDIT_ERASURE_EVENT,
        EXPORTED_EVENT,
    )
}
