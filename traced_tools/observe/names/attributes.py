"""The attributes of spans, metrics and events, and the constant values of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traced_tools.core.enums import (
    AUDIT_OUTCOME_VALUES,
    AUDIT_RECORD_KINDS,
    COMPACTION_OUTCOMES,
    DECISIONS,
    DROP_REASONS,
    HOOKS,
    ITERATION_OUTCOMES,
    MCP_OMISSIONS,
    MCP_TRANSPORTS,
    OPENINFERENCE_KINDS,
    OUTPUT_TYPES,
    POLICY_DECISIONS,
    REPAIRS,
    RESUME_REFUSALS,
    RETRY_REASONS,
    RUN_STATUSES,
    SAFEGUARDED,
    STOP_REASONS,
    TIME_KINDS,
    TOOL_OUTCOMES,
    Conventions,
    MemoryOperation,
    TimeKind,
)
from traced_tools.core.enums import LOCAL as LOCAL
from traced_tools.observe.names.registry_types import Attribute, AttributeType

SCOPE: Final = "traced_tools"
UNKNOWN_TOOL: Final = "_unknown"
"""Replaces a tool name that no registered tool has, because the model made the name up."""
OTHER: Final = "_OTHER"
"""Replaces a value that is too long, malformed, or beyond the cardinality limit."""
CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"
MAX_LABEL_VALUES: Final = 32
"""The default number of distinct values of a label for each owner, such as a tool."""
MAX_AGENTS: Final = 128
MAX_VERSIONS: Final = 8
"""The number of an agent's versions that metrics of a process tell apart."""
MAX_MCP_TOOLS: Final = 512
"""The number of a server's tools that metrics tell apart: a server can list others all the time."""

ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(
    name: str, kind: AttributeType, brief: str, values: tuple[str, ...] = (), only: Conventions | None = None
) -> str:
    ATTRIBUTES[name] = Attribute(name, kind, brief, values, only)
    return name


# Single values. Values of closed lists are in `words`.

CHAT: Final = "chat"
EMBEDDINGS: Final = "embeddings"
EXECUTE_TOOL: Final = "execute_tool"
REFUSE_TOOL: Final = "refuse_tool"
RETRIEVAL: Final = "retrieval"
INVOKE_AGENT: Final = "invoke_agent"
SEARCH_MEMORY: Final[MemoryOperation] = "search_memory"
UPSERT_MEMORY: Final[MemoryOperation] = "upsert_memory"
FUNCTION: Final = "function"
MESSAGES_READ: Final = "read"
MESSAGES_STORED: Final = "stored"
MESSAGES_LEFT_OUT: Final = "left_out"
EVALUATED: Final = "evaluated"
RESULTS_NOT_RUN: Final = "not_run"
RESULTS_UNKNOWN: Final = "unknown"
TOKEN_INPUT: Final = "input"
TOKEN_OUTPUT: Final = "output"
MODALITY_UNKNOWN: Final = "unknown"
OUTPUT_JSON: Final = "json"
TOOLS_CALL: Final = "tools/call"
TOOL_ERROR: Final = "tool_error"
"""The conventions' `error.type` of a tool call whose result says that the tool failed."""

# Attributes of the conventions.

