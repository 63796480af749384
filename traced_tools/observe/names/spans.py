"""The spans, each with the attributes that it may carry."""

from __future__ import annotations

from typing import Final

from traced_tools.observe.names import attributes as at
from traced_tools.observe.names.registry_types import SpanType

WHO: Final = (at.PRINCIPAL_ID, at.ACTORS)
_HOOK = (
    at.ADVISOR_NAME,
    at.ADVISOR_HOOK,
    at.ADVISOR_ORDER,
    at.ITERATION_INDEX,
    at.ERROR_TYPE,
    at.OPENINFERENCE_KIND,
)
_ANY_TOOL = (
    at.TOOL_NAME,
    at.TOOL_TYPE,
    at.TOOL_CALL_ID,
    at.AGENT_NAME,
    at.CONVERSATION_ID,
    at.ITERATION_INDEX,
    at.TOOL_DECISION,
    at.ADVISOR_NAME,
    at.REASON_CODE,
    at.POLICY_RULE,
    at.POLICY_DIGEST,
    *at.EVALUATION_OF_POLICY,
    at.APPROVAL_BY,
    at.TOOL_BATCH_SIZE,
    at.TOOL_BATCH_INDEX,
    at.TOOL_ARGUMENTS_SIZE,
    at.TOOL_RESULT_SIZE,
    at.TOOL_SOURCE,
    at.ERROR_TYPE,
    at.OPENINFERENCE_KIND,
)
_USAGE = (
    at.USAGE_INPUT_TOKENS,
    at.USAGE_OUTPUT_TOKENS,
    at.USAGE_CACHE_READ_TOKENS,
    at.USAGE_CACHE_CREATION_TOKENS,
    at.USAGE_CACHE_WRITE_TOKENS,
    at.USAGE_REASONING_TOKENS,
)

_CONVERSATION = (at.SYSTEM_INSTRUCTIONS, at.INPUT_MESSAGES, at.OUTPUT_MESSAGES, at.TOOL_DEFINITIONS)
_EXCEPTION = (at.EXCEPTION_MESSAGE, at.CONTENT_TRUNCATED)
_TOOL_CONTENT = (
    at.TOOL_DESCRIPTION,
    at.TOOL_CALL_ARGUMENTS,
    at.TOOL_CALL_RESULT,
    at.INTENT,
)

