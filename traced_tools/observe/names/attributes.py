"""The attributes of spans, metrics and events, and the single words that telemetry uses."""

from __future__ import annotations

from typing import Final

from traced_tools.core.enums import (
    AUDIT_OUTCOME_WORDS,
    AUDIT_RECORD_WORDS,
    DECISIONS,
    DROP_REASONS,
    HOOKS,
    ITERATION_OUTCOMES,
    OPENINFERENCE_KINDS,
    OUTPUT_TYPES,
    REPAIRS,
    STOP_REASONS,
    TOOL_OUTCOMES,
    Conventions,
)
from traced_tools.observe.names.registry_types import Attribute, AttributeType

SCOPE: Final = "traced_tools"
UNKNOWN_TOOL: Final = "_unknown"
"""Stands for a tool name that is not registered: such names are written by the model."""
OTHER: Final = "_OTHER"
CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"
MAX_LABEL_VALUES: Final = 32
MAX_AGENTS: Final = 128

ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(
    name: str, kind: AttributeType, brief: str, values: tuple[str, ...] = (), only: Conventions | None = None
) -> str:
    ATTRIBUTES[name] = Attribute(name, kind, brief, values, only)
    return name


# Words; those of closed lists are in `words`.

CHAT: Final = "chat"
EMBEDDINGS: Final = "embeddings"
EXECUTE_TOOL: Final = "execute_tool"
REFUSE_TOOL: Final = "refuse_tool"
INVOKE_AGENT: Final = "invoke_agent"
FUNCTION: Final = "function"
LOCAL: Final = "local"
TOKEN_INPUT: Final = "input"
TOKEN_OUTPUT: Final = "output"
MODALITY_UNKNOWN: Final = "unknown"
OUTPUT_JSON: Final = "json"

# Attributes of the conventions.

OPERATION_NAME: Final = _attribute(
    "gen_ai.operation.name", "string", "What is done.", (CHAT, EMBEDDINGS, EXECUTE_TOOL, INVOKE_AGENT)
)
PROVIDER_NAME: Final = _attribute("gen_ai.provider.name", "string", "Who runs the model.")
REQUEST_MODEL: Final = _attribute("gen_ai.request.model", "string", "The model that was asked.")
REQUEST_STREAM: Final = _attribute("gen_ai.request.stream", "boolean", "Set, to true, when the answer was streamed.")
RESEND_COUNT: Final = _attribute("http.request.resend_count", "int", "How often it was sent again, if it was.")
RESPONSE_STATUS: Final = _attribute(
    "http.response.status_code", "int", "Status of the provider's answer, when there was an answer."
)
REQUEST_TEMPERATURE: Final = _attribute("gen_ai.request.temperature", "double", "Sampling temperature asked for.")
REQUEST_TOP_P: Final = _attribute("gen_ai.request.top_p", "double", "Nucleus sampling mass asked for.")
REQUEST_MAX_TOKENS: Final = _attribute("gen_ai.request.max_tokens", "int", "The most tokens the answer may have.")
REQUEST_STOP_SEQUENCES: Final = _attribute("gen_ai.request.stop_sequences", "string[]", "Texts that end the answer.")
REQUEST_SEED: Final = _attribute("gen_ai.request.seed", "int", "Seed asked for.")
REQUEST_REASONING_LEVEL: Final = _attribute(
    "gen_ai.request.reasoning.level", "string", "How long to think, in the provider's words."
)
OUTPUT_TYPE: Final = _attribute(
    "gen_ai.output.type", "string", "What kind of answer is asked for, if the request says.", OUTPUT_TYPES
)
RESPONSE_ID: Final = _attribute("gen_ai.response.id", "string", "The provider's id of the answer.")
RESPONSE_MODEL: Final = _attribute("gen_ai.response.model", "string", "The model that answered.")
RESPONSE_FINISH_REASONS: Final = _attribute("gen_ai.response.finish_reasons", "string[]", "Why the model stopped.")
RESPONSE_TIME_TO_FIRST_CHUNK: Final = _attribute(
    "gen_ai.response.time_to_first_chunk", "double", "Seconds from the request to the first chunk of a streamed answer."
)
USAGE_INPUT_TOKENS: Final = _attribute("gen_ai.usage.input_tokens", "int", "Tokens read, cached ones included.")
USAGE_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.output_tokens", "int", "Tokens written, reasoning included.")
USAGE_CACHE_READ_TOKENS: Final = _attribute("gen_ai.usage.cache_read.input_tokens", "int", "Tokens read from a cache.")
USAGE_CACHE_CREATION_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_creation.input_tokens", "int", "Tokens put in a cache.", only="stable"
)
USAGE_CACHE_WRITE_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_write.input_tokens", "int", "Tokens put in a cache.", only="latest"
)
USAGE_REASONING_TOKENS: Final = _attribute("gen_ai.usage.reasoning.output_tokens", "int", "Tokens spent on thinking.")
EMBEDDINGS_DIMENSION_COUNT: Final = _attribute("gen_ai.embeddings.dimension.count", "int", "Length of each vector.")
CONVERSATION_ID: Final = _attribute("gen_ai.conversation.id", "string", "The caller's conversation, when it gave one.")
AGENT_NAME: Final = _attribute("gen_ai.agent.name", "string", "The client's name.")
TOOL_NAME: Final = _attribute(
    "gen_ai.tool.name", "string", f"The tool, or `{UNKNOWN_TOOL}` for a name nobody registered."
)
TOOL_TYPE: Final = _attribute("gen_ai.tool.type", "string", "What kind of tool it is.", (FUNCTION,))
TOOL_CALL_ID: Final = _attribute("gen_ai.tool.call.id", "string", "Ties the result to the call.")
TOKEN_TYPE: Final = _attribute("gen_ai.token.type", "string", "Read or written.", (TOKEN_INPUT, TOKEN_OUTPUT))
SERVER_ADDRESS: Final = _attribute("server.address", "string", "Host of the model's endpoint.")
SERVER_PORT: Final = _attribute("server.port", "int", "Port of the model's endpoint.")
ERROR_TYPE: Final = _attribute("error.type", "string", "Class of the error, or a word from a closed list.")

