"""Closed lists of values that telemetry uses, each as a type and as a tuple."""

from __future__ import annotations

from typing import Final, Literal, get_args

Conventions = Literal["v0.1.0", "v1.41.0"]
"""The releases of the GenAI conventions that name what model calls emit.

`v0.1.0` is the first release of OpenTelemetry's GenAI conventions, and `v1.41.0` the last release of its general ones
that contains them.
"""
CONVENTIONS: Final[tuple[Conventions, ...]] = ("v0.1.0", "v1.41.0")

CaptureMode = Literal["NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT"]
CAPTURE_MODES: Final[tuple[CaptureMode, ...]] = get_args(CaptureMode)

Detail = Literal["run", "steps", "hooks"]
DETAILS: Final[tuple[Detail, ...]] = get_args(Detail)
"""The amount of spans of a run, from fewest to most."""

Hook = Literal[
    "advise",
    "advise_tool",
    "initialize",
    "before",
    "after",
    "next_instructions",
    "finalize",
    "on_chunk",
    "on_event",
    "decide_approval",
    "resume",
    "complete",
]
HOOKS: Final = get_args(Hook)

TimeKind = Literal["model", "tool", "hook", "chunk", "queue", "approval", "reader", "own"]
TIME_KINDS: Final[tuple[TimeKind, ...]] = get_args(TimeKind)
"""What the time of a run goes to."""

StopReason = Literal[
    "answered",
    "return_direct",
    "max_iterations",
    "max_tool_calls",
    "max_calls_per_tool",
    "repeated_call",
    "token_budget",
    "deadline",
    "consecutive_errors",
    "awaiting_approval",
    "awaiting_input",
    "advisor",
    "cancelled",
    "error",
]
STOP_REASONS: Final = get_args(StopReason)

ToolOutcome = Literal["ok", "error", "timeout", "cancelled", "unknown", "input_required"]
TOOL_OUTCOMES: Final = get_args(ToolOutcome)

Decision = Literal[
    "allowed",
    "denied",
    "approved",
    "rejected",
    "pending",
    "answered",
    "limited",
    "repeated",
    "unknown_tool",
    "invalid_arguments",
]
DECISIONS: Final = get_args(Decision)

PolicyDecision = Literal["allow", "deny", "require_approval"]
POLICY_DECISIONS: Final = get_args(PolicyDecision)

SUPERSEDED: Final = "superseded"
"""The reason code of a call that a run left without a result, and that the conversation has passed by."""

ASKED_CLIENT: Final = "mcp_client"
"""The reason code of a call about which the user of an MCP client has decided."""
CANNOT_ASK_CLIENT: Final = "mcp_client_cannot_ask"
"""The reason code of a call that requires approval and whose MCP client cannot ask its user."""
INVALID_STATE: Final = "mcp_state_invalid"
"""The reason code of a call with an approval that is for another call, was used before, or has expired."""
MCP_TOOLS_CHANGED: Final = "mcp_tools_changed"
"""The reason code of a call through a gateway to a server whose tools differ from the pinned ones."""

REASON_CODES: Final = (
    "max_tool_calls",
    "max_calls_per_tool",
    "max_iterations",
    "repeated_call",
    "token_budget",
    "deadline",
    "consecutive_errors",
    "approval_timeout",
    "approval_failed",
    SUPERSEDED,
    "audit_unavailable",
    "policy_default",
    "policy_error",
    ASKED_CLIENT,
    CANNOT_ASK_CLIENT,
    INVALID_STATE,
    MCP_TOOLS_CHANGED,
)
"""The reason codes that this package sets. Advisors and drivers may set others."""

STANDING_APPROVAL: Final = "approval"
"""The reason code of a call that an earlier approval covers, before a colon and the id of the call approved then."""

LOCAL: Final = "local"
"""The source of a tool that no MCP server provides."""

Repair = Literal[
    "blank",
    "null",
    "string",
    "code_fence",
    "empty_object",
    "null_fields",
    "number_as_string",
    "json_string",
    "dummy_argument",
]
REPAIRS: Final = get_args(Repair)

IterationOutcome = Literal["tool_calls", "answer", "error"]
ITERATION_OUTCOMES: Final = get_args(IterationOutcome)

OpenInferenceKind = Literal["AGENT", "CHAIN", "LLM", "TOOL", "EMBEDDING", "RETRIEVER"]
OPENINFERENCE_KINDS: Final = get_args(OpenInferenceKind)

McpTransport = Literal["pipe", "tcp"]
"""The GenAI conventions' names of the transports of MCP: `pipe` for stdio, `tcp` for HTTP."""
MCP_TRANSPORTS: Final[tuple[McpTransport, ...]] = get_args(McpTransport)

MemoryOperation = Literal["search_memory", "upsert_memory"]
"""The GenAI conventions' names of reading from a memory and of storing in it."""

CompactionOutcome = Literal["compacted", "unchanged", "superseded", "failed"]
COMPACTION_OUTCOMES: Final = get_args(CompactionOutcome)

RetryReason = Literal["invalid_output", "evaluation"]
RETRY_REASONS: Final = get_args(RetryReason)

ResumeRefusal = Literal["state_invalid", "tool_missing", "tool_changed", "conversation_changed"]
"""Why a run that waited can't resume, now or later."""
RESUME_REFUSALS: Final[tuple[ResumeRefusal, ...]] = get_args(ResumeRefusal)

RunStatus = Literal["submitted", "running", "interrupted", "waiting", "finished", "failed", "withdrawn"]
"""Where a durable run is. `running` says that a process began to drive it: the process may have died since then."""
RUN_STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)

Safeguarded = Literal["request", "response"]
SAFEGUARDED: Final = get_args(Safeguarded)

OUTPUT_TYPES: Final = ("text", "json", "image", "speech")

FINISH_REASONS: Final = ("stop", "length", "tool_call", "content_filter", "error")

DropReason = Literal["queue_full", "export_failed", "shutdown"]
DROP_REASONS: Final = get_args(DropReason)

McpOmission = Literal["invalid", "limit"]
MCP_OMISSIONS: Final = get_args(McpOmission)

AUDIT_RECORD_KINDS: Final = (
    *("intent", "decision", "outcome", "compaction", "tools_changed"),
    *("checkpoint", "gap", "erasure"),
)

AUDIT_OUTCOME_VALUES: Final = (*TOOL_OUTCOMES, "invalid_arguments")
