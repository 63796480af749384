"""Values as Grafana shows them: https://github.com/grafana/grafana/tree/main/packages/grafana-data/src/valueFormats."""

from __future__ import annotations

import math
from typing import Final

from dashboards.panels import Unit

_SHORT: Final = ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (0.0, ""))
_BYTES: Final = ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (0.0, " B"))
_SECONDS: Final = (
    *((86_400.0, 86_400.0, " days"), (3_600.0, 3_600.0, " hours"), (60.0, 60.0, " mins"), (1.0, 1.0, " s")),
    *((1e-3, 1e-3, " ms"), (0.0, 1e-6, " µs")),
)


def shown(value: float, unit: Unit) -> str:
    """Return a value with three significant digits and its unit."""
    if math.isnan(value):
        return "-"
    size = abs(value)
    match unit:
        case "percentunit":
            return f"{_digits(value * 100)}%"
        case "s":
            if size == 0:
                return "0 s"
            scale, name = next((scale, name) for least, scale, name in _SECONDS if size >= least)
            return f"{_digits(value / scale)}{name}"
        case "bytes":
            return _scaled(value, _BYTES)
        case "currencyUSD":
            return f"${_scaled(value, _SHORT)}"
        case "reqps":
            return f"{_scaled(value, _SHORT)} req/s"
        case "ops":
            return f"{_scaled(value, _SHORT)} ops/s"
        case "bool":
            return "True" if value else "False"
        case "locale":
            return f"{value:,.0f}"
        case "short" | "none" | "dateTimeFromNow":
            return _scaled(value, _SHORT)


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    least, name = next((least, name) for least, name in scales if abs(value) >= least)
    return f"{_digits(value / (least or 1))}{name}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
