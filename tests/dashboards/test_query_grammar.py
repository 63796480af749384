"""Every query of every board and rule follows the grammar of its language, with which Grafana's editors parse it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.dashboards.board_queries import BoardQuery, all_queries, queries_of_board
from tests.dashboards.node import NPM, run_node

QUERIES = all_queries()


def syntax_errors(queries: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the syntax errors of each query, which is a language and a text."""
    lines = [json.dumps({"language": language, "query": query}) for language, query in queries]
    done = run_node(NPM / "parse_queries.mjs", needs="@grafana/lezer-logql", standard_input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_query_of_boards_and_rules_follows_its_grammar() -> None:
    errors = syntax_errors([(query.language, query.resolve()) for query in QUERIES])
    wrong = {f"{query}: {query.text}": each for query, each in zip(QUERIES, errors, strict=True) if each}
    assert wrong == {}


GOOD_AND_BROKEN = [
    ("promql", "sum by (le) (rate(x_bucket[5m]))", "sum by (le) (rate(x_bucket[5m])"),
    ("promql", 'x{a=~".+"} > 0', 'x{a~=".+"} > 0'),
    ("logql", '{a="b"} | c="d" | json', '{a="b" | c="d" | json'),
    ("logql", "sum by (a) (count_over_time({b=~`.+`} [5m]))", "sum by (a) (count_over_time({b=~`.+`} 5m))"),
    ("traceql", '{ span.a = "b" } | select(span.c)', '{ span.a = "b" | select(span.c)'),
    ("traceql", "{ kind = client } | rate() by (span.a)", "{ kind = client && } | rate() by (span.a)"),
]


def test_the_checker_finds_errors_in_broken_queries_only() -> None:
    good = syntax_errors([(language, query) for language, query, _ in GOOD_AND_BROKEN])
    broken = syntax_errors([(language, query) for language, _, query in GOOD_AND_BROKEN])
    assert good == [[]] * len(GOOD_AND_BROKEN)
    assert len(broken) == len(GOOD_AND_BROKEN)
    assert all(broken)


PROMETHEUS, LOKI, TEMPO = ({"type": kind, "uid": f"${{{kind}}}"} for kind in ("prometheus", "loki", "tempo"))
VERSIONS = 'label_replace(version, "major", "$1", "version", "(.)[.].*")'
BOARD = {
    "uid": "tt-example",
    "templating": {
        "list": [
            {"name": "prometheus", "type": "datasource", "query": "prometheus"},
            {"name": "job", "type": "query", "datasource": PROMETHEUS, "query": "label_values(up, job)"},
            {
                "name": "agent",
                "type": "query",
                "datasource": PROMETHEUS,
                "query": {"query": 'label_values(runs{job=~"$job"}, agent)', "refId": "A"},
                "allValue": ".*",
            },
            {"name": "label", "type": "query", "datasource": PROMETHEUS, "query": "label_values(instance)"},
            {"name": "tool", "type": "query", "datasource": LOKI, "query": {"stream": '{a="b"}', "label": "c"}},
        ]
    },
    "annotations": {
        "list": [
            {"name": "Grafana's own", "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "builtIn": 1},
            {"name": "deployments", "datasource": PROMETHEUS, "expr": VERSIONS},
            {"name": "stops", "datasource": LOKI, "target": {"expr": '{a="b"}', "refId": "A"}},
        ]
    },
    "panels": [
        {"id": 1, "type": "text", "title": "a text"},
        {
            "id": 2,
            "title": "runs",
            "datasource": PROMETHEUS,
            "targets": [{"expr": 'rate(runs{agent=~"${agent:regex}"}[$__rate_interval])', "exemplar": True}],
        },
        {
            "id": 3,
            "type": "row",
            "title": "a row",
            "panels": [
                {"id": 4, "title": "logs", "datasource": LOKI, "targets": [{"expr": '{job=~"$job"} |= "[[tool]]"'}]},
                {
                    "id": 5,
                    "title": "both",
                    "datasource": {"type": "datasource", "uid": "-- Mixed --"},
                    "targets": [
                        {"datasource": TEMPO, "queryType": "traceql", "query": "{ status = error }"},
                        {"datasource": PROMETHEUS, "expr": "sum(increase(runs[$__range]))", "instant": True},
                    ],
                },
            ],
        },
    ],
}


def test_a_board_is_read_with_its_rows_variables_and_annotations() -> None:
    found = [
        (query.panel, query.title, query.language, query.resolve(job="travel"), query.exemplars, query.is_instant)
        for query in queries_of_board(BOARD)
    ]
    assert found == [
        (2, "runs", "promql", 'rate(runs{agent=~".*"}[5m])', True, False),
        (4, "logs", "logql", '{job=~"travel"} |= ".+"', False, False),
        (5, "both", "traceql", "{ status = error }", False, False),
        (5, "both", "promql", "sum(increase(runs[1h]))", False, True),
        (None, "job", "promql", "up", False, True),
        (None, "agent", "promql", 'runs{job=~"travel"}', False, True),
        (None, "tool", "logql", '{a="b"}', False, True),
        (None, "deployments", "promql", VERSIONS, False, False),
        (None, "stops", "logql", '{a="b"}', False, False),
    ]


def test_a_variable_that_the_board_does_not_have_is_an_error() -> None:
    query = BoardQuery("tt-example", 1, "runs", "promql", 'runs{agent=~"$agnet"}', variables={"agent": ".+"})
    with pytest.raises(KeyError, match="agnet"):
        query.resolve()