OPERATION_NAME: Final = _attribute(
    "gen_ai.operation.name",
    "string",
    "The operation.",
    (CHAT, EMBEDDINGS, EXECUTE_TOOL, INVOKE_AGENT, RETRIEVAL, SEARCH_MEMORY, UPSERT_MEMORY),
)
PROVIDER_NAME: Final = _attribute("gen_ai.provider.name", "string", "The provider of the model.")
REQUEST_MODEL: Final = _attribute("gen_ai.request.model", "string", "The requested model.")
REQUEST_STREAM: Final = _attribute(
    "gen_ai.request.stream", "boolean", "True if the response was streamed, else absent."
)
RESEND_COUNT: Final = _attribute(
    "http.request.resend_count", "int", "Number of times the request was resent, if it was."
)
RESPONSE_STATUS: Final = _attribute(
    "http.response.status_code", "int", "HTTP status of the provider's response, if there was one."
)
REQUEST_TEMPERATURE: Final = _attribute("gen_ai.request.temperature", "double", "The requested sampling temperature.")
REQUEST_TOP_P: Final = _attribute("gen_ai.request.top_p", "double", "The requested top-p (nucleus sampling) value.")
REQUEST_MAX_TOKENS: Final = _attribute("gen_ai.request.max_tokens", "int", "The maximum number of output tokens.")
REQUEST_STOP_SEQUENCES: Final = _attribute(
    "gen_ai.request.stop_sequences", "string[]", "Texts at which the model stops."
)
REQUEST_SEED: Final = _attribute("gen_ai.request.seed", "int", "The requested seed.")
REQUEST_REASONING_LEVEL: Final = _attribute(
    "gen_ai.request.reasoning.level", "string", "The requested reasoning effort, as the provider names it."
)
OUTPUT_TYPE: Final = _attribute(
    "gen_ai.output.type", "string", "The requested output type, if the request sets one.", OUTPUT_TYPES
)
RESPONSE_ID: Final = _attribute("gen_ai.response.id", "string", "The provider's id of the response.")
RESPONSE_MODEL: Final = _attribute("gen_ai.response.model", "string", "The model that generated the response.")
RESPONSE_FINISH_REASONS: Final = _attribute("gen_ai.response.finish_reasons", "string[]", "Why the model stopped.")
RESPONSE_TIME_TO_FIRST_CHUNK: Final = _attribute(
    "gen_ai.response.time_to_first_chunk",
    "double",
    "Seconds from the request to the first chunk of a streamed response.",
)
USAGE_INPUT_TOKENS: Final = _attribute("gen_ai.usage.input_tokens", "int", "Input tokens, including cached tokens.")
USAGE_OUTPUT_TOKENS: Final = _attribute(
    "gen_ai.usage.output_tokens", "int", "Output tokens, including reasoning tokens."
)
USAGE_CACHE_READ_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", "Input tokens read from a cache."
)
USAGE_CACHE_CREATION_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_creation.input_tokens", "int", "Input tokens written to a cache.", only="v1.41.0"
)
USAGE_CACHE_WRITE_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_write.input_tokens", "int", "Input tokens written to a cache.", only="v0.1.0"
)
USAGE_REASONING_TOKENS: Final = _attribute(
    "gen_ai.usage.reasoning.output_tokens", "int", "Output tokens used for reasoning."
)
EMBEDDINGS_DIMENSION_COUNT: Final = _attribute("gen_ai.embeddings.dimension.count", "int", "Length of each vector.")
CONVERSATION_ID: Final = _attribute(
    "gen_ai.conversation.id", "string", "The conversation id that the caller passed, if any."
)
CONVERSATION_COMPACTED: Final = _attribute(
    "gen_ai.conversation.compacted",
    "boolean",
    "True for the first model call after the conversation was compacted, else absent.",
)
MEMORY_RECORD_COUNT: Final = _attribute(
    "gen_ai.memory.record.count", "int", "Number of messages that were read from memory or stored in it."
)
MEMORY_QUERY: Final = _attribute("gen_ai.memory.query.text", "string", "The words that the model looked up in memory.")
MEMORY_RECORDS: Final = _attribute(
    "gen_ai.memory.records", "any", "The messages that were read from memory or stored in it, with the ids of entries."
)
REQUEST_TOP_K: Final = _attribute(
    "gen_ai.request.top_k", "double", "The maximum number of results of a search.", only="v1.41.0"
)
RETRIEVAL_TOP_K: Final = _attribute(
    "gen_ai.retrieval.top_k", "int", "The maximum number of results of a search.", only="v0.1.0"
)
RETRIEVAL_QUERY: Final = _attribute("gen_ai.retrieval.query.text", "string", "What a search looked for.")
RETRIEVAL_DOCUMENTS: Final = _attribute(
    "gen_ai.retrieval.documents", "any", "What a search found: the name and the score of each tool, best first."
)
AGENT_NAME: Final = _attribute("gen_ai.agent.name", "string", "The name of the agent: the client's `name`.")
AGENT_VERSION: Final = _attribute(
    "gen_ai.agent.version",
    "string",
    "The version of the agent: the client's `version`, else the digest of its instructions, tools and policies. In "
    f"metrics, `{OTHER}` for requests with other instructions or tools than the client's, and beyond {MAX_VERSIONS} "
    "versions of an agent in a process.",
)
INSTRUCTIONS_DIGEST: Final = _attribute(
    "traced_tools.agent.instructions.digest",
    "string",
    "The first 16 hex digits of the SHA-256 of the instructions that the run began with; of their HMAC, if "
    "`TRACED_TOOLS_PSEUDONYM_KEY` has a key.",
)
TOOLS_DIGEST: Final = _attribute(
    "traced_tools.agent.tools.digest",
    "string",
    "The first 16 hex digits of a SHA-256 of the definitions of the run's tools, in any order.",
)
AGENT_POLICY_DIGEST: Final = _attribute(
    "traced_tools.agent.policy.digest",
    "string",
    "The digest of the policy of the run's `PolicyAdvisor`; of several, a digest of their digests.",
)
AGENT_ID: Final = _attribute(
    "gen_ai.agent.id", "string", "The stable id of the agent: the client's `agent_id`, if it has one."
)
TOOL_NAME: Final = _attribute(
    "gen_ai.tool.name", "string", f"The tool, or `{UNKNOWN_TOOL}` if no registered tool has the requested name."
)
TOOL_TYPE: Final = _attribute("gen_ai.tool.type", "string", "The type of the tool.", (FUNCTION,))
TOOL_CALL_ID: Final = _attribute("gen_ai.tool.call.id", "string", "The id of the tool call, which its result repeats.")
TOKEN_TYPE: Final = _attribute("gen_ai.token.type", "string", "Input or output tokens.", (TOKEN_INPUT, TOKEN_OUTPUT))
SERVER_ADDRESS: Final = _attribute("server.address", "string", "Host of the endpoint of a model or of an MCP server.")
SERVER_PORT: Final = _attribute("server.port", "int", "Port of the endpoint of a model or of an MCP server.")
ERROR_TYPE: Final = _attribute("error.type", "string", "The class of the error, or a value of a closed list.")

