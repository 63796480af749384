"""The meanings of the values of closed lists, for the reference pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from traced_tools.observe.names import attributes as at

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    at.OPERATION_NAME: {
        at.CHAT: "A chat model call.",
        at.EMBEDDINGS: "An embedding model call.",
        at.EXECUTE_TOOL: "A tool call whose tool ran.",
        at.INVOKE_AGENT: "A run.",
        at.RETRIEVAL: "A search for tools.",
        at.SEARCH_MEMORY: "Memory read a conversation: what the model is sent of it, or what was looked up.",
        at.UPSERT_MEMORY: "Memory appended messages to a conversation.",
    },
    at.LOOP_STOP_REASON: {
        "answered": "The model answered without requesting more tool calls.",
        "return_direct": "The tool results are the answer, because the tools have `return_direct` set.",
        "max_iterations": "The maximum number of iterations was reached.",
        "max_tool_calls": "The maximum number of tool calls was reached.",
        "max_calls_per_tool": "The maximum number of calls of one tool was reached.",
        "repeated_call": "The model repeated the same call too often.",
        "token_budget": "The maximum number of tokens was reached.",
        "deadline": "The maximum duration was reached.",
        "consecutive_errors": "All calls of several consecutive iterations failed or were refused.",
        "awaiting_approval": "A call of the run, or of an agent that it asked, requires approval, and nobody decided.",
        "awaiting_input": "A tool asked for input, and nobody answered during the run.",
        "advisor": "An advisor ended the run with the result of a call, answered without a model call, or replaced the "
        "answer.",
        "cancelled": "The run was cancelled, or its stream was closed early.",
        "error": "The run raised an exception.",
    },
    at.TOOL_DECISION: {
        "allowed": "The tool was allowed to run.",
        "denied": "An advisor or the run's driver refused the call, or asking for approval failed.",
        "approved": "A person or service approved the call, and the tool was allowed to run.",
        "rejected": "A person or service refused the call when asked for approval.",
        "pending": "The call requires approval, and nobody decided during the run.",
        "answered": "An advisor or the run's driver supplied a result instead of the tool.",
        "limited": "The loop refused the call because of a limit.",
        "repeated": "The loop refused the call because the model had made the same call too often.",
        "unknown_tool": "No registered tool has the requested name. The span has an error.",
        "invalid_arguments": "The arguments are invalid. The span has an error.",
    },
    at.TOOL_OUTCOME: {
        "ok": "The tool returned a result.",
        "error": "The tool raised an exception.",
        "timeout": "The tool exceeded its time-out.",
        "cancelled": "The run was cancelled while the tool ran.",
        "unknown": "The tool had begun, and nobody can say how it ended, such as after a lost connection.",
        "input_required": "The tool asked for input, or the agent that it asked waits, and the run waits with it.",
    },
    at.NETWORK_TRANSPORT: {
        "pipe": "The standard input and output of a process.",
        "tcp": "Streamable HTTP.",
    },
    at.ITERATION_OUTCOME: {
        "tool_calls": "The model requested tool calls.",
        "answer": "The model answered without requesting tool calls.",
        "error": "The iteration raised an exception or was cancelled.",
    },
    at.ADVISOR_HOOK: {
        "advise": "Runs around the inner advisors and the model.",
        "advise_tool": "Runs around one tool call.",
        "initialize": "Runs once, before the first iteration.",
        "before": "Runs before each model call.",
        "after": "Runs after each model call, before its tools.",
        "finalize": "Runs once, at the end of the loop, however it ends.",
    },
    at.TOOL_ARGUMENTS_REPAIRS: {
        "blank": "The arguments were blank and were replaced with an empty object.",
        "null": "The arguments were null and were replaced with an empty object.",
        "string": "The arguments were a JSON string that contained JSON, which was decoded.",
        "code_fence": "The arguments were in a Markdown code fence, which was removed.",
        "empty_object": "Empty objects stood before or after the object and were removed.",
        "null_fields": "Optional fields were null and were removed.",
        "number_as_string": "A number in a string field was converted to a string.",
        "json_string": "An array or object was written as a JSON string, which was decoded.",
        "dummy_argument": "The tool takes no arguments, and a placeholder argument was removed.",
    },
    at.MEMORY_MESSAGES_KIND: {
        "read": "Messages of the conversation that the model is sent, or that were looked up.",
        "stored": "Messages that were appended to the conversation.",
        "left_out": "Messages of the conversation that are not in what the model is sent.",
    },
    at.COMPACTION_OUTCOME: {
        "compacted": "The model is sent less from now on.",
        "unchanged": "No strategy found anything to leave out.",
        "superseded": "Another run compacted the conversation first.",
        "failed": "A strategy failed, such as its summary, or the conversation could not be stored.",
    },
    at.MISSING_RESULTS_KIND: {
        "not_run": "The tool did not start, and the model was told so.",
        "unknown": "The tool may have run, and the model was told that its outcome is unknown.",
    },
    at.RESUME_REFUSAL: {
        "state_invalid": "The store's state of the run, or a call in it, was altered.",
        "tool_missing": "The client has no tool of the name that a waiting call has.",
        "tool_changed": "The definition or the source of a waiting call's tool has changed.",
        "conversation_changed": "The conversation went on without the run, or was deleted.",
    },
    at.RETRY_REASON: {
        "invalid_output": "The answer was no valid output.",
        "evaluation": "A judge scored the answer below the threshold.",
    },
    at.OPENINFERENCE_KIND: {
        "AGENT": "A run.",
        "CHAIN": "An iteration, a hook, an operation of memory, or a compaction.",
        "LLM": "A chat model call.",
        "TOOL": "A requested tool call, run or refused.",
        "EMBEDDING": "An embedding model call.",
        "RETRIEVER": "A search for tools.",
    },
    at.AUDIT_RECORD: {
        "intent": "The model's request for a tool call; by default durable before the tool starts.",
        "decision": "The decision on the call.",
        "outcome": "How the call ended.",
        "compaction": "A conversation was compacted, so that the model is sent less of it from then on.",
        "tools_changed": "The tools of an MCP server differ from the pinned ones.",
        "checkpoint": "The number of records in the chain and the hash of the last one.",
        "gap": "Intents became durable late or records were lost, because the store was not writable.",
        "erasure": "Content texts were erased on request.",
    },
    at.AUDIT_OUTCOME: {
        "ok": "The tool returned a result.",
        "error": "The tool raised an exception.",
        "timeout": "The tool exceeded its time-out.",
        "cancelled": "The run was cancelled while the tool ran.",
        "unknown": "The tool had begun, and nobody can say how it ended.",
        "input_required": "The tool asked for input, or the agent that it asked waits, and the run waits with it.",
        "invalid_arguments": "The tool did not run because its arguments are invalid.",
    },
    at.DROP_REASON: {
        "queue_full": "The queue of the exporter was full.",
        "export_failed": "The export failed: the receiver was unreachable or refused the item, or retries ran out.",
        "shutdown": "The exporter was closed before the item was sent.",
    },
}
