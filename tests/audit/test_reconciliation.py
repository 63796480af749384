"""Three ways to count tool calls agree: the metric, the spans, and the records of the trail."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from tests.observe.runs import Broken, Guard, adds
from tests.sample_tools import add, direct, fail
from traced_tools import Advisor, ChatClient, LoopLimits, ToolCall, tool
from traced_tools.audit import AuditTrail
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.writing import mirror
from traced_tools.core import ToolErrors
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.testing import ScriptedChatModel

RUNS = 200
LIMITS = (LoopLimits(), LoopLimits(max_tool_calls=4), LoopLimits(max_iterations=1), LoopLimits(max_repeated_calls=1))
POLICIES = (ToolErrors(), ToolErrors(), ToolErrors(always_raise=True, unknown_tool="raise"))


@tool(requires_approval=True)
def guarded() -> str:
    """Never run."""
    return ""


def some_call(chance: random.Random) -> ToolCall:
    return chance.choice(
        [
            adds(chance.randrange(3), 1),
            ToolCall("fail", ""),
            ToolCall("direct", {"text": "x"}),
            ToolCall("guarded", ""),
            ToolCall(f"made up {chance.random()}"),
            ToolCall("add", '{"a": "no number"}'),
        ]
    )


def some_run(seed: int, advisor: AuditAdvisor, telemetry: Telemetry) -> None:
    """Run an agent that asks for many things, of which many go wrong."""
    chance = random.Random(seed)
    turns = [[some_call(chance) for _ in range(chance.randint(1, 6))] for _ in range(chance.randint(1, 3))]
    others: list[list[Advisor]] = [[], [], [Guard()], [Broken("advise_tool", chance.choice([350, 450]))]]
    client = ChatClient(
        ScriptedChatModel([*turns, "x", "x"]),
        name=f"agent-{seed % 3}",
        tools=[add, fail, direct, guarded],
        advisors=[advisor, *chance.choice(others)],
        limits=chance.choice(LIMITS),
        tool_errors=chance.choice(POLICIES),
        telemetry=telemetry.options,
    )
    with suppress(Exception):
        run(MODES[seed % 4], client.prompt("?"))


def count(store: sqlite3.Connection, what: str, kind: str) -> Counter[str]:
    rows = store.execute(f"SELECT {what} FROM audit_records WHERE kind = ?", [kind])
    return Counter(word for (word,) in rows)


@pytest.mark.slow
def test_the_metric_the_spans_and_the_records_agree(tmp_path: Path) -> None:
    telemetry = Telemetry()
    with AuditTrail(tmp_path / "audit.db", telemetry=telemetry.options) as trail:
        advisor = AuditAdvisor(trail)
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(some_run, seed, advisor, telemetry) for seed in range(RUNS)]:
                done.result()
    assert mirror.flush()

    spans = [each for each in telemetry.spans if each.name.startswith(("execute_tool", "refuse_tool"))]
    decided = Counter(str(each.attributes.get(names.TOOL_DECISION, "")) for each in spans if each.attributes)
    undecided = decided.pop("", 0)
    assert by_labels(telemetry, names.TOOL_DECISIONS, names.TOOL_DECISION) == decided
    assert undecided and all(decided[each] for each in ("allowed", "denied", "limited", "repeated", "unknown_tool"))

    with closing(sqlite3.connect(tmp_path / "audit.db")) as store:
        recorded = {kind: count(store, "1", kind).total() for kind in ("intent", "decision", "outcome", "checkpoint")}
        words = count(store, "decision", "decision")
        intents = count(store, "run_id || ' ' || iteration || ' ' || batch_index", "intent")
        tools = count(store, "tool", "intent")
        outcomes = count(store, "outcome", "outcome")
    assert recorded["intent"] == len(spans)
    assert recorded["decision"] == decided.total() == len(spans) - undecided
    assert words == counted_as_on_record(decided)
    assert set(intents.values()) == {1}
    assert tools == Counter(str(each.attributes[names.TOOL_NAME]) for each in spans if each.attributes)
    assert outcomes.total() == decided["allowed"] + decided["invalid_arguments"]

    mirrored = Counter(each.name for each in telemetry.events if ".audit." in each.name)
    assert mirrored == {f"traced_tools.audit.{kind}": number for kind, number in recorded.items()}
    assert by_labels(telemetry, names.AUDIT_RECORDS, names.AUDIT_RECORD) == recorded
    of_agents = by_labels(telemetry, names.AUDIT_RECORDS, names.AUDIT_RECORD, names.AGENT_NAME)
    decided_for = by_labels(telemetry, names.TOOL_DECISIONS, names.AGENT_NAME)
    assert decided_for.keys() == {"agent-0", "agent-1", "agent-2"}
    assert {("decision", agent): number for agent, number in decided_for.items()}.items() <= of_agents.items()
    assert of_agents["checkpoint", None] == recorded["checkpoint"]
    assert advisor._runs == {}


def by_labels(telemetry: Telemetry, metric: Metric, *labels: str) -> Counter[Any]:
    """The sums of a counter by the values of a label, or of several labels."""
    found: Counter[Any] = Counter()
    for point in telemetry.metric(metric.name):
        values = tuple(point.attributes.get(label) for label in labels)
        found[values if len(labels) > 1 else values[0]] += int(total(point))
    return found


def counted_as_on_record(decided: Counter[str]) -> Counter[str]:
    """A repeated call is a limited one on record."""
    found: Counter[Any] = Counter()
    for word, number in decided.items():
        found["limited" if word == "repeated" else word] += number
    return found
