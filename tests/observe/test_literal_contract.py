"""The numbers of the contract, repeated literally so that the registry cannot drift unnoticed."""

from __future__ import annotations

import pytest

from traced_tools.observe import names

STEPS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
RUNS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
BYTES = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
DOLLARS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
FINE = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


@pytest.mark.parametrize(
    ("metric", "unit", "boundaries"),
    [
        ("gen_ai.invoke_agent.duration", "s", RUNS),
        ("gen_ai.invoke_agent.inference_calls", "{inference_call}", COUNTS),
        ("gen_ai.invoke_agent.tool_calls", "{tool_call}", COUNTS),
        ("gen_ai.execute_tool.duration", "s", STEPS),
        ("gen_ai.client.operation.duration", "s", STEPS),
        ("gen_ai.client.operation.time_to_first_chunk", "s", STEPS),
        ("gen_ai.client.operation.time_per_output_chunk", "s", STEPS),
        ("gen_ai.client.token.usage", "{token}", TOKENS),
        ("gen_ai.client.inference.duration", "s", STEPS),
        ("gen_ai.client.inference.time_to_first_chunk", "s", STEPS),
        ("gen_ai.client.inference.time_per_output_chunk", "s", STEPS),
        ("gen_ai.client.inference.operation.input_tokens", "{token}", TOKENS),
        ("gen_ai.client.inference.operation.output_tokens", "{token}", TOKENS),
        ("gen_ai.client.embeddings.duration", "s", STEPS),
        ("gen_ai.client.embeddings.operation.input_tokens", "{token}", TOKENS),
        ("traced_tools.loop.iterations", "{iteration}", COUNTS),
        ("traced_tools.loop.cost", "{USD}", DOLLARS),
        ("traced_tools.iteration.duration", "s", STEPS),
        ("traced_tools.tool.result.size", "By", BYTES),
        ("traced_tools.memory.operation.duration", "s", FINE),
        ("traced_tools.memory.compaction.tokens_saved", "{token}", TOKENS),
        ("traced_tools.tool_search.withheld", "{tool}", (*COUNTS, 256, 512, 1024, 2048, 4096)),
        ("traced_tools.tool_search.tokens_saved", "{token}", TOKENS),
        ("traced_tools.evaluation.score", "{score}", SCORES),
    ],
)
def test_a_histogram_has_the_unit_and_the_buckets_of_the_contract(
    metric: str, unit: str, boundaries: tuple[float, ...]
) -> None:
    declared = names.METRICS[metric]
    assert (declared.instrument, declared.unit, declared.boundaries) == ("histogram", unit, boundaries)


def test_the_buckets_of_advisors_reach_from_a_tenth_of_a_millisecond_to_ten_seconds() -> None:
    boundaries = names.METRICS["traced_tools.advisor.duration"].boundaries
    assert (boundaries[0], boundaries[-1]) == (0.0001, 10.0)


@pytest.mark.parametrize(
    ("metric", "instrument", "unit"),
    [
        ("gen_ai.client.inference.usage.input_tokens", "counter", "{token}"),
        ("gen_ai.client.inference.usage.output_tokens", "counter", "{token}"),
        ("gen_ai.client.inference.usage.cache_read.input_tokens", "counter", "{token}"),
        ("gen_ai.client.inference.usage.cache_write.input_tokens", "counter", "{token}"),
        ("gen_ai.client.inference.usage.reasoning.output_tokens", "counter", "{token}"),
        ("traced_tools.tool.decisions", "counter", "{decision}"),
        ("traced_tools.tool.retries", "counter", "{retry}"),
        ("traced_tools.answer.retries", "counter", "{retry}"),
        ("traced_tools.safeguard.blocks", "counter", "{block}"),
        ("traced_tools.tool.active", "updowncounter", "{tool_call}"),
        ("traced_tools.run.active", "updowncounter", "{run}"),
        ("traced_tools.run.oldest_active", "gauge", "s"),
        ("traced_tools.usage.cost", "counter", "{USD}"),
        ("traced_tools.usage.unpriced_tokens", "counter", "{token}"),
        ("traced_tools.export.queue.size", "gauge", "{item}"),
        ("traced_tools.memory.messages", "counter", "{message}"),
        ("traced_tools.memory.conflicts", "counter", "{conflict}"),
        ("traced_tools.memory.failures", "counter", "{failure}"),
        ("traced_tools.memory.compactions", "counter", "{compaction}"),
        ("traced_tools.memory.missing_results", "counter", "{tool_call}"),
        ("traced_tools.tool_search.searches", "counter", "{search}"),
        ("traced_tools.tool_search.discovered", "counter", "{tool}"),
    ],
)
def test_the_other_metrics_have_the_instrument_and_the_unit_of_the_contract(
    metric: str, instrument: str, unit: str
) -> None:
    declared = names.METRICS[metric]
    assert (declared.instrument, declared.unit) == (instrument, unit)


def test_the_spans_of_memory_have_the_names_of_the_contract() -> None:
    found = {span.name: set(span.attributes) for span in names.SPANS if span.name.endswith("_memory")}
    anywhere = {"gen_ai.agent.name", "gen_ai.conversation.id", "traced_tools.iteration.index", "error.type"}
    anywhere.add("openinference.span.kind")
    operation = {*anywhere, "gen_ai.operation.name", "gen_ai.memory.record.count"}
    compaction = "trigger", "strategy", "outcome", "covered", "tokens_before", "tokens_after", "tokens_estimated"
    assert found == {
        "search_memory": {*operation, "traced_tools.memory.left_out"},
        "upsert_memory": {*operation, "traced_tools.memory.conflicts"},
        "compact_memory": {*anywhere, *(f"traced_tools.memory.compaction.{each}" for each in compaction)},
    }
    assert "gen_ai.conversation.compacted" in names.CHAT_SPAN.attributes
    assert {name: event.severity for name, event in names.EVENTS.items() if ".memory." in name} == {
        "traced_tools.memory.compaction": "INFO",
        "traced_tools.memory.missing_results": "WARN",
    }
