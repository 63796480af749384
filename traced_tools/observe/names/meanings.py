"""What the words of closed lists mean, for those who read them on a board or in a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traced_tools.observe.names import attributes as at

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    at.LOOP_STOP_REASON: {
        "answered": "The model answered and asked for no more tools.",
        "return_direct": "The results of the tools are the answer, as the tools say of themselves.",
        "max_iterations": "The limit of passes is reached.",
        "max_tool_calls": "The limit of tool calls is reached.",
        "max_calls_per_tool": "The limit of calls to one tool is reached.",
        "repeated_call": "The model made the same call once too often.",
        "token_budget": "The limit of tokens is reached.",
        "deadline": "The time is over.",
        "consecutive_errors": "The calls of several passes in a row failed or were refused.",
        "awaiting_approval": "Reserved: not emitted yet. A call waits for somebody to approve of it.",
        "advisor": "An advisor ended the run with the result of a call, or answered and no model was asked.",
        "cancelled": "The run was cancelled, or its stream was left.",
        "error": "The run raised.",
    },
    at.TOOL_DECISION: {
        "allowed": "The tool ran.",
        "denied": "An advisor, or whoever drives the run, refused the call; or nobody was asked to approve of it.",
        "approved": "Somebody was asked, and the tool ran.",
        "rejected": "Reserved: not emitted yet. Somebody was asked, and said no.",
        "answered": "An advisor, or whoever drives the run, gave a result in the tool's place.",
        "limited": "A limit of the loop is reached.",
        "repeated": "The same call was made before, too often.",
        "unknown_tool": "There is no such tool. The span fails.",
        "invalid_arguments": "The arguments do not fit the tool. The span fails.",
    },
    at.TOOL_OUTCOME: {
        "ok": "It returned.",
        "error": "It raised.",
        "timeout": "It took longer than it may.",
        "cancelled": "The run was cancelled meanwhile.",
    },
    at.ITERATION_OUTCOME: {
        "tool_calls": "The model asked for tools.",
        "answer": "The model answered.",
        "error": "The pass raised, or was cancelled.",
    },
    at.ADVISOR_HOOK: {
        "advise": "Around all that is further in.",
        "advise_tool": "Around one tool call.",
        "initialize": "Once, before the first pass.",
        "before": "Before each model call.",
        "after": "After each model call, before its tools run.",
        "finalize": "Once, at the end, whatever the end is.",
    },
    at.TOOL_ARGUMENTS_REPAIRS: {
        "blank": "There were none, and an empty object stands for them.",
        "null": "They were null, and an empty object stands for it.",
        "string": "They were JSON within a JSON text.",
        "code_fence": "They stood in a Markdown code fence.",
        "null_fields": "Fields that need not be there were null, and were left out.",
        "number_as_string": "A field that must be a string was a number, and became its digits.",
        "json_string": "An array or object was written as a JSON string.",
        "dummy_argument": "The tool takes no arguments, and a placeholder was left out.",
    },
    at.OPENINFERENCE_KIND: {
        "AGENT": "A run.",
        "CHAIN": "A pass of the loop, or a hook.",
        "LLM": "A call of a chat model.",
        "TOOL": "A requested tool call, run or refused.",
        "EMBEDDING": "A call of an embedding model.",
    },
    at.AUDIT_RECORD: {
        "intent": "What the model wants to do; it is durable before the tool starts.",
        "decision": "What was decided about the call.",
        "outcome": "How the call ended.",
        "checkpoint": "How many records the chain has, and the hash of the last.",
        "gap": "Records came late or were lost, since the store could not be written.",
        "erasure": "Stored texts of contents were erased on request.",
    },
    at.AUDIT_OUTCOME: {
        "ok": "The tool returned.",
        "error": "It raised.",
        "timeout": "It took longer than it may.",
        "cancelled": "The run was cancelled meanwhile.",
        "invalid_arguments": "It did not run: the arguments do not fit.",
    },
    at.DROP_REASON: {
        "queue_full": "More came than could be sent.",
        "export_failed": "The collector was not reached, or refused it, until the time of the request was over.",
        "shutdown": "The exporter was closed before it could be sent.",
    },
}
