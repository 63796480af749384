"""Queries read both sets of names of model calls: after an upgrade, a window has the series of both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dashboards.conventions import (
    MODEL_CALL_DURATION,
    TIME_PER_OUTPUT_CHUNK,
    TIME_TO_FIRST_CHUNK,
    input_tokens_of_chats,
    token_rate,
)
from dashboards.promql import Part, Selection, equals, mean, occurrences, quantile, quantile_of, rate, total
from tests import yaml_files
from tests.dashboards.asked import check_all
from tests.dashboards.board_queries import BoardQuery, all_queries
from tests.dashboards.test_rules import promtool
from tests.judges.programs import ROOT
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.otel.prometheus_names import prometheus_name

SAME = (MODEL_CALL_DURATION, TIME_TO_FIRST_CHUNK, TIME_PER_OUTPUT_CHUNK)
"""The metrics of both sets that mean the same."""
TOKENS = {names.INPUT_TOKENS_USED, names.OUTPUT_TOKENS_USED, names.INPUT_TOKENS_A_CALL, names.EMBEDDINGS_INPUT_TOKENS}


def read_by(text: str) -> set[str]:
    """Return the names of the metrics of only one set of conventions that a text contains."""
    return {
        metric.name
        for metric in names.METRICS.values()
        if metric.only and re.search(rf"\b{prometheus_name(metric)}(_bucket|_sum|_count)?\b", text)
    }


def check_reads_both(text: str) -> None:
    found = read_by(text)
    for group in SAME:
        same = {metric.name for metric in group}
        assert not found & same or same <= found, f"{text} reads {found & same} without {same - found}"
    tokens = {metric.name for metric in TOKENS}
    assert (names.TOKEN_USAGE.name in found) is bool(found & tokens), text


def test_each_query_of_boards_rules_and_alerts_that_reads_one_set_of_names_reads_the_other() -> None:
    queries = [query for query in all_queries() if query.language == "promql"]
    readers = [query for query in queries if read_by(query.text)]
    places = {query.board for query in readers}
    assert places == {"tt-home", "tt-models", "tt-cost", "tt-loops", "tt-telemetry", "alerts.yaml", "recording.yaml"}

    def check(query: BoardQuery) -> None:
        check_reads_both(query.text)

    check_all(readers, check)


def test_the_query_behind_a_span_reads_both_sets_of_names() -> None:
    file = yaml_files.load((ROOT / "deploy" / "grafana" / "datasources.yaml").read_text())
    queries = [
        query["query"]
        for source in file["datasources"]
        for query in source["jsonData"].get("tracesToMetrics", {}).get("queries", ())
    ]
    assert [query for query in queries if read_by(query)]
    for query in queries:
        check_reads_both(query)


def test_a_query_of_one_set_of_names_is_found() -> None:
    with pytest.raises(AssertionError, match=r"without .*gen_ai\.client\.inference\.duration"):
        check_reads_both("rate(gen_ai_client_operation_duration_seconds_count[5m])")
    with pytest.raises(AssertionError):
        check_reads_both("rate(gen_ai_client_token_usage_sum[5m])")


# Values, with the series of both sets side by side: all have the same labels, as in a process that was upgraded.


def series(metric: Metric, growth: int, *matchers: str, part: Part = "") -> dict[str, str]:
    """Return a series that grows by that much a minute."""
    selector = Selection()(metric, 'job="shop"', equals(names.OPERATION_NAME, names.CHAT), *matchers, part=part)
    return {"series": selector, "values": f"0+{growth}x20"}


def tokens(*matchers: str, kind: str) -> tuple[str, ...]:
    return (*matchers, equals(names.TOKEN_TYPE, kind))


OF_DURATIONS = [
    series(names.OPERATION_DURATION, 60, part="sum"),
    series(names.OPERATION_DURATION, 30, part="count"),
    series(names.INFERENCE_DURATION, 180, part="sum"),
    series(names.INFERENCE_DURATION, 30, part="count"),
]
OF_FIRST_CHUNKS = [
    series(metric, growth, f'le="{bound}"', part="bucket")
    for metric, growths in zip(TIME_TO_FIRST_CHUNK, ((60, 60, 60), (0, 60, 60)), strict=True)
    for bound, growth in zip(("1", "2", "+Inf"), growths, strict=True)
]
OF_TOKENS = [
    series(names.TOKEN_USAGE, 60, *tokens(kind="input"), part="sum"),
    series(names.TOKEN_USAGE, 60, *tokens(kind="output"), part="sum"),
    series(names.INPUT_TOKENS_USED, 60),
    series(names.OUTPUT_TOKENS_USED, 120),
    series(names.EMBEDDINGS_INPUT_TOKENS, 60, part="sum"),
    *(
        series(names.TOKEN_USAGE, growth, *tokens(f'le="{bound}"', kind="input"), part="bucket")
        for bound, growth in (("4", 60), ("16", 60), ("+Inf", 60))
    ),
    *(
        series(names.INPUT_TOKENS_A_CALL, growth, f'le="{bound}"', part="bucket")
        for bound, growth in (("4", 0), ("16", 60), ("+Inf", 60))
    ),
]
SELECT = Selection()
KIND = "gen_ai_token_type"


@pytest.mark.parametrize(
    ("data", "query", "expected"),
    [
        (OF_DURATIONS, rate(SELECT(MODEL_CALL_DURATION, part="count"), window="5m"), {"{}": 1}),
        (OF_DURATIONS, occurrences(SELECT(MODEL_CALL_DURATION, part="count"), window="5m"), {"{}": 300}),
        (OF_DURATIONS, mean(SELECT, MODEL_CALL_DURATION, window="5m"), {"{}": 4}),
        (OF_FIRST_CHUNKS, quantile(0.5, SELECT, TIME_TO_FIRST_CHUNK, window="5m"), {"{}": 1}),
        (OF_TOKENS, token_rate(SELECT, window="5m"), {f'{{{KIND}="input"}}': 3, f'{{{KIND}="output"}}': 3}),
        (OF_TOKENS, total(token_rate(SELECT, window="5m")), {"{}": 6}),
        (
            OF_TOKENS,
            quantile_of(0.5, input_tokens_of_chats(SELECT, "bucket"), input_tokens_of_chats(SELECT, ""), window="5m"),
            {"{}": 4},
        ),
    ],
)
def test_series_of_both_sets_with_the_same_labels_add_up(
    tmp_path: Path, data: list[dict[str, str]], query: str, expected: dict[str, float]
) -> None:
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    case = {
        "interval": "1m",
        "input_series": data,
        "promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": samples}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    assert "SUCCESS" in promtool("test", "rules", file)
