"""Every telemetry name the package emits: the one table that instrumentation, boards, rules, docs and tests read.

A name is declared once, with its type and what it means, and used through its constant. Nothing outside this module
spells one. Names that begin with `gen_ai.` follow the OpenTelemetry GenAI semantic conventions (in Development, without
a release, hence without a schema URL); names that begin with `traced_tools.` are ours.
"""

from __future__ import annotations

from typing import Final, Literal

from traced_tools.telemetry.declared import Attribute, AttributeType, Metric, SpanType
from traced_tools.telemetry.words import DECISIONS, HOOKS, ITERATION_OUTCOMES, REPAIRS, STOP_REASONS, TOOL_OUTCOMES

SCOPE: Final = "traced_tools"
UNKNOWN_TOOL: Final = "_unknown"
"""Stands for a tool name that is not registered: such names are written by the model."""
OTHER_ERROR: Final = "_OTHER"
CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"
MAX_ERROR_TYPES_PER_TOOL: Final = 32

ATTRIBUTES: Final[dict[str, Attribute]] = {}


def _attribute(name: str, kind: AttributeType, brief: str, values: tuple[str, ...] = ()) -> str:
    ATTRIBUTES[name] = Attribute(name, kind, brief, values)
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

# Attributes of the conventions.

OPERATION_NAME: Final = _attribute(
    "gen_ai.operation.name", "string", "What is done.", (CHAT, EMBEDDINGS, EXECUTE_TOOL, INVOKE_AGENT)
)
PROVIDER_NAME: Final = _attribute("gen_ai.provider.name", "string", "Who runs the model.")
REQUEST_MODEL: Final = _attribute("gen_ai.request.model", "string", "The model that was asked.")
REQUEST_STREAM: Final = _attribute("gen_ai.request.stream", "boolean", "Set, to true, when the answer was streamed.")
RESEND_COUNT: Final = _attribute("http.request.resend_count", "int", "How often it was sent again, if it was.")
REQUEST_TEMPERATURE: Final = _attribute("gen_ai.request.temperature", "double", "Sampling temperature asked for.")
REQUEST_TOP_P: Final = _attribute("gen_ai.request.top_p", "double", "Nucleus sampling mass asked for.")
REQUEST_MAX_TOKENS: Final = _attribute("gen_ai.request.max_tokens", "int", "The most tokens the answer may have.")
REQUEST_STOP_SEQUENCES: Final = _attribute("gen_ai.request.stop_sequences", "string[]", "Texts that end the answer.")
REQUEST_SEED: Final = _attribute("gen_ai.request.seed", "int", "Seed asked for.")
RESPONSE_ID: Final = _attribute("gen_ai.response.id", "string", "The provider's id of the answer.")
RESPONSE_MODEL: Final = _attribute("gen_ai.response.model", "string", "The model that answered.")
RESPONSE_FINISH_REASONS: Final = _attribute("gen_ai.response.finish_reasons", "string[]", "Why the model stopped.")
RESPONSE_TIME_TO_FIRST_CHUNK: Final = _attribute(
    "gen_ai.response.time_to_first_chunk", "double", "Seconds from the request to the first chunk of a streamed answer."
)
USAGE_INPUT_TOKENS: Final = _attribute("gen_ai.usage.input_tokens", "int", "Tokens read, cached ones included.")
USAGE_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.output_tokens", "int", "Tokens written, reasoning included.")
USAGE_CACHE_READ_TOKENS: Final = _attribute("gen_ai.usage.cache_read.input_tokens", "int", "Tokens read from a cache.")
USAGE_CACHE_WRITE_TOKENS: Final = _attribute("gen_ai.usage.cache_write.input_tokens", "int", "Tokens put in a cache.")
USAGE_REASONING_TOKENS: Final = _attribute("gen_ai.usage.reasoning.output_tokens", "int", "Tokens spent on thinking.")
EMBEDDINGS_DIMENSION_COUNT: Final = _attribute("gen_ai.embeddings.dimension.count", "int", "Length of each vector.")
CONVERSATION_ID: Final = _attribute("gen_ai.conversation.id", "string", "The caller's conversation, when it gave one.")
AGENT_NAME: Final = _attribute("gen_ai.agent.name", "string", "The client's name.")
TOOL_NAME: Final = _attribute(
    "gen_ai.tool.name", "string", f"The tool, or {UNKNOWN_TOOL} for a name nobody registered."
)
TOOL_TYPE: Final = _attribute("gen_ai.tool.type", "string", "What kind of tool it is.", (FUNCTION,))
TOOL_CALL_ID: Final = _attribute("gen_ai.tool.call.id", "string", "Ties the result to the call.")
TOKEN_TYPE: Final = _attribute("gen_ai.token.type", "string", "Read or written.", (TOKEN_INPUT, TOKEN_OUTPUT))
SERVER_ADDRESS: Final = _attribute("server.address", "string", "Host of the model's endpoint.")
SERVER_PORT: Final = _attribute("server.port", "int", "Port of the model's endpoint.")
ERROR_TYPE: Final = _attribute("error.type", "string", "Class of the error, or a word from a closed list.")

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
LIMIT_MAX_ITERATIONS: Final = _attribute("traced_tools.loop.limit.max_iterations", "int", "Limit in force.")
LIMIT_MAX_TOOL_CALLS: Final = _attribute("traced_tools.loop.limit.max_tool_calls", "int", "Limit in force.")
LIMIT_MAX_TOKENS: Final = _attribute("traced_tools.loop.limit.max_tokens", "int", "Limit in force.")
LIMIT_MAX_SECONDS: Final = _attribute("traced_tools.loop.limit.max_seconds", "double", "Limit in force.")
ADVISOR_NAME: Final = _attribute("traced_tools.advisor.name", "string", "The advisor, named in code.")
ADVISOR_HOOK: Final = _attribute("traced_tools.advisor.hook", "string", "Which hook ran.", HOOKS)
ADVISOR_ORDER: Final = _attribute("traced_tools.advisor.order", "int", "Its place in the chain; lower is further out.")
ADVISOR_SELF_TIME: Final = _attribute(
    "traced_tools.advisor.self_time", "double", "Own seconds, without what is downstream."
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

# Spans.

_HOOK = (ADVISOR_NAME, ADVISOR_HOOK, ADVISOR_ORDER, ITERATION_INDEX, ERROR_TYPE)
_ANY_TOOL = (
    TOOL_NAME,
    TOOL_TYPE,
    TOOL_CALL_ID,
    AGENT_NAME,
    CONVERSATION_ID,
    ITERATION_INDEX,
    TOOL_DECISION,
    TOOL_BATCH_SIZE,
    TOOL_BATCH_INDEX,
    TOOL_ARGUMENTS_SIZE,
    TOOL_RESULT_SIZE,
    TOOL_SOURCE,
    ERROR_TYPE,
)
_USAGE = (
    USAGE_INPUT_TOKENS,
    USAGE_OUTPUT_TOKENS,
    USAGE_CACHE_READ_TOKENS,
    USAGE_CACHE_WRITE_TOKENS,
    USAGE_REASONING_TOKENS,
)

AGENT_SPAN: Final = SpanType(
    "invoke_agent {agent}",
    "internal",
    "One run, from the request to the answer.",
    (
        OPERATION_NAME,
        AGENT_NAME,
        REQUEST_MODEL,
        CONVERSATION_ID,
        USAGE_INPUT_TOKENS,
        USAGE_OUTPUT_TOKENS,
        RESPONSE_FINISH_REASONS,
        ERROR_TYPE,
        RUN_ID,
        LOOP_ITERATIONS,
        LOOP_TOOL_CALLS,
        LOOP_STOP_REASON,
        LIMIT_MAX_ITERATIONS,
        LIMIT_MAX_TOOL_CALLS,
        LIMIT_MAX_TOKENS,
        LIMIT_MAX_SECONDS,
    ),
)
ITERATION_SPAN: Final = SpanType(
    "iteration",
    "internal",
    "One pass of the loop: a model call and its tools.",
    (ITERATION_INDEX, ITERATION_TOOL_CALLS, ERROR_TYPE),
)
HOOK_SPAN: Final = SpanType("{hook} {advisor}", "internal", "One hook of one advisor.", (*_HOOK, ADVISOR_SELF_TIME))
CHAT_SPAN: Final = SpanType(
    "chat {model}",
    "client",
    "One model call; INTERNAL for a model in this process.",
    (
        OPERATION_NAME,
        PROVIDER_NAME,
        REQUEST_MODEL,
        SERVER_ADDRESS,
        SERVER_PORT,
        RESEND_COUNT,
        REQUEST_STREAM,
        REQUEST_TEMPERATURE,
        REQUEST_TOP_P,
        REQUEST_MAX_TOKENS,
        REQUEST_STOP_SEQUENCES,
        REQUEST_SEED,
        RESPONSE_ID,
        RESPONSE_MODEL,
        RESPONSE_FINISH_REASONS,
        RESPONSE_TIME_TO_FIRST_CHUNK,
        *_USAGE,
        CONVERSATION_ID,
        AGENT_NAME,
        ITERATION_INDEX,
        ERROR_TYPE,
    ),
)
EMBEDDINGS_SPAN: Final = SpanType(
    "embeddings {model}",
    "client",
    "One call of an embedding model, however many texts it is given; INTERNAL for a model in this process.",
    (
        OPERATION_NAME,
        PROVIDER_NAME,
        REQUEST_MODEL,
        SERVER_ADDRESS,
        SERVER_PORT,
        RESEND_COUNT,
        RESPONSE_MODEL,
        EMBEDDINGS_DIMENSION_COUNT,
        USAGE_INPUT_TOKENS,
        ERROR_TYPE,
    ),
)
EXECUTE_TOOL_SPAN: Final = SpanType(
    "execute_tool {tool}",
    "internal",
    "One tool call that ran.",
    (
        OPERATION_NAME,
        *_ANY_TOOL,
        TOOL_OUTCOME,
        TOOL_ATTEMPTS,
        TOOL_QUEUE_TIME,
        TOOL_ARGUMENTS_REPAIRS,
        TOOL_RESULT_CUT,
    ),
)
REFUSE_TOOL_SPAN: Final = SpanType(
    "refuse_tool {tool}",
    "internal",
    "One tool call that was refused before it ran.",
    (*_ANY_TOOL, TOOL_QUEUE_TIME, TOOL_ARGUMENTS_REPAIRS, TOOL_RESULT_CUT),
)
SPANS: Final = (
    AGENT_SPAN,
    ITERATION_SPAN,
    HOOK_SPAN,
    CHAT_SPAN,
    EMBEDDINGS_SPAN,
    EXECUTE_TOOL_SPAN,
    REFUSE_TOOL_SPAN,
)

# Metrics.

_STEP_SECONDS = tuple(round(0.01 * 2**n, 2) for n in range(14))
_RUN_SECONDS = tuple(round(0.1 * 2**n, 1) for n in range(13))
_ADVISOR_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_TOKENS = tuple(float(4**n) for n in range(14))
_COUNTS = tuple(float(2**n) for n in range(8))
_MODEL_CALL = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE)

