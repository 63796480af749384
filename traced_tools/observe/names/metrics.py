"""The metrics, each with its labels and, for histograms, bucket boundaries."""

from __future__ import annotations

from typing import Final, Literal

from traced_tools.core.enums import Conventions
from traced_tools.observe.names import attributes as at
from traced_tools.observe.names.registry_types import Metric

_STEP_SECONDS = tuple(round(0.01 * 2**n, 2) for n in range(14))
_RUN_SECONDS = tuple(round(0.1 * 2**n, 1) for n in range(13))
_APPROVAL_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0, 259200.0)
_ADVISOR_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_MCP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = tuple(float(4**n) for n in range(14))
_BYTES = tuple(float(4**n) for n in range(3, 13))
_DOLLARS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SCORES = tuple(n / 10 for n in range(1, 11))
_COUNTS = tuple(float(2**n) for n in range(8))
_MANY_COUNTS = tuple(float(2**n) for n in range(13))
_ANSWERED = (
    at.OPERATION_NAME,
    at.PROVIDER_NAME,
    at.REQUEST_MODEL,
    at.RESPONSE_MODEL,
    at.SERVER_ADDRESS,
    at.SERVER_PORT,
    at.AGENT_NAME,
)
_MODEL_CALL = (*_ANSWERED, at.ERROR_TYPE)
_UNDER_WAY = (
    at.OPERATION_NAME,
    at.PROVIDER_NAME,
    at.REQUEST_MODEL,
    at.SERVER_ADDRESS,
    at.SERVER_PORT,
    at.AGENT_NAME,
)
"""The labels that are known before a model call ends."""

METRICS: Final[dict[str, Metric]] = {}


def _metric(
    name: str,
    instrument: Literal["histogram", "counter", "updowncounter", "gauge"],
    unit: str,
    brief: str,
    attributes: tuple[str, ...],
    boundaries: tuple[float, ...] = (),
    only: Conventions | None = None,
) -> Metric:
    METRICS[name] = Metric(name, instrument, unit, brief, attributes, boundaries, only)
    return METRICS[name]


INVOKE_AGENT_DURATION: Final = _metric(
    "gen_ai.invoke_agent.duration",
    "histogram",
    "s",
    "Duration of runs.",
    (at.AGENT_NAME, at.AGENT_VERSION, at.REQUEST_MODEL, at.ERROR_TYPE),
    _RUN_SECONDS,
)
INVOKE_AGENT_INFERENCE_CALLS: Final = _metric(
    "gen_ai.invoke_agent.inference_calls",
    "histogram",
    "{inference_call}",
    "Model calls per run.",
    (at.AGENT_NAME,),
    _COUNTS,
)
INVOKE_AGENT_TOOL_CALLS: Final = _metric(
    "gen_ai.invoke_agent.tool_calls", "histogram", "{tool_call}", "Tool calls per run.", (at.AGENT_NAME,), _COUNTS
)
EXECUTE_TOOL_DURATION: Final = _metric(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    "Duration of tool executions, without the advisors around the tool and the wait for an approval.",
    (at.TOOL_NAME, at.TOOL_TYPE, at.AGENT_NAME, at.ERROR_TYPE),
    _STEP_SECONDS,
)
OPERATION_DURATION: Final = _metric(
    "gen_ai.client.operation.duration",
    "histogram",
    "s",
    "Duration of model calls.",
    _MODEL_CALL,
    _STEP_SECONDS,
    "v1.41.0",
)
TIME_TO_FIRST_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_to_first_chunk",
    "histogram",
    "s",
    "Time from the request to the first chunk of a streamed response.",
    _ANSWERED,
    _STEP_SECONDS,
    "v1.41.0",
)
TIME_PER_OUTPUT_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_per_output_chunk",
    "histogram",
    "s",
    "Time between two chunks of a streamed response.",
    _UNDER_WAY,
    _STEP_SECONDS,
    "v1.41.0",
)
TOKEN_USAGE: Final = _metric(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Input and output tokens per model call.",
    (*_ANSWERED, at.TOKEN_TYPE),
    _TOKENS,
    "v1.41.0",
)
INFERENCE_DURATION: Final = _metric(
    "gen_ai.client.inference.duration",
    "histogram",
    "s",
    "Duration of chat model calls.",
    _MODEL_CALL,
    _STEP_SECONDS,
    "v0.1.0",
)
INFERENCE_TIME_TO_FIRST_CHUNK: Final = _metric(
    "gen_ai.client.inference.time_to_first_chunk",
    "histogram",
    "s",
    TIME_TO_FIRST_CHUNK.brief,
    _ANSWERED,
    _STEP_SECONDS,
    "v0.1.0",
)
INFERENCE_TIME_PER_OUTPUT_CHUNK: Final = _metric(
    "gen_ai.client.inference.time_per_output_chunk",
    "histogram",
    "s",
    TIME_PER_OUTPUT_CHUNK.brief,
    _UNDER_WAY,
    _STEP_SECONDS,
    "v0.1.0",
)


