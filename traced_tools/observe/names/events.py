"""The log-based events, each with its severity and the attributes that it may carry."""

from __future__ import annotations

from typing import Final

from traced_tools.observe.names import attributes as at
from traced_tools.observe.names.registry_types import EventType
from traced_tools.observe.names.spans import CHAT_SPAN, WHO

_RUN = (at.RUN_ID, at.AGENT_NAME, at.CONVERSATION_ID)
_OF_RUN = (*_RUN, *WHO)
_CALL = (*_OF_RUN, at.ITERATION_INDEX, at.TOOL_NAME, at.TOOL_TYPE, at.TOOL_CALL_ID, at.TOOL_SOURCE)
_WHO_AND_WHY = (at.ADVISOR_NAME, at.REASON_CODE, at.POLICY_RULE, at.POLICY_DIGEST, at.APPROVAL_BY)
_EXCEPTION = (at.EXCEPTION_MESSAGE, at.EXCEPTION_STACKTRACE, at.CONTENT_TRUNCATED)

TOOL_INTENT_EVENT: Final = EventType(
    "traced_tools.tool.intent",
    "INFO",
    "The model requested a tool call. No decision has been made and no tool has started.",
    (*_CALL, at.TOOL_BATCH_SIZE, at.TOOL_BATCH_INDEX, at.TOOL_ARGUMENTS_SIZE),
    (at.TOOL_REQUESTED_NAME, at.TOOL_CALL_ARGUMENTS, at.CONTENT_TRUNCATED, at.USER_ID),
)
TOOL_DECISION_EVENT: Final = EventType(
    "traced_tools.tool.decision",
    "INFO",
    "The decision on a tool call was made. If the call is allowed, its tool starts next.",
    (*_CALL, at.TOOL_DECISION, *_WHO_AND_WHY, at.ERROR_TYPE),
    (at.TOOL_REQUESTED_NAME, at.TOOL_CALL_ARGUMENTS, at.CONTENT_TRUNCATED, at.USER_ID),
)
POLICY_EVALUATION_EVENT: Final = EventType(
    "traced_tools.policy.evaluation",
    "INFO",
    "A policy that is only evaluated has a verdict about a tool call, which does not change the decision on the call.",
    (*_CALL, at.TOOL_DECISION, *at.EVALUATION_OF_POLICY),
    (at.USER_ID,),
)
TOOL_OUTCOME_EVENT: Final = EventType(
    "traced_tools.tool.outcome",
    "INFO",
    "A tool finished.",
    (*_CALL, at.TOOL_OUTCOME, at.TOOL_ATTEMPTS, at.TOOL_RESULT_SIZE, at.ERROR_TYPE),
    (at.TOOL_CALL_RESULT, at.CONTENT_TRUNCATED, at.USER_ID),
)
LOOP_STOP_EVENT: Final = EventType(
    "traced_tools.loop.stop",
    "INFO",
    "A run ended: its stop reason and usage.",
    (
        *_OF_RUN,
        at.AGENT_VERSION,
        at.AGENT_ID,
        at.REQUEST_MODEL,
        at.LOOP_STOP_REASON,
        at.LOOP_ITERATIONS,
        at.LOOP_TOOL_CALLS,
        at.LOOP_COST,
        at.USAGE_INPUT_TOKENS,
        at.USAGE_OUTPUT_TOKENS,
        at.ERROR_TYPE,
        at.FAILED_STEP,
    ),
    (at.USER_ID,),
)
TOOL_EXCEPTION_EVENT: Final = EventType(
    "gen_ai.execute_tool.exception", "WARN", "A tool raised an exception.", (at.EXCEPTION_TYPE,), _EXCEPTION
)
INFERENCE_EXCEPTION_EVENT: Final = EventType(
    "gen_ai.client.inference.exception",
    "WARN",
    "A chat model call raised an exception.",
    (at.EXCEPTION_TYPE,),
    _EXCEPTION,
    "v0.1.0",
)
OPERATION_EXCEPTION_EVENT: Final = EventType(
    "gen_ai.client.operation.exception",
    "WARN",
    "An embedding model call raised an exception; with the conventions v1.41.0, any model call.",
    (at.EXCEPTION_TYPE,),
    _EXCEPTION,
)
INFERENCE_DETAILS_EVENT: Final = EventType(
    "gen_ai.client.inference.operation.details",
    "DEBUG",
    "The request and response of a chat model call; only emitted if content is captured on events.",
    tuple(name for name in CHAT_SPAN.attributes if name != at.OPENINFERENCE_KIND),
    tuple(name for name in CHAT_SPAN.content if name != at.EXCEPTION_MESSAGE),  # which has its own event
)
MEMORY_COMPACTION_EVENT: Final = EventType(
    "traced_tools.memory.compaction",
    "INFO",
    "A conversation was compacted, so that the model is sent less of it from now on, or that failed.",
    (
        *_OF_RUN,
        at.ITERATION_INDEX,
        at.COMPACTION_TRIGGER,
        at.COMPACTION_STRATEGY,
        at.COMPACTION_OUTCOME,
        at.COMPACTION_COVERED,
        at.COMPACTION_TOKENS_BEFORE,
        at.COMPACTION_TOKENS_AFTER,
        at.COMPACTION_TOKENS_ESTIMATED,
        at.ERROR_TYPE,
    ),
    (at.USER_ID,),
)
MISSING_RESULTS_EVENT: Final = EventType(
    "traced_tools.memory.missing_results",
    "WARN",
    "An earlier run was interrupted, and tool calls that it left without results were answered in the conversation.",
    (*_OF_RUN, at.ITERATION_INDEX, at.MISSING_RESULTS_NOT_RUN, at.MISSING_RESULTS_UNKNOWN),
    (at.USER_ID,),
)
EVALUATION_RESULT_EVENT: Final = EventType(
    "gen_ai.evaluation.result",
    "INFO",
    "A judge evaluated an answer, or failed to; then the event has an error type and no score.",
    (
        *_OF_RUN,
        at.ITERATION_INDEX,
        at.ADVISOR_NAME,
        at.EVALUATION_NAME,
        at.EVALUATION_SCORE,
        at.EVALUATION_LABEL,
        at.RESPONSE_ID,
        at.ERROR_TYPE,
    ),
    (at.EVALUATION_EXPLANATION, at.CONTENT_TRUNCATED, at.USER_ID),
)
SAFEGUARD_BLOCK_EVENT: Final = EventType(
    "traced_tools.safeguard.block",
    "WARN",
    "A safeguard blocked a request or an answer. The event contains neither its text nor the word that it matches.",
    (*_OF_RUN, at.ITERATION_INDEX, at.ADVISOR_NAME, at.SAFEGUARD_WHERE),
    (at.USER_ID,),
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
    "An intent record was stored: the model requested a tool call. The body is the record without content texts.",
    (
        *_RECORD_OF_CALL,
        *WHO,
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
    "A decision record was stored: the decision on a tool call.",
    (*_RECORD_OF_CALL, at.TOOL_DECISION, *_WHO_AND_WHY, at.ERROR_TYPE),
)
AUDIT_OUTCOME_EVENT: Final = EventType(
    "traced_tools.audit.outcome",
    "INFO",
    "An outcome record was stored: how a tool call ended.",
    (*_RECORD_OF_CALL, at.AUDIT_OUTCOME, at.TOOL_ATTEMPTS, at.TOOL_RESULT_SIZE, at.ERROR_TYPE),
)
AUDIT_COMPACTION_EVENT: Final = EventType(
    "traced_tools.audit.compaction",
    "INFO",
    "A compaction record was stored: a conversation was compacted, so that the model is sent less of it.",
    (
        *_RECORD,
        *_RUN,
        at.ITERATION_INDEX,
        at.COMPACTION_TRIGGER,
        at.COMPACTION_STRATEGY,
        at.COMPACTION_COVERED,
        at.COMPACTION_TOKENS_BEFORE,
        at.COMPACTION_TOKENS_AFTER,
        at.COMPACTION_TOKENS_ESTIMATED,
    ),
)
AUDIT_TOOLS_CHANGED_EVENT: Final = EventType(
    "traced_tools.audit.tools_changed",
    "WARN",
    "A record of changed tools was stored: the tools of an MCP server differ from the pinned ones.",
    (*_RECORD, *_RUN, at.ITERATION_INDEX, at.TOOL_SOURCE),
)
AUDIT_CHECKPOINT_EVENT: Final = EventType(
    "traced_tools.audit.checkpoint",
    "INFO",
    "A checkpoint was stored: the number of records in the chain and the hash of the last one.",
    _RECORD,
)
AUDIT_GAP_EVENT: Final = EventType(
    "traced_tools.audit.gap",
    "WARN",
    "A gap record was stored: intents became durable only after their tool started, or records were lost.",
    _RECORD,
)
AUDIT_ERASURE_EVENT: Final = EventType(
    "traced_tools.audit.erasure",
    "WARN",
    "An erasure record was stored: content texts were erased, at whose request and why.",
    _RECORD,
)
EXPORTED_EVENT: Final = EventType(
    "traced_tools.event",
    "INFO",
    "A typed event of a run, with its JSON as the body; only emitted by `OtlpEventExporter`.",
    (
        *(at.EVENT_TYPE, at.EVENT_ID, at.EVENT_SEQUENCE),
        *(*_RUN, at.ITERATION_INDEX, at.TOOL_NAME, at.TOOL_CALL_ID),
    ),
)
EVENTS: Final = {
    event.name: event
    for event in (
        TOOL_INTENT_EVENT,
        TOOL_DECISION_EVENT,
        POLICY_EVALUATION_EVENT,
        TOOL_OUTCOME_EVENT,
        LOOP_STOP_EVENT,
        TOOL_EXCEPTION_EVENT,
        INFERENCE_EXCEPTION_EVENT,
        OPERATION_EXCEPTION_EVENT,
        INFERENCE_DETAILS_EVENT,
        MEMORY_COMPACTION_EVENT,
        MISSING_RESULTS_EVENT,
        EVALUATION_RESULT_EVENT,
        SAFEGUARD_BLOCK_EVENT,
        AUDIT_INTENT_EVENT,
        AUDIT_DECISION_EVENT,
        AUDIT_OUTCOME_EVENT,
        AUDIT_COMPACTION_EVENT,
        AUDIT_TOOLS_CHANGED_EVENT,
        AUDIT_CHECKPOINT_EVENT,
        AUDIT_GAP_EVENT,
        AUDIT_ERASURE_EVENT,
        EXPORTED_EVENT,
    )
}
