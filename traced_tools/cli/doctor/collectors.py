"""The checks of collectors: an empty export over OTLP for each signal that is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from traced_tools.cli.doctor.result import Check, Result, State, plain_url
from traced_tools.errors import ConfigurationError
from traced_tools.otel import file_configuration
from traced_tools.otel.empty_export import endpoint_of, export_nothing
from traced_tools.otel.otlp import SIGNALS, Signal, check_collector

GROUP: Final = "collector"
_ADVICE: Final = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _HEADERS and _CERTIFICATE"


def collector_checks(url: str | None) -> Iterator[Check]:
    """Yield the checks of the signals that are sent.

    Args:
        url: the collector that the application passes as `configure(otlp=)`; None for that of the environment.
    """
    if url is not None:
        check_collector(url)
    elif file_configuration.is_named():
        yield Check(GROUP, file_configuration.CONFIG_FILE, lambda: [_of_file()])
        return
    for signal in SIGNALS:
        if signal.is_sent(url):
            yield Check(GROUP, signal.name.lower(), partial(_export_nothing, signal, url))


def _of_file() -> Result:
    text = "the file configures the exporters, so no collector is checked"
    return Result(GROUP, file_configuration.CONFIG_FILE, State.NOTE, text, "pass --otlp URL to check a collector")


def _export_nothing(signal: Signal, otlp: str | None) -> Iterator[Result]:
    subject = signal.name.lower()
    try:
        place = f"{plain_url(endpoint_of(signal, otlp))} ({signal.protocol()})"
        export = export_nothing(signal, otlp)
    except ConfigurationError as error:
        yield Result(GROUP, subject, State.PROBLEM, str(error), "correct it, or unset it")
        return
    if export.problem:
        yield Result(GROUP, subject, State.PROBLEM, f"{place}: {export.problem}", _ADVICE, export.date)
    else:
        yield Result(GROUP, subject, State.OK, f"{place} has accepted an empty export", date=export.date)