def _tokens_used(kind: str, brief: str) -> Metric:
    name = f"gen_ai.client.inference.usage.{kind}_tokens"
    return _metric(name, "counter", "{token}", brief, (*_ANSWERED, at.TOKEN_MODALITY), (), "v0.1.0")


def _tokens_a_call(kind: str, brief: str) -> Metric:
    name = f"gen_ai.client.inference.operation.{kind}_tokens"
    return _metric(name, "histogram", "{token}", brief, _MODEL_CALL, _TOKENS, "v0.1.0")


INPUT_TOKENS_USED: Final = _tokens_used("input", "Input tokens, including cached tokens.")
OUTPUT_TOKENS_USED: Final = _tokens_used("output", "Output tokens, including reasoning tokens.")
CACHE_READ_TOKENS_USED: Final = _tokens_used("cache_read.input", "Input tokens read from a cache.")
CACHE_WRITE_TOKENS_USED: Final = _tokens_used("cache_write.input", "Input tokens written to a cache.")
REASONING_TOKENS_USED: Final = _tokens_used("reasoning.output", "Output tokens used for reasoning.")
INPUT_TOKENS_A_CALL: Final = _tokens_a_call("input", "Input tokens per chat model call.")
OUTPUT_TOKENS_A_CALL: Final = _tokens_a_call("output", "Output tokens per chat model call.")
EMBEDDINGS_DURATION: Final = _metric(
    "gen_ai.client.embeddings.duration",
    "histogram",
    "s",
    "Duration of embedding model calls.",
    _MODEL_CALL,
    _STEP_SECONDS,
    "v0.1.0",
)
EMBEDDINGS_INPUT_TOKENS: Final = _metric(
    "gen_ai.client.embeddings.operation.input_tokens",
    "histogram",
    "{token}",
    "Input tokens per embedding model call.",
    _ANSWERED,
    _TOKENS,
    "v0.1.0",
)
MODEL_RETRIES: Final = _metric(
    "traced_tools.model.retries",
    "counter",
    "{retry}",
    "Failed requests to a provider that are retried, by status and error type.",
    (*_UNDER_WAY, at.RESPONSE_STATUS, at.ERROR_TYPE),
)
MODEL_RETRY_WAIT: Final = _metric(
    "traced_tools.model.retry_wait",
    "counter",
    "s",
    "Time spent waiting before failed requests to a provider are retried, by status and error type.",
    (*_UNDER_WAY, at.RESPONSE_STATUS, at.ERROR_TYPE),
)
MODEL_RATE_LIMITS: Final = _metric(
    "traced_tools.model.rate_limits",
    "counter",
    "{request}",
    "Requests that a provider refused because of a rate limit, whether they are retried or not.",
    _UNDER_WAY,
)
MODEL_RATE_LIMIT_WAIT: Final = _metric(
    "traced_tools.model.rate_limit_wait",
    "histogram",
    "s",
    "Time that requests wait for the limits of a `RateLimitedModel` before they are sent; 0 if they don't wait.",
    _UNDER_WAY,
    _STEP_SECONDS,
)
LOOP_ITERATIONS_METRIC: Final = _metric(
    "traced_tools.loop.iterations",
    "histogram",
    "{iteration}",
    "Iterations per run.",
    (at.AGENT_NAME, at.AGENT_VERSION, at.LOOP_STOP_REASON),
    _COUNTS,
)
LOOP_COST_METRIC: Final = _metric(
    "traced_tools.loop.cost",
    "histogram",
    "{USD}",
    "Cost of each run's own model calls according to the price table; only reported if it has a price.",
    (at.AGENT_NAME, at.AGENT_VERSION, at.LOOP_STOP_REASON),
    _DOLLARS,
)
RUN_TIME: Final = _metric(
    "traced_tools.run.time",
    "histogram",
    "s",
    "Time of runs by what it went to. The kinds of a run add up to its duration.",
    (at.AGENT_NAME, at.TIME_KIND),
    _RUN_SECONDS,
)
ITERATION_DURATION: Final = _metric(
    "traced_tools.iteration.duration",
    "histogram",
    "s",
    "Duration of iterations.",
    (at.AGENT_NAME, at.ITERATION_OUTCOME),
    _STEP_SECONDS,
)
ADVISOR_DURATION: Final = _metric(
    "traced_tools.advisor.duration",
    "histogram",
    "s",
    "Time spent in advisor hooks themselves, without downstream work.",
    (at.ADVISOR_NAME, at.ADVISOR_HOOK, at.AGENT_NAME, at.ERROR_TYPE),
    _ADVISOR_SECONDS,
)
EVALUATION_SCORES: Final = _metric(
    "traced_tools.evaluation.score",
    "histogram",
    "{score}",
    "Scores of evaluated answers, from 0 to 1.",
    (at.EVALUATION_NAME, at.EVALUATION_LABEL, at.AGENT_NAME),
    _SCORES,
)
ANSWER_RETRIES: Final = _metric(
    "traced_tools.answer.retries",
    "counter",
    "{retry}",
    "Answers for which an advisor asked the model again, by reason.",
    (at.ADVISOR_NAME, at.AGENT_NAME, at.RETRY_REASON),
)
SAFEGUARD_BLOCKS: Final = _metric(
    "traced_tools.safeguard.blocks",
    "counter",
    "{block}",
    "Requests and answers that a safeguard blocked.",
    (at.ADVISOR_NAME, at.AGENT_NAME, at.SAFEGUARD_WHERE),
)
MCP_SERVER_DURATION: Final = _metric(
    "mcp.server.operation.duration",
    "histogram",
    "s",
    "Duration of requests of MCP clients to the served tools.",
    (
        at.MCP_METHOD,
        at.TOOL_NAME,
        at.MCP_PROTOCOL_VERSION,
        at.NETWORK_TRANSPORT,
        at.RPC_STATUS_CODE,
        at.AGENT_NAME,
        at.ERROR_TYPE,
    ),
    _MCP_SECONDS,
)
TOOL_DECISIONS: Final = _metric(
    "traced_tools.tool.decisions",
    "counter",
    "{decision}",
    "Decisions on requested tool calls.",
    (
        at.TOOL_NAME,
        at.AGENT_NAME,
        at.AGENT_VERSION,
        at.TOOL_DECISION,
        at.ADVISOR_NAME,
        at.REASON_CODE,
        at.POLICY_RULE,
    ),
)
POLICY_EVALUATIONS: Final = _metric(
    "traced_tools.policy.evaluations",
    "counter",
    "{evaluation}",
    "Verdicts about tool calls of policies that are only evaluated.",
    (
        *(at.TOOL_NAME, at.AGENT_NAME, at.EVALUATED_ADVISOR, at.EVALUATED_DECISION),
        *(at.EVALUATED_CODE, at.EVALUATED_RULE, at.EVALUATED_CHANGES),
    ),
)
APPROVAL_WAIT: Final = _metric(
    "traced_tools.approval.wait",
    "histogram",
    "s",
    "Time that tool calls waited for a decision, by the decision.",
    (at.TOOL_NAME, at.AGENT_NAME, at.TOOL_DECISION, at.ERROR_TYPE),
    _APPROVAL_SECONDS,
)
TOOL_RESULT_SIZE_METRIC: Final = _metric(
    "traced_tools.tool.result.size",
    "histogram",
    "By",
    "Size of the results of tool calls, including refused calls, as sent to the model.",
    (at.TOOL_NAME, at.AGENT_NAME, at.TOOL_RESULT_CUT),
    _BYTES,
)
TOOL_RETRIES: Final = _metric(
    "traced_tools.tool.retries",
    "counter",
    "{retry}",
    "Retries of failed tools.",
    (at.TOOL_NAME, at.AGENT_NAME, at.ERROR_TYPE),
)
TOOL_LATE_RESULTS: Final = _metric(
    "traced_tools.tool.late_results",
    "counter",
    "{result}",
    "Results that arrived after their call had timed out; they are dropped.",
    (at.TOOL_NAME, at.AGENT_NAME),
)
TOOL_ACTIVE: Final = _metric(
    "traced_tools.tool.active", "updowncounter", "{tool_call}", "Tools that are running.", (at.AGENT_NAME,)
)
RUN_ACTIVE: Final = _metric(
    "traced_tools.run.active", "updowncounter", "{run}", "Runs that are active.", (at.AGENT_NAME,)
)
APPROVAL_PENDING: Final = _metric(
    "traced_tools.approval.pending",
    "updowncounter",
    "{tool_call}",
    "Tool calls whose run waits for a decision.",
    (at.AGENT_NAME,),
)
TELEMETRY_FAILURES: Final = _metric(
    "traced_tools.telemetry.failures",
    "counter",
    "{failure}",
    "Spans, records and contents lost because the application's SDK, exporter or redactor raised an exception.",
    (),
)
RUN_OLDEST_ACTIVE: Final = _metric(
    "traced_tools.run.oldest_active",
    "gauge",
    "s",
    "Age of the oldest active run; it grows while a run is stuck.",
    (at.AGENT_NAME,),
)
APPROVAL_OLDEST_PENDING: Final = _metric(
    "traced_tools.approval.oldest_pending",
    "gauge",
    "s",
    "Age of the oldest tool call whose run waits for a decision.",
    (at.AGENT_NAME,),
)
PENDING_STORE_CALLS: Final = _metric(
    "traced_tools.pending_store.calls",
    "gauge",
    "{tool_call}",
    "Tool calls of runs in a pending store that wait for a decision; only from a process that reports them.",
    (at.AGENT_NAME,),
)
PENDING_STORE_OLDEST: Final = _metric(
    "traced_tools.pending_store.oldest",
    "gauge",
    "s",
    "Age of the oldest tool call in a pending store that waits for a decision.",
    (at.AGENT_NAME,),
)
PENDING_STORE_READY: Final = _metric(
    "traced_tools.pending_store.ready",
    "gauge",
    "{run}",
    "Runs in a pending store whose calls are all decided or expired, and which have not resumed.",
    (at.AGENT_NAME,),
)
PENDING_STORE_OLDEST_READY: Final = _metric(
    "traced_tools.pending_store.oldest_ready",
    "gauge",
    "s",
    "Time since the first of the runs in a pending store that have not resumed became ready to resume.",
    (at.AGENT_NAME,),
)
PENDING_STORE_REFUSED: Final = _metric(
    "traced_tools.pending_store.refused",
    "gauge",
    "{run}",
    "Runs in a pending store that can't resume, until they are withdrawn or retried.",
    (at.AGENT_NAME, at.RESUME_REFUSAL),
)
PENDING_STORE_RUNS: Final = _metric(
    "traced_tools.pending_store.runs",
    "gauge",
    "{run}",
    "Durable runs in a pending store that have neither finished nor been withdrawn, by their status.",
    (at.AGENT_NAME, at.DURABLE_RUN_STATUS),
)
PENDING_STORE_OLDEST_RUN: Final = _metric(
    "traced_tools.pending_store.oldest_run",
    "gauge",
    "s",
    "Longest time for which a durable run has its status; of a running one, the time since its last record.",
    (at.AGENT_NAME, at.DURABLE_RUN_STATUS),
)
DURABLE_RUN_LIVES: Final = _metric(
    "traced_tools.durable_run.lives",
    "histogram",
    "{life}",
    "Lives that durable runs had when they finished or failed.",
    (at.AGENT_NAME, at.DURABLE_RUN_STATUS),
    _COUNTS,
)
DURABLE_RUN_IDLE: Final = _metric(
    "traced_tools.durable_run.idle",
    "histogram",
    "s",
    "Time from the last record of a durable run that waits for no person to its next life.",
    (at.AGENT_NAME, at.DURABLE_RUN_STATUS),
    _APPROVAL_SECONDS,
)
DURABLE_RUN_TAKEN: Final = _metric(
    "traced_tools.durable_run.taken",
    "counter",
    "{life}",
    "Lives that stopped because another process went on with the run, or it was withdrawn or deleted.",
    (at.AGENT_NAME,),
)
DURABLE_RUN_UNKNOWN_OUTCOMES: Final = _metric(
    "traced_tools.durable_run.unknown_outcomes",
    "counter",
    "{tool_call}",
    "Tool calls whose outcome is unknown because the process of their run ended while their tool ran.",
    (at.AGENT_NAME,),
)
DURABLE_RUN_RECORD_DURATION: Final = _metric(
    "traced_tools.durable_run.record.duration",
    "histogram",
    "s",
    "Duration of the transactions that keep the records of durable runs.",
    (at.AGENT_NAME,),
    _ADVISOR_SECONDS,
)
TOOL_OLDEST_ACTIVE: Final = _metric(
    "traced_tools.tool.oldest_active",
    "gauge",
    "s",
    "Age of the oldest running call of a tool; it grows while a call is stuck.",
    (at.TOOL_NAME, at.AGENT_NAME),
)
USAGE_COST: Final = _metric(
    "traced_tools.usage.cost",
    "counter",
    "{USD}",
    "Cost of model calls according to the price table; only reported if there is one.",
    (at.PROVIDER_NAME, at.REQUEST_MODEL, at.AGENT_NAME),
)
UNPRICED_TOKENS: Final = _metric(
    "traced_tools.usage.unpriced_tokens",
    "counter",
    "{token}",
    "Input and output tokens of calls without a price in the price table; only reported if there is a table.",
    (at.PROVIDER_NAME, at.REQUEST_MODEL, at.AGENT_NAME),
)
MEMORY_OPERATION_DURATION: Final = _metric(
    "traced_tools.memory.operation.duration",
    "histogram",
    "s",
    "Duration of reading conversations and of appending to them.",
    (at.OPERATION_NAME, at.AGENT_NAME, at.ERROR_TYPE),
    _ADVISOR_SECONDS,
)
MEMORY_MESSAGES: Final = _metric(
    "traced_tools.memory.messages",
    "counter",
    "{message}",
    "Messages of conversations that were read, stored, or left out of what the model is sent.",
    (at.AGENT_NAME, at.MEMORY_MESSAGES_KIND),
)
MEMORY_CONFLICTS_METRIC: Final = _metric(
    "traced_tools.memory.conflicts",
    "counter",
    "{conflict}",
    "Times a conversation had changed meanwhile and was appended to again.",
    (at.AGENT_NAME,),
)
MEMORY_FAILURES: Final = _metric(
    "traced_tools.memory.failures",
    "counter",
    "{failure}",
    "Failed operations of memory after which the run went on without it.",
    (at.OPERATION_NAME, at.AGENT_NAME, at.ERROR_TYPE),
)
COMPACTIONS: Final = _metric(
    "traced_tools.memory.compactions",
    "counter",
    "{compaction}",
    "Attempts to compact conversations, by how they ended.",
    (at.AGENT_NAME, at.COMPACTION_TRIGGER, at.COMPACTION_STRATEGY, at.COMPACTION_OUTCOME),
)
COMPACTION_TOKENS_SAVED: Final = _metric(
    "traced_tools.memory.compaction.tokens_saved",
    "histogram",
    "{token}",
    "Tokens that the model is sent less after a compaction; 0 if it is sent more.",
    (at.AGENT_NAME, at.COMPACTION_STRATEGY),
    _TOKENS,
)
MISSING_RESULTS: Final = _metric(
    "traced_tools.memory.missing_results",
    "counter",
    "{tool_call}",
    "Tool calls without results, left by interrupted runs, that were answered in the conversation.",
    (at.AGENT_NAME, at.MISSING_RESULTS_KIND),
)
_TOOL_SEARCH = (at.TOOL_SEARCH_INDEX, at.AGENT_NAME)
TOOL_SEARCHES: Final = _metric(
    "traced_tools.tool_search.searches", "counter", "{search}", "Searches for tools.", _TOOL_SEARCH
)
TOOLS_DISCOVERED: Final = _metric(
    "traced_tools.tool_search.discovered",
    "counter",
    "{tool}",
    "Tools that were discovered in a session, by a search or because the model called them.",
    _TOOL_SEARCH,
)
TOOLS_WITHHELD: Final = _metric(
    "traced_tools.tool_search.withheld",
    "histogram",
    "{tool}",
    "Tools per model call that the model was not offered, because they were not discovered.",
    _TOOL_SEARCH,
    _MANY_COUNTS,
)
TOOL_TOKENS_SAVED: Final = _metric(
    "traced_tools.tool_search.tokens_saved",
    "histogram",
    "{token}",
    "Tokens that the definitions of withheld tools would take per model call, as an estimate.",
    _TOOL_SEARCH,
    _TOKENS,
)
MCP_CLIENT_DURATION: Final = _metric(
    "mcp.client.operation.duration",
    "histogram",
    "s",
    "Duration of requests to MCP servers. A tool has the name that its server uses.",
    (
        at.MCP_METHOD,
        at.TOOL_NAME,
        at.TOOL_SOURCE,
        at.AGENT_NAME,
        at.NETWORK_TRANSPORT,
        at.MCP_PROTOCOL_VERSION,
        at.RPC_STATUS_CODE,
        at.ERROR_TYPE,
    ),
    _MCP_SECONDS,
)
MCP_TOOLS_OMITTED: Final = _metric(
    "traced_tools.mcp.tools.omitted",
    "counter",
    "{tool}",
    "Tools of MCP servers that are not offered, each time that they are listed.",
    (at.TOOL_SOURCE, at.MCP_OMISSION),
)
MCP_SERVERS_OMITTED: Final = _metric(
    "traced_tools.mcp.servers.omitted",
    "counter",
    "{run}",
    "Runs that go on without the tools of an MCP server that can't be reached and is not required.",
    (at.TOOL_SOURCE, at.AGENT_NAME),
)
EXPORT_ITEMS: Final = _metric(
    "traced_tools.export.items",
    "counter",
    "{item}",
    "Spans, metric points, log records and events that were sent.",
    (at.EXPORTER_NAME,),
)
EXPORT_DROPPED: Final = _metric(
    "traced_tools.export.dropped",
    "counter",
    "{item}",
    "Spans, metric points, log records and events that were lost before they were sent.",
    (at.EXPORTER_NAME, at.DROP_REASON),
)
EXPORT_QUEUE_SIZE: Final = _metric(
    "traced_tools.export.queue.size", "gauge", "{item}", "Items waiting to be sent.", (at.EXPORTER_NAME,)
)
AUDIT_RECORDS: Final = _metric(
    "traced_tools.audit.records",
    "counter",
    "{record}",
    "Audit records that became durable; the records of calls and compactions have their agent.",
    (at.AUDIT_RECORD, at.AGENT_NAME),
)
AUDIT_LAG: Final = _metric(
    "traced_tools.audit.lag",
    "gauge",
    "s",
    "Age of the oldest audit record that is not durable yet; 0 if there is none.",
    (),
)
AUDIT_VERIFIED: Final = _metric(
    "traced_tools.audit.verified",
    "gauge",
    "{bool}",
    "1 if the last verification of each audit store found no problem, else 0; absent before the first verification.",
    (),
)
AUDIT_LAST_VERIFIED: Final = _metric(
    "traced_tools.audit.last_verified",
    "gauge",
    "s",
    "Unix time of the last verification of an audit store; the oldest one if there are several stores.",
    (),
)
AUDIT_CHECKPOINTS_FAILED: Final = _metric(
    "traced_tools.audit.checkpoints.failed",
    "counter",
    "{attempt}",
    "Failed attempts to publish an audit checkpoint outside the store; each is retried.",
    (at.ERROR_TYPE,),
)
AUDIT_CHECKPOINTS_LOST: Final = _metric(
    "traced_tools.audit.checkpoints.lost",
    "counter",
    "{checkpoint}",
    "Audit checkpoints never published outside the store, because too many were pending or the trail was closed.",
    (),
)
