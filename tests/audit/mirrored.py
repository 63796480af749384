"""Records as they stand in a store, one of each kind."""

from __future__ import annotations

from typing import Any

from traced_tools.audit.records import RECORD_KINDS, AuditRecord, body_of, hash_of, timestamp
from traced_tools.audit.schema import REPEATED
from traced_tools.audit.store import Row

NOON = 1_767_268_800_123_456_789
DIGEST = {"digest": "ab" * 32, "form": "json", "size": 12, "key_id": "00112233aabbccdd"}
CALL = {
    "agent": "travel",
    "run_id": "run-1",
    "conversation_id": "c-1",
    "call_id": "call-1",
    "tool": "get_weather",
    "iteration": 2,
    "batch_index": 0,
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "span_id": "b7ad6b7169203331",
}
FIELDS: dict[str, dict[str, Any]] = {
    "intent": {
        **CALL,
        "batch_size": 3,
        "source": "local",
        "model": "gpt-5",
        "provider": "openai",
        "response_id": "chatcmpl-1",
        "definition_digest": "cd" * 32,
        "arguments": DIGEST,
        "reason": DIGEST,
        "argument_names": ["city"],
        "principal": {**DIGEST, "form": "text", "size": 3},
        "actors": ["agent:planner", "tool:ask_travel"],
    },
    "decision": {
        **CALL,
        "decision": "denied",
        "advisor": "policy",
        "reason_code": "rule-7",
        "rule": "rule-7",
        "policy_digest": "9f86d081884c7d65",
        "by": DIGEST,
        "error_type": "invalid_arguments",
    },
    "outcome": {
        **CALL,
        "outcome": "error",
        "error_type": "ValueError",
        "attempts": 2,
        "duration": 0.5,
        "result": DIGEST,
    },
    "compaction": {
        **{name: value for name, value in CALL.items() if name not in ("call_id", "tool", "batch_index")},
        "entry_id": "entry-1",
        "trigger": "tokens",
        "strategy": "tool_results,summary",
        "covered": 12,
        "through": 14,
        "branch": "research",
        "tokens_before": 900,
        "tokens_after": 300,
        "tokens_estimated": True,
    },
    "tools_changed": {
        **{name: value for name, value in CALL.items() if name not in ("call_id", "tool", "batch_index")},
        "iteration": 0,
        "source": "github",
        "changes": ["get_issue: description"],
        "refused": True,
    },
    "checkpoint": {"records": 7, "head": "ef" * 32, "heads": {}},
    "gap": {"since": timestamp(NOON), "until": timestamp(NOON), "late": 2, "lost": 1},
    "erasure": {"erased": [], "erased_run": "run-1", "requested_by": "ticket 7", "erasure_reason": "a request"},
}


def record(kind: str = "intent", sequence: int = 1, **more: Any) -> AuditRecord:
    """A record as it stands in a store."""
    body = body_of({"kind": kind, "chain_id": "chain-1", "sequence": sequence, **FIELDS[kind], **more})
    return AuditRecord("chain-1", sequence, NOON, kind, hash_of(body), body)  # type: ignore[arg-type]


def rows_of(*records: AuditRecord) -> list[Row]:
    """Records as they go into a store."""
    return [
        (each.chain_id, each.sequence, each.time, each.kind, *map(each.fields.get, REPEATED), each.hash, each.body)
        for each in records
    ]


def one_of_each() -> list[AuditRecord]:
    return [record(kind, sequence) for sequence, kind in enumerate(RECORD_KINDS, 1)]


class Waiting:
    """Stands for a trail whose oldest record waits so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def lag(self) -> float:
        return self.seconds


WAITING = Waiting(0.5)
"""Lives as long as the tests."""