INPUT_MESSAGES: Final = _attribute("gen_ai.input.messages", "any", "The messages that were sent to the model.")
OUTPUT_MESSAGES: Final = _attribute("gen_ai.output.messages", "any", "The model's response.")
SYSTEM_INSTRUCTIONS: Final = _attribute("gen_ai.system_instructions", "any", "The system messages.")
TOOL_DEFINITIONS: Final = _attribute("gen_ai.tool.definitions", "any", "The tools that the model may call.")
TOOL_DESCRIPTION: Final = _attribute(
    "gen_ai.tool.description", "string", "The tool's description, as sent to the model."
)
TOOL_CALL_ARGUMENTS: Final = _attribute("gen_ai.tool.call.arguments", "any", "The arguments of the tool call.")
TOOL_CALL_RESULT: Final = _attribute("gen_ai.tool.call.result", "any", "The tool's result, as sent to the model.")
TOKEN_MODALITY: Final = _attribute(
    "gen_ai.token.modality",
    "string",
    "The content type of the tokens, which providers rarely report.",
    (MODALITY_UNKNOWN,),
)
EVALUATION_NAME: Final = _attribute("gen_ai.evaluation.name", "string", "The name of the evaluation of an answer.")
EVALUATION_SCORE: Final = _attribute("gen_ai.evaluation.score.value", "double", "The score of the answer, from 0 to 1.")
EVALUATION_LABEL: Final = _attribute(
    "gen_ai.evaluation.score.label",
    "string",
    "What the score means: the label that the judge set, else `pass` or `fail`.",
)
EVALUATION_EXPLANATION: Final = _attribute(
    "gen_ai.evaluation.explanation", "string", "The judge's feedback about the answer."
)
EXCEPTION_TYPE: Final = _attribute("exception.type", "string", "The class of the exception.")
EXCEPTION_MESSAGE: Final = _attribute("exception.message", "string", "The text of the exception.")
EXCEPTION_STACKTRACE: Final = _attribute("exception.stacktrace", "string", "The stack trace of the exception.")

