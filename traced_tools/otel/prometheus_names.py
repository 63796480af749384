"""What metrics, units and labels are called in Prometheus, by OpenTelemetry's rules.

The rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from prometheus_client.core import Metric as Family

from traced_tools.observe.names.registry_types import Metric

Kind = Literal["counter", "gauge", "histogram", "info"]
_KINDS: Final[Mapping[str, Kind]] = {
    "histogram": "histogram",
    "counter": "counter",
    "updowncounter": "gauge",
    "gauge": "gauge",
}
"""The kind of family by the instrument of a metric."""
_UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
}
_PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def prometheus_name(metric: Metric) -> str:
    """Return the name of a metric of the registry; the series of a histogram add `_bucket`, `_count` or `_sum`."""
    kind = _KINDS[metric.instrument]
    name: str = make_family(metric.name, metric.brief, metric.unit, kind).name
    return f"{name}_total" if kind == "counter" else name


def make_family(name: str, brief: str, unit: str, kind: Kind) -> Family:
    """Return an empty family with a metric's name and unit in Prometheus's notation."""
    return Family(_name(name).removesuffix("_total"), brief, kind, _unit(unit, kind))


def label_name(key: str) -> str:
    """Return the name of an attribute's label."""
    clean = re.sub(r"[^a-zA-Z0-9]+", "_", key)
    return f"key_{clean}" if not clean or clean[0].isdigit() else clean


def _name(name: str) -> str:
    clean = re.sub(r"[^a-zA-Z0-9:]+", "_", name)
    return f"_{clean}" if not clean or clean[0].isdigit() else clean


def _unit(unit: str, kind: Kind) -> str:
    """Return a UCUM unit in Prometheus's notation. Annotations in braces name what is counted and are not a unit."""
    plain = re.sub(r"{[^}]*}", "", unit)
    if plain == "1":
        return "ratio" if kind == "gauge" else ""
    top, slash, bottom = plain.partition("/")
    name = _UNITS.get(top, top)
    if slash and bottom:
        name = f"{name}_per_{_PER.get(bottom, bottom)}"
    return re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")