AGENT_SPAN: Final = SpanType(
    "invoke_agent {agent}",
    "internal",
    "One run, from the request to the response. It also carries the attributes that the application sets on the run.",
    (
        at.OPERATION_NAME,
        at.AGENT_NAME,
        at.AGENT_VERSION,
        at.INSTRUCTIONS_DIGEST,
        at.TOOLS_DIGEST,
        at.AGENT_POLICY_DIGEST,
        at.AGENT_ID,
        at.REQUEST_MODEL,
        at.CONVERSATION_ID,
        at.USAGE_INPUT_TOKENS,
        at.USAGE_OUTPUT_TOKENS,
        at.RESPONSE_FINISH_REASONS,
        at.ERROR_TYPE,
        at.FAILED_STEP,
        at.RUN_ID,
        *WHO,
        at.LOOP_ITERATIONS,
        at.LOOP_TOOL_CALLS,
        at.LOOP_COST,
        at.LOOP_STOP_REASON,
        *at.TIME_BY_KIND.values(),
        at.LIMIT_MAX_ITERATIONS,
        at.LIMIT_MAX_TOOL_CALLS,
        at.LIMIT_MAX_TOKENS,
        at.LIMIT_MAX_SECONDS,
        at.OPENINFERENCE_KIND,
    ),
    (*_CONVERSATION, *_EXCEPTION, at.USER_ID),
    "AGENT",
)
ITERATION_SPAN: Final = SpanType(
    "iteration",
    "internal",
    "One iteration of the loop: a model call and the tool calls it requests.",
    (at.ITERATION_INDEX, at.ITERATION_TOOL_CALLS, at.ERROR_TYPE, at.OPENINFERENCE_KIND),
    _EXCEPTION,
)
HOOK_SPAN: Final = SpanType(
    "{hook} {advisor}", "internal", "One hook of one advisor.", (*_HOOK, at.ADVISOR_SELF_TIME), _EXCEPTION
)
CHAT_SPAN: Final = SpanType(
    "chat {model}",
    "client",
    "One chat model call; INTERNAL if the model runs in this process.",
    (
        at.OPERATION_NAME,
        at.PROVIDER_NAME,
        at.REQUEST_MODEL,
        at.SERVER_ADDRESS,
        at.SERVER_PORT,
        at.RESEND_COUNT,
        at.REQUEST_STREAM,
        at.REQUEST_TEMPERATURE,
        at.REQUEST_TOP_P,
        at.REQUEST_MAX_TOKENS,
        at.REQUEST_STOP_SEQUENCES,
        at.REQUEST_SEED,
        at.REQUEST_REASONING_LEVEL,
        at.OUTPUT_TYPE,
        at.RESPONSE_ID,
        at.RESPONSE_MODEL,
        at.RESPONSE_FINISH_REASONS,
        at.RESPONSE_TIME_TO_FIRST_CHUNK,
        at.STREAM_READER_WAIT,
        *_USAGE,
        at.CONVERSATION_ID,
        at.CONVERSATION_COMPACTED,
        at.AGENT_NAME,
        at.ITERATION_INDEX,
        at.ERROR_TYPE,
        at.OPENINFERENCE_KIND,
    ),
    (*_CONVERSATION, *_EXCEPTION),
    "LLM",
)
EMBEDDINGS_SPAN: Final = SpanType(
    "embeddings {model}",
    "client",
    "One embedding model call, for one or more texts; INTERNAL if the model runs in this process.",
    (
        at.OPERATION_NAME,
        at.PROVIDER_NAME,
        at.REQUEST_MODEL,
        at.SERVER_ADDRESS,
        at.SERVER_PORT,
        at.AGENT_NAME,
        at.RESEND_COUNT,
        at.RESPONSE_MODEL,
        at.EMBEDDINGS_DIMENSION_COUNT,
        at.USAGE_INPUT_TOKENS,
        at.ERROR_TYPE,
        at.OPENINFERENCE_KIND,
    ),
    _EXCEPTION,
    "EMBEDDING",
)
EXECUTE_TOOL_SPAN: Final = SpanType(
    "execute_tool {tool}",
    "internal",
    "One tool call whose tool ran. Outside the tool loop, it also has the principal and the actors.",
    (
        at.OPERATION_NAME,
        *_ANY_TOOL,
        *WHO,
        at.TOOL_OUTCOME,
        at.TOOL_ATTEMPTS,
        at.TOOL_QUEUE_TIME,
        at.TOOL_ARGUMENTS_REPAIRS,
        at.TOOL_RESULT_CUT,
    ),
    (*_TOOL_CONTENT, *_EXCEPTION, at.USER_ID),
    "TOOL",
)
REFUSE_TOOL_SPAN: Final = SpanType(
    "refuse_tool {tool}",
    "internal",
    "One tool call that was refused before its tool ran.",
    (*_ANY_TOOL, *WHO, at.TOOL_QUEUE_TIME, at.TOOL_ARGUMENTS_REPAIRS, at.TOOL_RESULT_CUT),
    (at.TOOL_REQUESTED_NAME, *_TOOL_CONTENT, at.CONTENT_TRUNCATED, at.USER_ID),
    "TOOL",
)
_MCP = (
    at.MCP_METHOD,
    at.MCP_PROTOCOL_VERSION,
    at.JSONRPC_REQUEST_ID,
    at.RPC_STATUS_CODE,
    at.NETWORK_TRANSPORT,
    at.SERVER_ADDRESS,
    at.SERVER_PORT,
    at.TOOL_SOURCE,
    at.AGENT_NAME,
    at.ERROR_TYPE,
    at.OPENINFERENCE_KIND,
)
MCP_CALL_SPAN: Final = SpanType(
    "tools/call {tool}",
    "client",
    "One call on its way to an MCP server and back. The tool has the name that the server uses.",
    (at.TOOL_NAME, *_MCP),
)
MCP_REQUEST_SPAN: Final = SpanType(
    "{method}",
    "client",
    "One other request to an MCP server, such as `initialize`, `server/discover` or `tools/list`.",
    _MCP,
)
_SERVED = (
    at.MCP_METHOD,
    at.MCP_PROTOCOL_VERSION,
    at.JSONRPC_REQUEST_ID,
    at.RPC_STATUS_CODE,
    at.NETWORK_TRANSPORT,
    at.AGENT_NAME,
    at.ERROR_TYPE,
    at.OPENINFERENCE_KIND,
)
SERVED_CALL_SPAN: Final = SpanType(
    "tools/call {tool}",
    "server",
    "One call of an MCP client to a served tool. It has a link to the span that is current, if that isn't its parent.",
    (at.TOOL_NAME, *_SERVED),
)
SERVED_REQUEST_SPAN: Final = SpanType(
    "{method}",
    "server",
    "One other request of an MCP client, such as `initialize`, `server/discover` or `tools/list`.",
    _SERVED,
)
AWAIT_APPROVAL_SPAN: Final = SpanType(
    "await_approval {tool}",
    "internal",
    "The wait for a decision about one tool call that requires approval.",
    (
        at.TOOL_NAME,
        at.TOOL_CALL_ID,
        at.AGENT_NAME,
        at.CONVERSATION_ID,
        at.ITERATION_INDEX,
        at.TOOL_DECISION,
        at.REASON_CODE,
        at.APPROVAL_BY,
        at.ERROR_TYPE,
        at.OPENINFERENCE_KIND,
    ),
)
RETRIEVAL_SPAN: Final = SpanType(
    at.RETRIEVAL,
    "internal",
    "One search for tools in the index of a tool search, which is in this process; calls of models are inside it.",
    (
        at.OPERATION_NAME,
        at.REQUEST_TOP_K,
        at.RETRIEVAL_TOP_K,
        at.TOOL_SEARCH_INDEX,
        at.TOOL_SEARCH_RESULTS,
        at.TOOL_SEARCH_DISCOVERED,
        at.AGENT_NAME,
        at.CONVERSATION_ID,
        at.ITERATION_INDEX,
        at.ERROR_TYPE,
        at.OPENINFERENCE_KIND,
    ),
    (at.RETRIEVAL_QUERY, at.RETRIEVAL_DOCUMENTS, at.CONTENT_TRUNCATED),
    "RETRIEVER",
)
_STEP_OF_MEMORY = (at.AGENT_NAME, at.CONVERSATION_ID, at.ITERATION_INDEX, at.ERROR_TYPE, at.OPENINFERENCE_KIND)
SEARCH_MEMORY_SPAN: Final = SpanType(
    at.SEARCH_MEMORY,
    "internal",
    "One reading of the conversation: what the model is sent of it, or what was looked up.",
    (at.OPERATION_NAME, at.MEMORY_RECORD_COUNT, at.MEMORY_LEFT_OUT, *_STEP_OF_MEMORY),
    (at.MEMORY_QUERY, at.MEMORY_RECORDS, at.CONTENT_TRUNCATED),
)
UPSERT_MEMORY_SPAN: Final = SpanType(
    at.UPSERT_MEMORY,
    "internal",
    "One appending of messages to the conversation.",
    (at.OPERATION_NAME, at.MEMORY_RECORD_COUNT, at.MEMORY_CONFLICTS, *_STEP_OF_MEMORY),
    (at.MEMORY_RECORDS, at.CONTENT_TRUNCATED),
)
COMPACT_MEMORY_SPAN: Final = SpanType(
    "compact_memory",
    "internal",
    "One attempt to send the model less of the conversation from now on, with the model call of a summary.",
    (
        at.COMPACTION_TRIGGER,
        at.COMPACTION_STRATEGY,
        at.COMPACTION_OUTCOME,
        at.COMPACTION_COVERED,
        at.COMPACTION_TOKENS_BEFORE,
        at.COMPACTION_TOKENS_AFTER,
        at.COMPACTION_TOKENS_ESTIMATED,
        *_STEP_OF_MEMORY,
    ),
)
SPANS: Final = (
    AGENT_SPAN,
    ITERATION_SPAN,
    HOOK_SPAN,
    CHAT_SPAN,
    EMBEDDINGS_SPAN,
    EXECUTE_TOOL_SPAN,
    REFUSE_TOOL_SPAN,
    MCP_CALL_SPAN,
    MCP_REQUEST_SPAN,
    SERVED_CALL_SPAN,
    SERVED_REQUEST_SPAN,
    AWAIT_APPROVAL_SPAN,
    RETRIEVAL_SPAN,
    SEARCH_MEMORY_SPAN,
    UPSERT_MEMORY_SPAN,
    COMPACT_MEMORY_SPAN,
)
