"""Checks of `OTEL_*` variables before the SDK reads them.

For an invalid value the SDK uses a default, and logs a line that quotes the value, if anything. Here an invalid value
raises an error with the variable and what it accepts, but without the value, because headers contain keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from os import environ
from urllib.parse import unquote

from traced_tools.errors import ConfigurationError
from traced_tools.observe.settings import CAPTURE_CONTENT

_RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
_SAMPLERS = ("always_on", "always_off", "parentbased_always_on", "parentbased_always_off", *_RATIO_SAMPLERS)
_LIMITS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
_LISTS = (
    "opentelemetry.environment_variables",
    "opentelemetry.sdk.environment_variables",
    "opentelemetry.instrumentation.environment_variables",
)
"""The modules that list the variables that OpenTelemetry reads. The last one may not be installed."""
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")


def names_of_variables() -> frozenset[str]:
    """Return the names of the `OTEL_*` variables that OpenTelemetry and this package read."""
    names = {CAPTURE_CONTENT, "OTEL_SEMCONV_STABILITY_OPT_IN"}
    for module in _LISTS:
        try:
            values = vars(import_module(module)).values()
        except ModuleNotFoundError:
            continue
        names.update(value for value in values if isinstance(value, str) and value.startswith("OTEL_"))
    return frozenset(names)


def check_providers() -> None:
    """Raise `ConfigurationError` if a variable for sampling, limits or the resource is invalid."""
    for variable in _LIMITS:
        _check(variable, _is_whole, "a whole number, 0 or above")
    _check_one_of("OTEL_TRACES_SAMPLER", _SAMPLERS)
    if environ.get("OTEL_TRACES_SAMPLER", "").lower() in _RATIO_SAMPLERS:
        _check("OTEL_TRACES_SAMPLER_ARG", _is_ratio, "a number from 0 to 1")
    _refuse_blank("OTEL_METRICS_EXEMPLAR_FILTER")
    _check_one_of("OTEL_METRICS_EXEMPLAR_FILTER", ("always_on", "always_off", "trace_based"))
    _check("OTEL_RESOURCE_ATTRIBUTES", _are_pairs, "key=value pairs, separated by commas")


def check_batches(prefix: str) -> None:
    """Raise `ConfigurationError` if a variable for batching, such as `OTEL_BSP_MAX_QUEUE_SIZE`, is invalid."""
    for setting in ("SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "EXPORT_TIMEOUT"):
        _check(f"{prefix}_{setting}", _is_positive_whole, "a whole number above 0")
    if read_number(f"{prefix}_MAX_EXPORT_BATCH_SIZE", 512) > read_queue_size(prefix):
        raise ConfigurationError(
            f"{prefix}_MAX_EXPORT_BATCH_SIZE (default 512) must not exceed {prefix}_MAX_QUEUE_SIZE"
        )


def check_metrics() -> None:
    """Raise `ConfigurationError` if a variable for the export of metrics over OTLP is invalid."""
    _check("OTEL_METRIC_EXPORT_INTERVAL", _is_positive, "a number of milliseconds above 0")
    _check("OTEL_METRIC_EXPORT_TIMEOUT", _is_positive, "a number of milliseconds above 0")
    _check_one_of("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", ("cumulative", "delta", "lowmemory"))
    _check_one_of(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"),
    )


def check_otlp(signal: str, *, is_grpc: bool) -> None:
    """Raise `ConfigurationError` if a variable for OTLP is invalid.

    Args:
        signal: `TRACES`, `METRICS` or `LOGS`.
        is_grpc: whether the protocol is gRPC, which supports gzip only.
    """
    for prefix in (f"OTEL_EXPORTER_OTLP_{signal}", "OTEL_EXPORTER_OTLP"):
        if is_grpc:
            _refuse_blank(f"{prefix}_TIMEOUT", f"{prefix}_COMPRESSION")
        _check(f"{prefix}_TIMEOUT", _is_seconds, "a number of seconds above 0")
        _check(f"{prefix}_HEADERS", _are_headers, "name=value pairs, separated by commas")
        _check_one_of(f"{prefix}_COMPRESSION", ("gzip",) if is_grpc else ("none", "gzip", "deflate"))
        for setting in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
            _check(f"{prefix}_{setting}", _is_readable, "the path of a file that can be read")


def read_queue_size(prefix: str) -> int:
    """Return the maximum number of queued items; `prefix` is `OTEL_BSP` or `OTEL_BLRP`."""
    return read_number(f"{prefix}_MAX_QUEUE_SIZE", 2048)


def read_number(variable: str, default: int) -> int:
    """Return the whole number of a checked variable, or `default` if it is unset."""
    return int(environ.get(variable, "").strip() or default)


def _check(variable: str, accepts: Callable[[str], bool], accepted: str) -> None:
    value = environ.get(variable, "")
    if not value.strip():  # a blank variable counts as unset
        return
    try:
        usable = accepts(value)
    except (ValueError, OSError):
        usable = False
    if not usable:
        raise ConfigurationError(f"{variable} must be {accepted}")


def _refuse_blank(*variables: str) -> None:
    """Raise `ConfigurationError` if a variable is set but blank, which the SDK cannot read."""
    for variable in variables:
        if not environ.get(variable, "unset").strip():
            raise ConfigurationError(f"{variable} is empty; unset it or set a value")


def _check_one_of(variable: str, accepted: Iterable[str]) -> None:
    _check(variable, lambda value: value.strip().lower() in accepted, f"one of {', '.join(accepted)}")


def _is_whole(value: str) -> bool:
    return int(value) >= 0


def _is_positive_whole(value: str) -> bool:
    return int(value) > 0


def _is_positive(value: str) -> bool:
    return float(value) > 0


def _is_seconds(value: str) -> bool:
    return 0 < float(value) < math.inf


def _is_ratio(value: str) -> bool:
    return 0 <= float(value) <= 1


def _are_pairs(value: str) -> bool:
    return all("=" in pair for pair in value.split(","))


def _are_headers(value: str) -> bool:
    return all(_is_header(pair) for pair in value.split(",") if pair.strip())


def _is_header(pair: str) -> bool:
    name, equals, value = pair.partition("=")
    is_name_valid = _HEADER_NAME.fullmatch(unquote(name).strip()) is not None
    return bool(equals) and is_name_valid and _HEADER_VALUE.fullmatch(unquote(value, "latin-1").strip()) is not None


def _is_readable(path: str) -> bool:
    with open(path, "rb"):
        return True
