"""Draws the pictures of the dashboards: python docs/dashboard_pictures.py, from the root of the repository.

A scenario plays a day of agents that ends in an incident, first as history and then for real. A real Prometheus stores
the metrics, evaluates the rules and answers the queries of the boards.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import StatusCode

import traced_tools
from dashboards.boards import BOARDS
from dashboards.history import write_history
from dashboards.pictures.answers import Labels, Period, Points
from dashboards.pictures.board import PANELS, panel_picture, picture
from dashboards.pictures.traces import EndedSpan
from dashboards.rules import TOKENS
from tests.judges.programs import free_port, running, until
from tests.otel.collector import collecting
from traced_tools.demo import Scenario
from traced_tools.demo.scenario.outcomes import NEW_VERSION
from traced_tools.demo.scenario.stage import AGENTS, VERSION
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import prometheus_name

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
PICTURES: Final = IMAGES / "dashboards"
RULES: Final = ROOT / "dashboards" / "rules"
_RELOAD_SECONDS: Final = 65
"""The time after which Prometheus has read new blocks."""
_SERVICE: Final = "travel-agent"
_LIVE_SECONDS: Final = 170
"""Long enough for alerts that wait for two minutes."""
_LIVE_RATE: Final = 0.5
_POINTS: Final = 90
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_CONFIG: Final = """
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: {rules}
scrape_configs: [{{job_name: {service}, static_configs: [{{targets: ["{address}"]}}]}}]
"""


@dataclass(frozen=True)
class Chapter:
    """A part of the day.

    Attributes:
        minutes: how long it takes.
        step: seconds between two samples.
        runs_per_minute: how busy the agents are.
        without: the outcomes that don't happen.
    """

    minutes: int
    step: int
    runs_per_minute: int
    without: tuple[str, ...] = ()


_INCIDENT: Final = (
    *("provider_down", "provider_error", "rate_limit_exhausted", "run_failed_by_tool", "run_failed_by_advisor"),
    *("deadline", "consecutive_errors", "audit_gap", "telemetry_failure", "abandoned_stream", "tool_timeout"),
    *("slow_chunks", "new_version"),
    *("late_result", "max_iterations", "max_tool_calls", "max_calls_per_tool", "token_budget", "repeated_call"),
)
"""Outcomes that happen only during the incident, which begins with a new version of an agent."""
DAY: Final = (Chapter(20 * 60, 300, 12, _INCIDENT), Chapter(200, 60, 20, _INCIDENT), Chapter(40, 60, 20))


def main() -> None:
    """Draw every board."""
    for name in ("prometheus", "promtool"):
        if shutil.which(name) is None:
            sys.exit(f"The pictures need {name}: apt-get install prometheus")
    PICTURES.mkdir(parents=True, exist_ok=True)
    logging.disable()  # the scenario has faults that would be reported
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.time()
        write_blocks(folder, began)
        with (
            collecting() as collector,
            traced_tools.configure(service_name=_SERVICE, prometheus=0, otlp=collector.url) as telemetry,
        ):
            recorder, is_done = Recorder(), Event()
            trace.get_tracer_provider().add_span_processor(recorder)  # type: ignore[attr-defined]
            live = Thread(target=play, args=[is_done])
            live.start()
            try:
                with serving(folder, str(telemetry.prometheus_address), recorder.ended) as source:
                    until_long_enough = time.time() + _LIVE_SECONDS
                    for _ in range(2):  # ratios add up counts that the first pass records
                        write_recorded_blocks(folder, source, began)
                        source.wait(time.time() + _RELOAD_SECONDS)
                    source.wait(until_long_enough)
                    draw(source, time.time())
            finally:
                is_done.set()
                live.join()


def draw(source: Answers, now: float) -> None:
    """Draw every board with the time range that ends now."""
    longest = sum(chapter.minutes for chapter in DAY) * 60
    run = longest_run(source.spans())
    for board in BOARDS:
        span = min(longest, int(board.span[4:-1]) * _UNITS[board.span[-1]])
        step = max(60, span // _POINTS)
        chosen = {"conversation": "", "run": run, "version_a": VERSION, "version_b": NEW_VERSION}
        period = Period(now - span, now, step, max(300, 4 * step), chosen)
        write(PICTURES / f"{board.uid}.svg", picture(board, source, period))
        for name, (of, number) in PANELS.items():
            if of is board:
                (panel,) = [each for each in board.panels if each.id == number]
                of_agent = replace(period, chosen={**chosen, "agent": AGENTS[0]})
                write(IMAGES / f"{name}.svg", panel_picture(panel, source, of_agent))


def write(path: Path, text: str) -> None:
    """Write a picture, and print how large it is."""
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}: {len(text) / 1000:.0f} kB", flush=True)


def longest_run(spans: list[EndedSpan]) -> str:
    """Return the id of the run whose trace has most spans."""
    runs = {span.trace_id: str(span.attributes[names.RUN_ID]) for span in spans if names.RUN_ID in span.attributes}
    counted = Counter(runs[span.trace_id] for span in spans if span.trace_id in runs)
    return counted.most_common(1)[0][0]


def play(is_done: Event) -> None:
    """Run the scenario for real, until the pictures are drawn."""

    def stop_when_done(_: Counter[str]) -> None:
        if is_done.is_set():
            raise StopIteration

    with suppress(StopIteration):
        Scenario(seed=len(DAY)).run(duration=3600, rate=_LIVE_RATE, on_progress=stop_when_done, on_unexpected=bool)


class Recorder(SpanProcessor):
    """Keeps all spans."""

    def __init__(self) -> None:
        self.ended: list[EndedSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span that ended."""
        assert span.context and span.start_time and span.end_time
        self.ended.append(
            EndedSpan(
                trace_id=f"{span.context.trace_id:032x}",
                span_id=f"{span.context.span_id:016x}",
                parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
                service=_SERVICE,
                name=span.name,
                start=span.start_time / 1e9,
                seconds=(span.end_time - span.start_time) / 1e9,
                is_error=span.status.status_code is StatusCode.ERROR,
                attributes=dict(span.attributes or {}),
            )
        )