INPUT_MESSAGES: Final = _attribute("gen_ai.input.messages", "any", "The conversation that was sent.")
OUTPUT_MESSAGES: Final = _attribute("gen_ai.output.messages", "any", "What the model answered.")
SYSTEM_INSTRUCTIONS: Final = _attribute("gen_ai.system_instructions", "any", "What stood above the conversation.")
TOOL_DEFINITIONS: Final = _attribute("gen_ai.tool.definitions", "any", "The tools the model may call.")
TOOL_DESCRIPTION: Final = _attribute("gen_ai.tool.description", "string", "What the model is told of the tool.")
TOOL_CALL_ARGUMENTS: Final = _attribute("gen_ai.tool.call.arguments", "any", "What the model calls the tool with.")
TOOL_CALL_RESULT: Final = _attribute("gen_ai.tool.call.result", "any", "What the model reads of the result.")
TOKEN_MODALITY: Final = _attribute(
    "gen_ai.token.modality", "string", "What the tokens stand for; providers rarely say.", (MODALITY_UNKNOWN,)
)
EXCEPTION_TYPE: Final = _attribute("exception.type", "string", "The exception's class.")
EXCEPTION_MESSAGE: Final = _attribute("exception.message", "string", "The exception's text.")
EXCEPTION_STACKTRACE: Final = _attribute("exception.stacktrace", "string", "Where it was raised.")

# An attribute of another convention.

OPENINFERENCE_KIND: Final = _attribute(
    "openinference.span.kind", "string", "What OpenInference calls such a span; only if asked for.", OPENINFERENCE_KINDS
)

# Attributes of our own.

