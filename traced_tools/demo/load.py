"""Sends the telemetry of a scenario, so that dashboards and alert rules have something to show."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from traced_tools.demo.scenario.outcomes import OUTCOMES
from traced_tools.demo.scenario.scenario import Scenario
from traced_tools.errors import ConfigurationError
from traced_tools.otel.configure import configure
from traced_tools.otel.otlp import SIGNALS

_EXPECTED = ("traced_tools.audit", "traced_tools.audit.advisor", "traced_tools.tools")
"""The loggers that would report the faults of the scenario."""


def run_load(
    console: Console,
    *,
    otlp: str | None,
    prometheus: int | None,
    duration: float,
    rate: float,
    seed: int,
    without: Iterable[str],
) -> None:
    """Run a scenario and send its telemetry, then print a table of its outcomes; also if the user interrupts it.

    Raises:
        ConfigurationError: nothing would receive the telemetry, or a target cannot be used.
        ValueError: `without` has an unknown name, or `duration` or `rate` is not above zero.
    """
    if otlp is None and prometheus is None and not any(signal.is_sent(None) for signal in SIGNALS):
        raise ConfigurationError(
            "nothing would receive the telemetry: pass --otlp URL or --prometheus PORT, or set "
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    scenario = Scenario(seed=seed, without=without)
    for name in _EXPECTED:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    outcomes, unexpected, began = Counter[str](), list[Exception](), time.monotonic()
    with configure(service_name="traced-tools-demo", otlp=otlp, prometheus=prometheus) as telemetry:
        if telemetry.prometheus_address is not None:
            console.print(f"metrics at http://{telemetry.prometheus_address}/metrics", highlight=False)
        with console.status("starting") as status:

            def show(started: Counter[str]) -> None:
                outcomes.update(started - outcomes)
                status.update(_summary(outcomes, time.monotonic() - began))

            try:
                scenario.run(duration=duration, rate=rate, on_progress=show, on_unexpected=unexpected.append)
            except KeyboardInterrupt:
                console.print("interrupted")
    console.print(_summary(outcomes, time.monotonic() - began), highlight=False)
    console.print(_table(outcomes))
    if unexpected:
        console.print(f"{len(unexpected)} runs ended in another way than the table says; the first: {unexpected[0]!r}")


def _summary(outcomes: Counter[str], seconds: float) -> str:
    return f"{seconds:.0f} s: {outcomes.total()} runs, {len(outcomes)} of {len(OUTCOMES)} outcomes"


def _table(outcomes: Counter[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("outcome", no_wrap=True)
    table.add_column("runs", justify="right")
    table.add_column("what happens")
    for outcome in OUTCOMES.values():
        if outcomes[outcome.name]:
            table.add_row(outcome.name, str(outcomes[outcome.name]), outcome.brief)
    return table