class Answers:
    """The answers of a running Prometheus, and spans."""

    def __init__(self, url: str, http: httpx.Client, process: subprocess.Popen[bytes], spans: list[EndedSpan]) -> None:
        self.url = url
        self._spans = spans
        self._http = http
        self._process = process

    def over_time(self, query: str, start: float, end: float, step: float) -> list[tuple[Labels, Points]]:
        """Return the labels and points of each series of a range query."""
        found = self._ask("query_range", query=query, start=start, end=end, step=step)
        return [(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in found]

    def at(self, query: str, time: float) -> list[tuple[Labels, float]]:
        """Return the labels and the value of each series of an instant query."""
        found = self._ask("query", query=query, time=time)
        return [(each["metric"], float(each["value"][1])) for each in found]

    def _ask(self, what: str, **parameters: str | float) -> Any:
        answer = self._http.get(f"/api/v1/{what}", params=parameters)
        answer.raise_for_status()
        return answer.json()["data"]["result"]

    def spans(self) -> list[EndedSpan]:
        """Return the spans that ended so far."""
        return self._spans.copy()

    def wait(self, end: float) -> None:
        """Wait until a time, until the server has read the recorded history, and until runs are active."""
        recorded = f'count_over_time({{__name__="{TOKENS.name}"}}[2h] offset 1h) > 10'
        until(lambda: time.time() > end and self._ask("query", query=recorded), 600, "recorded history", self._process)
        active = f"sum({prometheus_name(names.RUN_ACTIVE)}) > 0"
        until(lambda: self._ask("query", query=active), 60, "active runs", self._process)


@contextmanager
def serving(folder: Path, address: str, spans: list[EndedSpan]) -> Iterator[Answers]:
    """Run a Prometheus that serves the blocks in the folder, scrapes an address and evaluates the rules."""
    config = folder / "prometheus.yml"
    rules = json.dumps([str(path) for path in sorted(RULES.glob("*.yaml"))])
    config.write_text(_CONFIG.format(rules=rules, service=_SERVICE, address=address))
    host = f"127.0.0.1:{free_port()}"
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={host}", "--log.level=warn"),
    ]
    with running(command, folder) as process, httpx.Client(base_url=f"http://{host}", timeout=60) as http:
        until(lambda: http.get("/-/ready").is_success, 60, "Prometheus that is ready", process)
        yield Answers(f"http://{host}", http, process, spans)


def write_blocks(folder: Path, end: float) -> None:
    """Write the day as blocks of Prometheus."""
    later = sum(chapter.minutes for chapter in DAY)
    for number, chapter in enumerate(DAY):
        later -= chapter.minutes
        history = folder / "history.txt"
        write_history(
            history,
            Scenario(seed=number, without=chapter.without),
            days=chapter.minutes / 1440,
            step=chapter.step,
            runs_per_step=chapter.runs_per_minute * chapter.step // 60,
            end=end - later * 60,
            service_name=_SERVICE,
        )
        run_promtool("create-blocks-from", "openmetrics", str(history), str(folder / "data"))
        history.unlink()


def write_recorded_blocks(folder: Path, source: Answers, end: float) -> None:
    """Write what the recording rules would have recorded during the day."""
    times = (
        f"--start={end - sum(chapter.minutes for chapter in DAY) * 60:.0f}",
        f"--end={end:.0f}",
        "--eval-interval=2m",
    )
    target = (f"--url={source.url}", f"--output-dir={folder / 'data'}", str(RULES / "recording.yaml"))
    run_promtool("create-blocks-from", "rules", *times, *target)


def run_promtool(*arguments: str) -> None:
    """Run a command of promtool on blocks."""
    done = subprocess.run(["promtool", "tsdb", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"promtool ended with {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    main()
