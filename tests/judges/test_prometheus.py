"""A real Prometheus scrapes real runs: their metrics are there, under the names and with the labels of the table."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.judges.agent import SCRIPTS, USAGE
from tests.judges.programs import Agent, agent, program
from tests.judges.prometheus import PACKAGE, Prometheus, scraping
from tests.markers import MARKER
from tests.modes import ALL_MODES
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.observe.settings import EARLIER, RELEASED

pytestmark = pytest.mark.slow

CONVENTIONS_OF = {"released": RELEASED, "earlier": EARLIER}
"""The conventions of each agent, by its job."""
EMITTED = (
    names.INVOKE_AGENT_DURATION,
    names.INVOKE_AGENT_INFERENCE_CALLS,
    names.INVOKE_AGENT_TOOL_CALLS,
    names.EXECUTE_TOOL_DURATION,
    names.OPERATION_DURATION,
    names.TIME_TO_FIRST_CHUNK,
    names.TIME_PER_OUTPUT_CHUNK,
    names.TOKEN_USAGE,
    names.INFERENCE_DURATION,
    names.INFERENCE_TIME_TO_FIRST_CHUNK,
    names.INFERENCE_TIME_PER_OUTPUT_CHUNK,
    names.INPUT_TOKENS_USED,
    names.OUTPUT_TOKENS_USED,
    names.CACHE_READ_TOKENS_USED,
    names.REASONING_TOKENS_USED,
    names.INPUT_TOKENS_A_CALL,
    names.OUTPUT_TOKENS_A_CALL,
    names.EMBEDDINGS_DURATION,
    names.EMBEDDINGS_INPUT_TOKENS,
    names.LOOP_ITERATIONS_METRIC,
    names.ITERATION_DURATION,
    names.ADVISOR_DURATION,
    names.TOOL_DECISIONS,
    names.RUN_TIME,
    names.TOOL_RESULT_SIZE_METRIC,
    names.TOOL_RETRIES,
    names.TOOL_ACTIVE,
    names.RUN_ACTIVE,
    names.RUN_OLDEST_ACTIVE,
    names.TOOL_OLDEST_ACTIVE,
)
"""The metrics of the table that the runs emit, under one of the two sets of names or under both."""

NOT_ON_THESE_METRICS = {
    # what goes wrong is known when a call ends, and no call of these runs ends wrong after its first chunk
    names.TIME_TO_FIRST_CHUNK.name: {names.ERROR_TYPE},
    names.INFERENCE_TIME_TO_FIRST_CHUNK.name: {names.ERROR_TYPE},
    # calls that failed report no tokens
    names.TOKEN_USAGE.name: {names.ERROR_TYPE},
    names.INPUT_TOKENS_A_CALL.name: {names.ERROR_TYPE},
    names.OUTPUT_TOKENS_A_CALL.name: {names.ERROR_TYPE},
    names.INPUT_TOKENS_USED.name: {names.ERROR_TYPE},
    names.OUTPUT_TOKENS_USED.name: {names.ERROR_TYPE},
    # no policy decides in these runs
    names.TOOL_DECISIONS.name: {names.POLICY_RULE},
    # no result of these runs is cut
    names.TOOL_RESULT_SIZE_METRIC.name: {names.TOOL_RESULT_CUT},
    # only the model in this process reports these
    names.CACHE_READ_TOKENS_USED.name: {names.ERROR_TYPE, names.SERVER_ADDRESS, names.SERVER_PORT},
    names.REASONING_TOKENS_USED.name: {names.ERROR_TYPE, names.SERVER_ADDRESS, names.SERVER_PORT},
}
CALLS_A_RUN = {"pair": 2, "failing": 2, "refused": 2, "broken": 1, "remote": 1}


@dataclass(frozen=True)
class Scraped:
    """What Prometheus has of an agent's metrics, under one of the two sets of names."""

    job: str
    agent: Agent
    prometheus: Prometheus

    def value(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """Return the sum over all series of a metric that have `labels`; nothing is no sum."""
        return self.prometheus.value(f"sum({self.selected(metric, suffix, **labels)})")

    def selected(self, metric: Metric, suffix: str = "", **labels: str) -> str:
        """Return the selector of those series."""
        wanted = ",".join(f'{name}="{text}"' for name, text in {"job": self.job, **labels}.items())
        return f"{exposed(metric)}{suffix}{{{wanted}}}"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scraped]]:
    """One Prometheus that has scraped two agents, one for each set of names."""
    program("prometheus", PACKAGE)
    with ExitStack() as stack:
        ran = {
            name: stack.enter_context(agent("--prometheus", TRACED_TOOLS_GENAI_CONVENTIONS=conventions))
            for name, conventions in CONVENTIONS_OF.items()
        }
        addresses = {name: each.address for name, each in ran.items()}
        prometheus = stack.enter_context(scraping(addresses, tmp_path_factory.mktemp("prometheus")))
        yield {name: Scraped(name, each, prometheus) for name, each in ran.items()}