RUN_ID: Final = _attribute("traced_tools.run.id", "string", "Time-ordered id; joins trace, events and audit.")
ITERATION_INDEX: Final = _attribute("traced_tools.iteration.index", "int", "Which pass of the loop, from 1.")
ITERATION_TOOL_CALLS: Final = _attribute(
    "traced_tools.iteration.tool_calls", "int", "How many calls the model asked for."
)
ITERATION_OUTCOME: Final = _attribute(
    "traced_tools.iteration.outcome", "string", "How a pass ended.", ITERATION_OUTCOMES
)
LOOP_ITERATIONS: Final = _attribute("traced_tools.loop.iterations", "int", "Passes of the loop in the run.")
LOOP_TOOL_CALLS: Final = _attribute("traced_tools.loop.tool_calls", "int", "Tool calls the model asked for in the run.")
LOOP_STOP_REASON: Final = _attribute("traced_tools.loop.stop_reason", "string", "Why the run ended.", STOP_REASONS)
FAILED_STEP: Final = _attribute(
    "traced_tools.failed_step",
    "string",
    "Where the error arose that failed the run: the name of the step's span, then the type of the error.",
)
LIMIT_MAX_ITERATIONS: Final = _attribute("traced_tools.loop.limit.max_iterations", "int", "Passes a run may take.")
LIMIT_MAX_TOOL_CALLS: Final = _attribute("traced_tools.loop.limit.max_tool_calls", "int", "Tool calls a run may make.")
LIMIT_MAX_TOKENS: Final = _attribute("traced_tools.loop.limit.max_tokens", "int", "Tokens a run may use.")
LIMIT_MAX_SECONDS: Final = _attribute("traced_tools.loop.limit.max_seconds", "double", "Seconds a run may take.")
ADVISOR_NAME: Final = _attribute("traced_tools.advisor.name", "string", "The advisor, named in code.")
ADVISOR_HOOK: Final = _attribute("traced_tools.advisor.hook", "string", "Which hook ran.", HOOKS)
ADVISOR_ORDER: Final = _attribute("traced_tools.advisor.order", "int", "Its place in the chain; lower is further out.")
ADVISOR_SELF_TIME: Final = _attribute(
    "traced_tools.advisor.self_time", "double", "Own seconds, without what is downstream."
)
TOOL_REQUESTED_NAME: Final = _attribute(
    "traced_tools.tool.requested_name", "string", "The name that the model made up, where no tool has it."
)
TOOL_OUTCOME: Final = _attribute("traced_tools.tool.outcome", "string", "How the tool ended.", TOOL_OUTCOMES)
TOOL_DECISION: Final = _attribute("traced_tools.tool.decision", "string", "What was decided about the call.", DECISIONS)
TOOL_ATTEMPTS: Final = _attribute(
    "traced_tools.tool.attempts", "int", "How often the tool was started; one span covers all."
)
TOOL_BATCH_SIZE: Final = _attribute("traced_tools.tool.batch_size", "int", "Calls the model asked for at once.")
TOOL_BATCH_INDEX: Final = _attribute("traced_tools.tool.batch_index", "int", "Place among them, from 0.")
TOOL_QUEUE_TIME: Final = _attribute(
    "traced_tools.tool.queue_time", "double", "Seconds waited for a turn in the batch and for a free worker."
)
TOOL_ARGUMENTS_SIZE: Final = _attribute("traced_tools.tool.arguments.size", "int", "Bytes of the arguments.")
TOOL_ARGUMENTS_REPAIRS: Final = _attribute(
    "traced_tools.tool.arguments.repairs", "string[]", "What was mended before the arguments fitted.", REPAIRS
)
TOOL_RESULT_SIZE: Final = _attribute(
    "traced_tools.tool.result.size", "int", "Bytes of the result as the model reads it."
)
TOOL_RESULT_CUT: Final = _attribute(
    "traced_tools.tool.result.cut", "boolean", "Set, to true, when the model reads only a part of the result."
)
TOOL_SOURCE: Final = _attribute(
    "traced_tools.tool.source", "string", f"`{LOCAL}`, or the MCP server's configured name."
)
REASON_CODE: Final = _attribute(
    "traced_tools.tool.reason_code", "string", "Why it was decided so: a word set in code, such as the name of a rule."
)
APPROVAL_BY: Final = _attribute(
    "traced_tools.approval.by",
    "string",
    "The person or service that approved or refused the call, as the application names them; never a metric label.",
)
INTENT: Final = _attribute("traced_tools.intent", "string", "The reason the model gave for a call.")
CONTENT_TRUNCATED: Final = _attribute(
    "traced_tools.content.truncated", "boolean", "Set, to true, when content beside it was cut to the limit."
)
EVENT_TYPE: Final = _attribute("traced_tools.event.type", "string", "What happened: `tool_started`, for one.")
EVENT_ID: Final = _attribute("traced_tools.event.id", "string", "Time-ordered id; tells doubles of an event.")
EVENT_SEQUENCE: Final = _attribute(
    "traced_tools.event.sequence", "int", "Number of the event within its run, from 1; 0 for a piece before the first."
)
EXPORTER_NAME: Final = _attribute("traced_tools.exporter.name", "string", "What sends: `otlp.traces`, for one.")
DROP_REASON: Final = _attribute("traced_tools.export.drop_reason", "string", "Why it was not sent.", DROP_REASONS)

AUDIT_RECORD: Final = _attribute(
    "traced_tools.audit.record", "string", "Which record of the audit trail.", AUDIT_RECORD_WORDS
)
AUDIT_OUTCOME: Final = _attribute(
    "traced_tools.audit.outcome", "string", "How the call ended, as the audit trail has it.", AUDIT_OUTCOME_WORDS
)
AUDIT_CHAIN_ID: Final = _attribute(
    "traced_tools.audit.chain_id", "string", "The chain of the audit trail that the record stands in."
)
AUDIT_SEQUENCE: Final = _attribute("traced_tools.audit.sequence", "int", "The record's number in its chain, from 1.")
AUDIT_HASH: Final = _attribute(
    "traced_tools.audit.hash", "string", "SHA-256 of the record, which the record after it repeats."
)