MCP_METHOD: Final = _attribute(
    "mcp.method.name",
    "string",
    f"The method of the request to the MCP server; `{OTHER}` if the protocol has no such method.",
)
MCP_PROTOCOL_VERSION: Final = _attribute(
    "mcp.protocol.version", "string", "The revision of the Model Context Protocol that client and server agreed on."
)
JSONRPC_REQUEST_ID: Final = _attribute("jsonrpc.request.id", "string", "The id of the request on its connection.")
RPC_STATUS_CODE: Final = _attribute(
    "rpc.response.status_code", "string", "The code of the JSON-RPC error, if the server answered with one."
)
NETWORK_TRANSPORT: Final = _attribute(
    "network.transport", "string", "How client and MCP server are connected: by stdio, or by HTTP.", MCP_TRANSPORTS
)

# An attribute of another convention.

OPENINFERENCE_KIND: Final = _attribute(
    "openinference.span.kind", "string", "The OpenInference kind of the span, if enabled.", OPENINFERENCE_KINDS
)

# Attributes of our own.

RUN_ID: Final = _attribute(
    "traced_tools.run.id", "string", "Time-ordered id of the run in traces, events and audit records."
)
ITERATION_INDEX: Final = _attribute("traced_tools.iteration.index", "int", "Number of the iteration, from 1.")
ITERATION_TOOL_CALLS: Final = _attribute(
    "traced_tools.iteration.tool_calls", "int", "Number of tool calls that the model requested in the iteration."
)
ITERATION_OUTCOME: Final = _attribute(
    "traced_tools.iteration.outcome", "string", "How the iteration ended.", ITERATION_OUTCOMES
)
LOOP_ITERATIONS: Final = _attribute(
    "traced_tools.loop.iterations",
    "int",
    "Number of iterations in the run. The iteration that a resumed run continues counts in the run that paused.",
)
LOOP_TOOL_CALLS: Final = _attribute(
    "traced_tools.loop.tool_calls",
    "int",
    "Number of tool calls in the run: calls that the model requested, and calls that a resumed run found waiting.",
)
LOOP_COST: Final = _attribute(
    "traced_tools.loop.cost",
    "double",
    "Cost of the run's own model calls in US dollars, by the client's price table. Nested runs have their own.",
)
LOOP_STOP_REASON: Final = _attribute("traced_tools.loop.stop_reason", "string", "Why the run ended.", STOP_REASONS)
FAILED_STEP: Final = _attribute(
    "traced_tools.failed_step",
    "string",
    "The step in which the error that failed the run was raised: the name of its span, then the type of the error.",
)
TIME_KIND: Final = _attribute("traced_tools.time.kind", "string", "What the time of a run went to.", TIME_KINDS)
TIME_MEANINGS: Final[dict[TimeKind, str]] = {
    "model": "Calls of the model, without the time of advisors and readers of its answer.",
    "tool": "Calls of tools.",
    "hook": "Hooks of advisors.",
    "chunk": "Passing the chunks of streamed answers on, through `on_chunk` of the advisors.",
    "queue": "Tool calls that waited for their turn.",
    "approval": "Tool calls that waited for a decision.",
    "reader": "The reader of a stream, or the code that drives the run.",
    "own": "The package itself.",
}
TIME_BY_KIND: Final[Mapping[TimeKind, str]] = {
    kind: _attribute(f"traced_tools.time.{kind}", "double", f"Seconds of the run. {meaning}")
    for kind, meaning in TIME_MEANINGS.items()
}
STREAM_READER_WAIT: Final = _attribute(
    "traced_tools.stream.reader_wait",
    "double",
    "Seconds that the model's answer waited for the reader of the stream, or for the code that drives the run.",
)
LIMIT_MAX_ITERATIONS: Final = _attribute(
    "traced_tools.loop.limit.max_iterations", "int", "The maximum number of iterations of the run."
)
LIMIT_MAX_TOOL_CALLS: Final = _attribute(
    "traced_tools.loop.limit.max_tool_calls", "int", "The maximum number of tool calls of the run."
)
LIMIT_MAX_TOKENS: Final = _attribute(
    "traced_tools.loop.limit.max_tokens", "int", "The maximum number of tokens of the run."
)
LIMIT_MAX_SECONDS: Final = _attribute(
    "traced_tools.loop.limit.max_seconds", "double", "The maximum duration of the run in seconds."
)
ADVISOR_NAME: Final = _attribute(
    "traced_tools.advisor.name", "string", "The name of the advisor, which is set in code."
)
ADVISOR_HOOK: Final = _attribute("traced_tools.advisor.hook", "string", "The hook that ran.", HOOKS)
ADVISOR_ORDER: Final = _attribute(
    "traced_tools.advisor.order", "int", "The advisor's order in the chain; lower is outer."
)
ADVISOR_SELF_TIME: Final = _attribute(
    "traced_tools.advisor.self_time", "double", "Seconds spent in the advisor itself, without downstream work."
)
RETRY_REASON: Final = _attribute(
    "traced_tools.answer.retry_reason", "string", "Why the model was asked for another answer.", RETRY_REASONS
)
SAFEGUARD_WHERE: Final = _attribute(
    "traced_tools.safeguard.where", "string", "What a safeguard blocked: the request or the answer.", SAFEGUARDED
)
TOOL_REQUESTED_NAME: Final = _attribute(
    "traced_tools.tool.requested_name", "string", "The name that the model requested, if no registered tool has it."
)
TOOL_OUTCOME: Final = _attribute(
    "traced_tools.tool.outcome", "string", "How the tool's execution ended.", TOOL_OUTCOMES
)
TOOL_DECISION: Final = _attribute("traced_tools.tool.decision", "string", "The decision on the tool call.", DECISIONS)
TOOL_ATTEMPTS: Final = _attribute(
    "traced_tools.tool.attempts", "int", "Number of times the tool was started; one span covers all attempts."
)
TOOL_BATCH_SIZE: Final = _attribute("traced_tools.tool.batch_size", "int", "Number of calls in the model's response.")
TOOL_BATCH_INDEX: Final = _attribute(
    "traced_tools.tool.batch_index", "int", "Index of the call in the model's response, from 0."
)
TOOL_QUEUE_TIME: Final = _attribute(
    "traced_tools.tool.queue_time", "double", "Seconds the call waited for its turn in the batch and for a free worker."
)
TOOL_ARGUMENTS_SIZE: Final = _attribute("traced_tools.tool.arguments.size", "int", "Size of the arguments in bytes.")
TOOL_ARGUMENTS_REPAIRS: Final = _attribute(
    "traced_tools.tool.arguments.repairs", "string[]", "The repairs that made the arguments valid.", REPAIRS
)
TOOL_RESULT_SIZE: Final = _attribute(
    "traced_tools.tool.result.size", "int", "Size in bytes of the result, as sent to the model."
)
TOOL_RESULT_CUT: Final = _attribute(
    "traced_tools.tool.result.cut", "boolean", "True if only a part of the result is sent to the model, else absent."
)
TOOL_SOURCE: Final = _attribute(
    "traced_tools.tool.source", "string", f"`{LOCAL}`, or the configured name of the MCP server."
)
MCP_OMISSION: Final = _attribute(
    "traced_tools.mcp.omission", "string", "Why a tool of an MCP server is not offered.", MCP_OMISSIONS
)
REASON_CODE: Final = _attribute(
    "traced_tools.tool.reason_code",
    "string",
    "The reason for the decision: a code set in source code, such as the name of a rule.",
)
POLICY_RULE: Final = _attribute(
    "traced_tools.policy.rule",
    "string",
    "The id of the policy's rule that decided about the call, or whose predicate failed; absent if no rule did.",
)
POLICY_DIGEST: Final = _attribute(
    "traced_tools.policy.digest",
    "string",
    "The digest of the policy that decided about the call: 16 hexadecimal digits; absent if no policy did.",
)
POLICY_MODE: Final = _attribute(
    "traced_tools.policy.mode",
    "string",
    "Present if a policy that is only evaluated has a verdict about the call, else absent.",
    (EVALUATED,),
)
EVALUATED_ADVISOR: Final = _attribute(
    "traced_tools.policy.evaluated.advisor", "string", "The name of the advisor whose policy is only evaluated."
)
EVALUATED_DECISION: Final = _attribute(
    "traced_tools.policy.evaluated.decision",
    "string",
    "What the policy that is only evaluated decides about the call.",
    POLICY_DECISIONS,
)
EVALUATED_CODE: Final = _attribute(
    "traced_tools.policy.evaluated.reason_code",
    "string",
    "Why the policy that is only evaluated decides so: the id of its rule, `policy_default` or `policy_error`.",
)
EVALUATED_RULE: Final = _attribute(
    "traced_tools.policy.evaluated.rule",
    "string",
    "The id of its rule that is for the call, or whose predicate failed; absent if no rule is for the call.",
)
EVALUATED_DIGEST: Final = _attribute(
    "traced_tools.policy.evaluated.digest", "string", "The digest of the policy that is only evaluated."
)
EVALUATED_BECOMES: Final = _attribute(
    "traced_tools.policy.evaluated.becomes",
    "string",
    "What `traced_tools.tool.decision` would be if this policy were enforced.",
)
EVALUATED_CHANGES: Final = _attribute(
    "traced_tools.policy.evaluated.changes",
    "boolean",
    "True if the decision on the tool call would be another one if this policy were enforced, else absent.",
)
APPROVAL_BY: Final = _attribute(
    "traced_tools.approval.by",
    "string",
    "The person or service that approved or refused the call, as named by the application if content is captured, "
    "else a keyed pseudonym; never a metric label.",
)
USER_ID: Final = _attribute(
    "user.id",
    "string",
    "The principal: on whose behalf the run is. An attribute of this name that the application sets on the run counts "
    "instead.",
)
PRINCIPAL_ID: Final = _attribute(
    "traced_tools.principal.id",
    "string",
    "A keyed pseudonym of the principal, on whose behalf the run is, unless `user.id` has the name; never a metric "
    "label.",
)
ACTORS: Final = _attribute(
    "traced_tools.actors",
    "string[]",
    "Which agents, tools and MCP clients stand between the principal and the run, the outermost first, such as "
    "`agent:planner`, `tool:ask_billing`; never a metric label.",
)
RESUME_REFUSAL: Final = _attribute(
    "traced_tools.resume.refusal", "string", "Why a run that waited in a pending store can't resume.", RESUME_REFUSALS
)
DURABLE_RUN_STATUS: Final = _attribute(
    "traced_tools.durable_run.status",
    "string",
    "Where a durable run is, or was before its next life.",
    RUN_STATUSES,
)
INTENT: Final = _attribute("traced_tools.intent", "string", "The model's stated reason for the call.")
MEMORY_LEFT_OUT: Final = _attribute(
    "traced_tools.memory.left_out",
    "int",
    "Number of messages of the conversation that are not in what the model is sent.",
)
MEMORY_CONFLICTS: Final = _attribute(
    "traced_tools.memory.conflicts",
    "int",
    "Number of times the conversation had changed meanwhile and was appended to again, if it had.",
)
MEMORY_MESSAGES_KIND: Final = _attribute(
    "traced_tools.memory.messages.kind",
    "string",
    "What memory did with the messages.",
    (MESSAGES_READ, MESSAGES_STORED, MESSAGES_LEFT_OUT),
)
COMPACTION_TRIGGER: Final = _attribute(
    "traced_tools.memory.compaction.trigger",
    "string",
    "The name of what caused the compaction, which is set in code.",
)
COMPACTION_STRATEGY: Final = _attribute(
    "traced_tools.memory.compaction.strategy",
    "string",
    "The names of the strategies that made the compaction, which are set in code.",
)
COMPACTION_OUTCOME: Final = _attribute(
    "traced_tools.memory.compaction.outcome", "string", "How the compaction ended.", COMPACTION_OUTCOMES
)
COMPACTION_COVERED: Final = _attribute(
    "traced_tools.memory.compaction.covered", "int", "Number of entries of the conversation that it covers."
)
COMPACTION_TOKENS_BEFORE: Final = _attribute(
    "traced_tools.memory.compaction.tokens_before", "int", "Tokens that the model was sent before it, if known."
)
COMPACTION_TOKENS_AFTER: Final = _attribute(
    "traced_tools.memory.compaction.tokens_after", "int", "Tokens that the model is sent after it, if known."
)
COMPACTION_TOKENS_ESTIMATED: Final = _attribute(
    "traced_tools.memory.compaction.tokens_estimated", "boolean", "True if the tokens are an estimate, else absent."
)
MISSING_RESULTS_KIND: Final = _attribute(
    "traced_tools.memory.missing_results.kind",
    "string",
    "What is known of tool calls whose results an interrupted run left missing.",
    (RESULTS_NOT_RUN, RESULTS_UNKNOWN),
)
MISSING_RESULTS_NOT_RUN: Final = _attribute(
    "traced_tools.memory.missing_results.not_run", "int", "Number of calls that were answered as not executed."
)
MISSING_RESULTS_UNKNOWN: Final = _attribute(
    "traced_tools.memory.missing_results.unknown", "int", "Number of calls that were answered as of unknown outcome."
)
TOOL_SEARCH_INDEX: Final = _attribute(
    "traced_tools.tool_search.index", "string", "The kind of the tool index, such as `keyword`."
)
TOOL_SEARCH_RESULTS: Final = _attribute(
    "traced_tools.tool_search.results", "int", "Number of tools that the search found."
)
TOOL_SEARCH_DISCOVERED: Final = _attribute(
    "traced_tools.tool_search.discovered", "int", "Number of tools that the search found first in its session."
)
CONTENT_TRUNCATED: Final = _attribute(
    "traced_tools.content.truncated", "boolean", "True if content on the same span or event was truncated, else absent."
)
EVALUATION_OF_POLICY: Final = (
    *(POLICY_MODE, EVALUATED_ADVISOR, EVALUATED_DECISION, EVALUATED_CODE, EVALUATED_RULE, EVALUATED_DIGEST),
    *(EVALUATED_BECOMES, EVALUATED_CHANGES),
)
"""The attributes of the verdict of a policy that is only evaluated."""
EVENT_TYPE: Final = _attribute("traced_tools.event.type", "string", "The type of the event, such as `tool_started`.")
EVENT_ID: Final = _attribute("traced_tools.event.id", "string", "Time-ordered id of the event, for deduplication.")
EVENT_SEQUENCE: Final = _attribute(
    "traced_tools.event.sequence",
    "int",
    "Number of the event within its run, from 1; 0 for a delta before the first event.",
)
EXPORTER_NAME: Final = _attribute(
    "traced_tools.exporter.name", "string", "The name of the exporter, such as `otlp.traces`."
)
DROP_REASON: Final = _attribute("traced_tools.export.drop_reason", "string", "Why the item was dropped.", DROP_REASONS)

AUDIT_RECORD: Final = _attribute(
    "traced_tools.audit.record", "string", "The kind of the audit record.", AUDIT_RECORD_KINDS
)
AUDIT_OUTCOME: Final = _attribute(
    "traced_tools.audit.outcome", "string", "How the call ended, according to the audit trail.", AUDIT_OUTCOME_VALUES
)
AUDIT_CHAIN_ID: Final = _attribute(
    "traced_tools.audit.chain_id", "string", "The id of the record's chain in the audit trail."
)
AUDIT_SEQUENCE: Final = _attribute(
    "traced_tools.audit.sequence", "int", "The number of the record in its chain, from 1."
)
AUDIT_HASH: Final = _attribute(
    "traced_tools.audit.hash", "string", "SHA-256 hash of the record, which the next record repeats."
)