@pytest.fixture(params=CONVENTIONS_OF)
def scraped(request: pytest.FixtureRequest, judged: dict[str, Scraped]) -> Scraped:
    """What was scraped under each of the two sets of names."""
    return judged[request.param]


@pytest.fixture
def released(judged: dict[str, Scraped]) -> Scraped:
    """What was scraped under the names of v0.1.0."""
    return judged["released"]


def exposed(metric: Metric) -> str:
    """Return a metric's name in Prometheus."""
    return base(metric) + ("_total" if metric.instrument == "counter" else "")


def base(metric: Metric) -> str:
    """Return that name without what marks a counter."""
    return metric.name.replace(".", "_") + {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")


def emitted(job: str) -> list[Metric]:
    """Return the metrics of the table that the runs of a job emit."""
    return [metric for metric in EMITTED if metric.only in (None, CONVENTIONS_OF[job])]


def sampled(metric: Metric) -> list[str]:
    """Return the names of a metric's series in Prometheus."""
    endings = ("_bucket", "_count", "_sum") if metric.instrument == "histogram" else ("",)
    created = [f"{base(metric)}_created"] if metric.instrument in ("histogram", "counter") else []
    return [*(exposed(metric) + ending for ending in endings), *created]


def test_the_series_are_those_of_the_table(scraped: Scraped) -> None:
    found = {series["__name__"] for series in scraped.prometheus.series(scraped.job)}
    own = {name for name in found if name.startswith(("gen_ai_", "traced_tools_"))}
    assert own == {name for metric in emitted(scraped.job) for name in sampled(metric)}
    assert {name for name in found - own if not name.startswith("scrape_")} == {"target_info", "up"}


def test_the_labels_of_a_series_are_those_of_the_table(scraped: Scraped) -> None:
    series = scraped.prometheus.series(scraped.job)
    for metric in emitted(scraped.job):
        labels = set(metric.attributes) - NOT_ON_THESE_METRICS.get(metric.name, set())
        if metric in (names.EMBEDDINGS_DURATION, names.EMBEDDINGS_INPUT_TOKENS):  # outside of runs
            labels -= {names.AGENT_NAME}
        for name in sampled(metric):
            found = {label for each in series if each["__name__"] == name for label in each}
            bucket = {"le"} if name.endswith("_bucket") else set()
            assert found == {"__name__", *bucket, *(label.replace(".", "_") for label in labels)}, name


def test_no_series_contains_a_scope_or_content(scraped: Scraped) -> None:
    everything = repr(scraped.prometheus.series(scraped.job))
    assert "service_name" in everything
    assert "otel_scope" not in everything
    assert MARKER not in everything


def test_a_duration_is_the_sum_of_its_spans(scraped: Scraped) -> None:
    is_released = scraped.job == "released"
    for metric, operation in (
        (names.INVOKE_AGENT_DURATION, names.INVOKE_AGENT),
        (names.EXECUTE_TOOL_DURATION, names.EXECUTE_TOOL),
        (names.INFERENCE_DURATION if is_released else names.OPERATION_DURATION, names.CHAT),
        (names.EMBEDDINGS_DURATION if is_released else names.OPERATION_DURATION, names.EMBEDDINGS),
    ):
        of_operation = {"gen_ai_operation_name": operation} if names.OPERATION_NAME in metric.attributes else {}
        spans = scraped.agent.of(operation)
        assert scraped.value(metric, "_count", **of_operation) == len(spans) > 0, metric.name
        seconds = math.fsum(span["seconds"] for span in spans)
        if operation in (names.CHAT, names.EXECUTE_TOOL):  # without advisors, approvals, and readers of streams
            assert 0 < scraped.value(metric, "_sum", **of_operation) <= seconds
        else:
            assert scraped.value(metric, "_sum", **of_operation) == pytest.approx(seconds), metric.name


def test_each_run_is_counted_with_its_calls(scraped: Scraped) -> None:
    for name, calls in CALLS_A_RUN.items():
        runs = len(ALL_MODES) if name in SCRIPTS else 1
        assert scraped.value(names.INVOKE_AGENT_DURATION, "_count", gen_ai_agent_name=name) == runs
        assert scraped.value(names.INVOKE_AGENT_INFERENCE_CALLS, "_sum", gen_ai_agent_name=name) == runs * calls
        assert scraped.value(names.LOOP_ITERATIONS_METRIC, "_sum", gen_ai_agent_name=name) == runs * calls


def test_each_decision_and_each_retry_is_counted(scraped: Scraped) -> None:
    decided = scraped.prometheus.values(
        f"sum by (gen_ai_tool_name, traced_tools_tool_decision, traced_tools_advisor_name)"
        f"({scraped.selected(names.TOOL_DECISIONS)})"
    )
    runs = len(ALL_MODES)
    label = {"tool": "gen_ai_tool_name", "decision": "traced_tools_tool_decision", "by": "traced_tools_advisor_name"}
    found = {tuple(labels.get(each) for each in label.values()): value for labels, value in decided}
    assert found == {
        ("weather", "allowed", None): 2 * runs,
        ("flights", "allowed", None): runs,
        ("pay", "denied", "policy"): runs,
        ("_unknown", "unknown_tool", None): runs,
    }
    assert scraped.value(names.TOOL_RETRIES, gen_ai_tool_name="flights", error_type="OSError") == runs


def test_nothing_is_under_way_any_more(scraped: Scraped) -> None:
    for metric in (names.RUN_ACTIVE, names.TOOL_ACTIVE, names.RUN_OLDEST_ACTIVE):
        assert {value for _, value in scraped.prometheus.values(scraped.selected(metric))} == {0}, metric.name


def test_the_tokens_are_those_that_models_reported(judged: dict[str, Scraped]) -> None:
    earlier, released = judged["earlier"], judged["released"]
    answers = sum(names.USAGE_INPUT_TOKENS in span["attributes"] for span in earlier.agent.of(names.CHAT))
    chat = {"gen_ai_operation_name": names.CHAT}
    for kind, count, total in (
        ("input", USAGE.input_tokens, names.INPUT_TOKENS_USED),
        ("output", USAGE.output_tokens, names.OUTPUT_TOKENS_USED),
    ):
        assert count is not None
        assert earlier.value(names.TOKEN_USAGE, "_sum", gen_ai_token_type=kind, **chat) == answers * count
        assert released.value(total, **chat) == answers * count
    assert released.value(names.INPUT_TOKENS_A_CALL, "_count", **chat) == answers


def test_a_quantile_is_read_off_the_buckets(released: Scraped) -> None:
    selected = released.selected(names.INPUT_TOKENS_A_CALL, "_bucket", gen_ai_operation_name="chat")
    quantile = released.prometheus.value(f"histogram_quantile(0.5, sum by (le) ({selected}))")
    assert quantile == 256 + (1024 - 256) * 0.5  # in the middle of the bucket of 812
    seconds = sorted(span["seconds"] for span in released.agent.of(names.INVOKE_AGENT))
    selected = released.selected(names.INVOKE_AGENT_DURATION, "_bucket")
    longest = released.prometheus.value(f"histogram_quantile(1, sum by (le) ({selected}))")
    assert longest == bucket_of(names.INVOKE_AGENT_DURATION, seconds[-1])


def test_each_duration_leads_to_the_span_that_took_it(scraped: Scraped) -> None:
    spans = {span["span_id"]: span for span in scraped.agent.spans}
    calls = names.INFERENCE_DURATION if scraped.job == "released" else names.OPERATION_DURATION
    for metric in (names.INVOKE_AGENT_DURATION, names.EXECUTE_TOOL_DURATION, calls):
        found = scraped.prometheus.exemplars(scraped.selected(metric, "_bucket"))
        assert found, metric.name
        for exemplar in found:
            span = spans[exemplar["labels"]["span_id"]]
            assert span["trace_id"] == exemplar["labels"]["trace_id"]
            took = float(exemplar["value"])
            if metric is not names.INVOKE_AGENT_DURATION:  # without advisors, approvals, and readers of streams
                assert took <= span["seconds"] * (1 + 1e-6)
            else:
                assert span["seconds"] == pytest.approx(took)
            assert float(exemplar["series"]["le"]) == bucket_of(metric, float(exemplar["value"]))


def test_every_histogram_and_every_counter_leads_to_traces_of_the_runs(scraped: Scraped) -> None:
    for metric in emitted(scraped.job):
        if metric.instrument in ("histogram", "counter"):
            suffix = "_bucket" if metric.instrument == "histogram" else ""
            found = scraped.prometheus.exemplars(scraped.selected(metric, suffix))
            assert found, metric.name
            assert {exemplar["labels"]["trace_id"] for exemplar in found} <= scraped.agent.traces, metric.name


def bucket_of(metric: Metric, value: float) -> float:
    """Return the upper bound of the bucket that a value falls in."""
    return next((bound for bound in metric.boundaries if value <= bound), math.inf)


def linted(text: str) -> subprocess.CompletedProcess[str]:
    """Have promtool read the older text format."""
    command = [program("promtool", PACKAGE), "check", "metrics"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)


def test_promtool_finds_nothing_to_complain_of(scraped: Scraped) -> None:
    text = httpx.get(f"http://{scraped.agent.address}/metrics").text
    assert exposed(names.TOOL_DECISIONS) in text
    done: Any = linted(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_would_complain_of_a_counter_that_is_not_called_total() -> None:
    assert "_total" in linted("# HELP a_count A.\n# TYPE a_count counter\na_count 1\n").stderr


@pytest.mark.parametrize("name, least", [("metrics", 6), ("audit-troubleshooting", 2)])
def test_the_questions_on_the_page_are_ones_that_prometheus_understands(
    released: Scraped, name: str, least: int
) -> None:
    page = (Path(__file__).parents[2] / "docs" / f"{name}.md").read_text()
    (block,) = re.findall(r"^```promql\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    questions = [each.partition("\n")[2] for each in re.split(r"^(?=# )", block, flags=re.MULTILINE) if each]
    assert len(questions) >= least
    series = {sample for metric in names.METRICS.values() for sample in sampled(metric)}
    labels = {name.replace(".", "_") for name in names.ATTRIBUTES}
    for question in questions:
        released.prometheus.values(question)  # which fails for what is no PromQL
        words = set(re.findall(r"\b(?:gen_ai|traced_tools)_\w+", question))
        assert words
        assert words <= series | labels, question
