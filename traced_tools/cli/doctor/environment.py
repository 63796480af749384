"""The check of environment variables: which are in force, which are invalid, and which are misspelt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from os import environ
from typing import Final

from traced_tools.cli.doctor.result import Result, State, plain_url
from traced_tools.core import variables
from traced_tools.core.tracebacks import ON
from traced_tools.errors import ConfigurationError
from traced_tools.observe.settings import (
    read_capture_mode,
    read_detail,
    read_dev,
    read_openinference,
    read_pseudonym_key,
)
from traced_tools.otel.otlp import GRPC, SIGNALS
from traced_tools.otel.variables import check_batches, check_metrics, check_otlp, check_providers, names_of_variables

_GROUP: Final = "environment"
_CONSEQUENCES: Final = {
    "OTEL_SDK_DISABLED": ("configure() sets up nothing, and no telemetry is recorded", "unset it to record telemetry"),
    variables.DEV: ("contents are shown in the terminal, and nothing is exported over OTLP", "unset it in production"),
}
"""What follows from variables that switch something off or on for the whole process, and what to do about it."""
_OPEN_ENDED: Final = ("OTEL_PYTHON_", "OTEL_INSTRUMENTATION_")
"""Prefixes under which any instrumentation may have variables of its own."""
_SHOWN: Final = re.compile(
    r".*_(EXPORTER|PROTOCOL|TIMEOUT|DELAY|SIZE|LIMIT|INTERVAL|SAMPLER|SAMPLER_ARG|COMPRESSION|INSECURE|PREFERENCE|"
    r"AGGREGATION|FILTER|DISABLED|CONTENT|DETAIL|OPENINFERENCE|CONVENTIONS|DEBUG|DEV)"
)
"""The variables whose values are printed, if they are words or numbers: none that holds a key, a header or a text."""
_WORD: Final = re.compile(r"[A-Za-z0-9_.,/ -]{1,48}")
_NEAR: Final = 0.85


def check_environment() -> Iterator[Result]:
    """Yield each variable that is set, and what is wrong with it."""
    known_names = variables.ALL | names_of_variables()
    names = sorted(name for name in environ if name.startswith(("OTEL_", variables.PREFIX)))
    for name in names:
        if name in _CONSEQUENCES and environ[name].strip().lower() in ON:
            yield Result(_GROUP, name, State.NOTE, *_CONSEQUENCES[name])
        elif name in known_names:
            yield Result(_GROUP, name, State.OK, _shown_value(name))
        else:
            yield from _unknown(name, known_names)
    if not names:
        yield Result(_GROUP, "OTEL_*, TRACED_TOOLS_*", State.OK, "none is set: only the arguments of configure() count")
    for check in _checks():
        try:
            check()
        except ConfigurationError as error:  # its text names the variable and never quotes the value
            yield Result(_GROUP, str(error).split()[0], State.PROBLEM, str(error), "correct it, or unset it")


def _unknown(name: str, known_names: frozenset[str]) -> Iterator[Result]:
    if nearest := get_close_matches(name, known_names, n=1, cutoff=_NEAR):
        text = "nothing reads it: it looks like a misspelt variable"
        yield Result(_GROUP, name, State.PROBLEM, text, f"did you mean {nearest[0]}?", details={"nearest": nearest[0]})
    elif name.startswith(_OPEN_ENDED):
        yield Result(_GROUP, name, State.OK, "set; for an instrumentation, not for traced_tools")
    else:
        yield Result(_GROUP, name, State.NOTE, "neither OpenTelemetry nor traced_tools reads it", "unset it")


def _shown_value(name: str) -> str:
    value = environ[name].strip()
    if not value:
        return "empty, which counts as unset"
    if name.endswith("_ENDPOINT"):
        return plain_url(value)
    return value if _SHOWN.fullmatch(name) and _WORD.fullmatch(value) else "set"


def _checks() -> Iterator[Callable[[], object]]:
    yield from (check_providers, read_capture_mode, read_detail, read_dev, read_openinference, read_pseudonym_key)
    for signal in SIGNALS:
        if signal.is_sent(None):
            yield lambda signal=signal: check_otlp(signal.name, is_grpc=signal.protocol() == GRPC)  # type: ignore[misc]
    if SIGNALS[0].is_sent(None):
        yield lambda: check_batches("OTEL_BSP")
    if SIGNALS[1].is_sent(None):
        yield check_metrics
    if SIGNALS[2].is_sent(None):
        yield lambda: check_batches("OTEL_BLRP")