METRICS: Final[dict[str, Metric]] = {}


def _metric(
    name: str,
    instrument: Literal["histogram", "counter", "updowncounter", "gauge"],
    unit: str,
    brief: str,
    attributes: tuple[str, ...],
    boundaries: tuple[float, ...] = (),
) -> Metric:
    METRICS[name] = Metric(name, instrument, unit, brief, attributes, boundaries)
    return METRICS[name]


INVOKE_AGENT_DURATION: Final = _metric(
    "gen_ai.invoke_agent.duration",
    "histogram",
    "s",
    "How long runs take.",
    (AGENT_NAME, REQUEST_MODEL, ERROR_TYPE),
    _RUN_SECONDS,
)
INVOKE_AGENT_INFERENCE_CALLS: Final = _metric(
    "gen_ai.invoke_agent.inference_calls", "histogram", "{inference_call}", "Model calls a run.", (AGENT_NAME,), _COUNTS
)
INVOKE_AGENT_TOOL_CALLS: Final = _metric(
    "gen_ai.invoke_agent.tool_calls", "histogram", "{tool_call}", "Tool calls a run.", (AGENT_NAME,), _COUNTS
)
EXECUTE_TOOL_DURATION: Final = _metric(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    "How long tools take.",
    (TOOL_NAME, TOOL_TYPE, AGENT_NAME, ERROR_TYPE),
    _STEP_SECONDS,
)
OPERATION_DURATION: Final = _metric(
    "gen_ai.client.operation.duration", "histogram", "s", "How long model calls take.", _MODEL_CALL, _STEP_SECONDS
)
TIME_TO_FIRST_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_to_first_chunk",
    "histogram",
    "s",
    "From the request to the first chunk of a streamed answer.",
    _MODEL_CALL,
    _STEP_SECONDS,
)
TIME_PER_OUTPUT_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_per_output_chunk",
    "histogram",
    "s",
    "From one chunk of a streamed answer to the next.",
    _MODEL_CALL,
    _STEP_SECONDS,
)
TOKEN_USAGE: Final = _metric(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Tokens a model call.",
    (*_MODEL_CALL, TOKEN_TYPE),
    _TOKENS,
)
LOOP_ITERATIONS_METRIC: Final = _metric(
    "traced_tools.loop.iterations",
    "histogram",
    "{iteration}",
    "Passes of the loop a run.",
    (AGENT_NAME, LOOP_STOP_REASON),
    _COUNTS,
)
ITERATION_DURATION: Final = _metric(
    "traced_tools.iteration.duration",
    "histogram",
    "s",
    "How long one pass of the loop takes.",
    (AGENT_NAME, ITERATION_OUTCOME),
    _STEP_SECONDS,
)
ADVISOR_DURATION: Final = _metric(
    "traced_tools.advisor.duration",
    "histogram",
    "s",
    "Own time of advisors' hooks, without what is downstream.",
    (ADVISOR_NAME, ADVISOR_HOOK, ERROR_TYPE),
    _ADVISOR_SECONDS,
)
TOOL_DECISIONS: Final = _metric(
    "traced_tools.tool.decisions",
    "counter",
    "{decision}",
    "What was decided about requested calls.",
    (TOOL_NAME, TOOL_DECISION, ADVISOR_NAME),
)
TOOL_RETRIES: Final = _metric(
    "traced_tools.tool.retries", "counter", "{retry}", "Further attempts at failed tools.", (TOOL_NAME, ERROR_TYPE)
)
TOOL_LATE_RESULTS: Final = _metric(
    "traced_tools.tool.late_results",
    "counter",
    "{result}",
    "Results that came after their call had been answered as timed out; they are dropped.",
    (TOOL_NAME,),
)
TOOL_ACTIVE: Final = _metric(
    "traced_tools.tool.active", "updowncounter", "{tool_call}", "Tools running now.", (AGENT_NAME,)
)
RUN_ACTIVE: Final = _metric("traced_tools.run.active", "updowncounter", "{run}", "Runs under way now.", (AGENT_NAME,))
TELEMETRY_FAILURES: Final = _metric(
    "traced_tools.telemetry.failures", "counter", "{failure}", "Spans lost because the tracing set-up raised.", ()
)
RUN_OLDEST_ACTIVE: Final = _metric(
    "traced_tools.run.oldest_active",
    "gauge",
    "s",
    "Age of the oldest run under way: grows while one is stuck.",
    (AGENT_NAME,),
)
