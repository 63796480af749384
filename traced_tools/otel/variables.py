"""Checks of the `OTEL_*` variables that the SDK reads itself, before it does.

The SDK answers an unusable value with a default and a line in the log that quotes it, if at all. Here it is an error
that names the variable and what is accepted, and not the value: headers hold keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from os import environ
from urllib.parse import unquote

from traced_tools.errors import ConfigurationError

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
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")


def check_providers() -> None:
    """Raise `ConfigurationError` for a variable about sampling, limits or the resource that cannot work."""
    for variable in _LIMITS:
        _check(variable, _is_whole, "a whole number, 0 or above")
    _check_word("OTEL_TRACES_SAMPLER", _SAMPLERS)
    if environ.get("OTEL_TRACES_SAMPLER", "").lower() in _RATIO_SAMPLERS:
        _check("OTEL_TRACES_SAMPLER_ARG", _is_ratio, "a number from 0 to 1")
    _refuse_blank("OTEL_METRICS_EXEMPLAR_FILTER")
    _check_word("OTEL_METRICS_EXEMPLAR_FILTER", ("always_on", "always_off", "trace_based"))
    _check("OTEL_RESOURCE_ATTRIBUTES", _are_pairs, "key=value pairs, separated by commas")


def check_batches(prefix: str) -> None:
    """Raise `ConfigurationError` for a variable of batching, such as `OTEL_BSP_MAX_QUEUE_SIZE`, that cannot work."""
    for setting in ("SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "EXPORT_TIMEOUT"):
        _check(f"{prefix}_{setting}", _is_positive_whole, "a whole number above 0")
    if read_number(f"{prefix}_MAX_EXPORT_BATCH_SIZE", 512) > read_queue_size(prefix):
        raise ConfigurationError(
            f"{prefix}_MAX_EXPORT_BATCH_SIZE (512 where it is not set) must not be above {prefix}_MAX_QUEUE_SIZE"
        )


def check_metrics() -> None:
    """Raise `ConfigurationError` for a variable of the metrics that are pushed that cannot work."""
    _check("OTEL_METRIC_EXPORT_INTERVAL", _is_positive, "a number of milliseconds above 0")
    _check("OTEL_METRIC_EXPORT_TIMEOUT", _is_positive, "a number of milliseconds above 0")
    _check_word("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", ("cumulative", "delta", "lowmemory"))
    _check_word(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"),
    )


def check_otlp(signal: str, *, is_grpc: bool) -> None:
    """Raise `ConfigurationError` for a variable of OTLP that cannot work.

    Args:
        signal: `TRACES`, `METRICS` or `LOGS`.
        is_grpc: whether the protocol is gRPC, which knows one compression.
    """
    for prefix in (f"OTEL_EXPORTER_OTLP_{signal}", "OTEL_EXPORTER_OTLP"):
        if is_grpc:
            _refuse_blank(f"{prefix}_TIMEOUT", f"{prefix}_COMPRESSION")
        _check(f"{prefix}_TIMEOUT", _is_seconds, "a number of seconds above 0")
        _check(f"{prefix}_HEADERS", _are_headers, "name=value pairs, separated by commas")
        _check_word(f"{prefix}_COMPRESSION", ("gzip",) if is_grpc else ("none", "gzip", "deflate"))
        for setting in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
            _check(f"{prefix}_{setting}", _is_readable, "the path of a file that can be read")


def read_queue_size(prefix: str) -> int:
    """Return how many items may wait to be sent; `prefix` is `OTEL_BSP` or `OTEL_BLRP`."""
    return read_number(f"{prefix}_MAX_QUEUE_SIZE", 2048)


def read_number(variable: str, default: int) -> int:
    """Return a variable's whole number, which has been checked, or `default` where it is not set."""
    return int(environ.get(variable, "").strip() or default)


def _check(variable: str, accepts: Callable[[str], bool], accepted: str) -> None:
    value = environ.get(variable, "")
    if not value.strip():  # counts as not set
        return
    try:
        usable = accepts(value)
    except (ValueError, OSError):
        usable = False
    if not usable:
        raise ConfigurationError(f"{variable} must be {accepted}")


def _refuse_blank(*variables: str) -> None:
    """Raise `ConfigurationError` for a variable that is set to nothing, where the SDK cannot read that."""
    for variable in variables:
        if not environ.get(variable, "unset").strip():
            raise ConfigurationError(f"{variable} is empty; unset it, or give it a value")


def _check_word(variable: str, words: Iterable[str]) -> None:
    _check(variable, lambda value: value.strip().lower() in words, f"one of {', '.join(words)}")


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
    named = _HEADER_NAME.fullmatch(unquote(name).strip()) is not None
    return bool(equals) and named and _HEADER_VALUE.fullmatch(unquote(value, "latin-1").strip()) is not None


def _is_readable(path: str) -> bool:
    with open(path, "rb"):
        return True
