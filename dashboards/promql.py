"""PromQL over the metrics of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, overload

from traced_tools.observe.names.registry_types import Metric
from traced_tools.otel.prometheus_names import label_name, prometheus_name

JOB: Final = "job"
"""The label of the service. It is on every series, and OTLP and scrapers set it."""
INSTANCE: Final = "instance"
"""The label of the process."""
RATE_INTERVAL: Final = "$__rate_interval"
RANGE: Final = "$__range"
"""The time range of a board; only for instant queries."""

Part = Literal["", "bucket", "sum", "count"]
Series = str | tuple[str, ...]
"""A selector of series, or several, of which an aggregation adds up the values."""


@dataclass(frozen=True)
class Selection:
    """Selects series. All queries of a board use one selection, so that its variables apply to each of them.

    Attributes:
        variables: the board's variables for each label, any of which may have the value. A label that a metric doesn't
            have is left out.
    """

    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @overload
    def __call__(self, metric: Metric, *matchers: str, part: Part = "") -> str: ...

    @overload
    def __call__(self, metric: tuple[Metric, ...], *matchers: str, part: Part = "") -> tuple[str, ...]: ...

    def __call__(self, metric: Metric | tuple[Metric, ...], *matchers: str, part: Part = "") -> Series:
        """Return the selector of a metric's series, or one for each of several metrics.

        Args:
            metric: the metric.
            matchers: further matchers, such as `has(names.ERROR_TYPE)`.
            part: which series of a histogram.
        """
        if isinstance(metric, tuple):
            return tuple(self(each, *matchers, part=part) for each in metric)
        labels = {JOB, *metric.attributes}
        chosen = [
            one_of(name, (f"${variable}" for variable in variables))
            for name, variables in self.variables.items()
            if name in labels
        ]
        name = f"{prometheus_name(metric)}_{part}" if part else prometheus_name(metric)
        return name + ("{" + ", ".join([*chosen, *matchers]) + "}" if chosen or matchers else "")


def equals(attribute: str, value: str) -> str:
    """Return a matcher for a label's value."""
    return f'{label_name(attribute)}="{value}"'


def differs(attribute: str, value: str) -> str:
    """Return a matcher for all other values of a label."""
    return f'{label_name(attribute)}!="{value}"'


def one_of(attribute: str, values: Iterable[str]) -> str:
    """Return a matcher for several values of a label."""
    choices = "|".join(values)
    return f'{label_name(attribute)}=~"{choices}"'


def none_of(attribute: str, values: Iterable[str]) -> str:
    """Return a matcher for all other values of a label than some."""
    choices = "|".join(values)
    return f'{label_name(attribute)}!~"{choices}"'


def has(attribute: str) -> str:
    """Return a matcher for series that have the label."""
    return differs(attribute, "")


def lacks(attribute: str) -> str:
    """Return a matcher for series that don't have the label."""
    return equals(attribute, "")


def total(expression: str, *by: str, function: str = "sum") -> str:
    """Return the aggregation of an expression over all labels but those in `by`."""
    return f"{function} by ({labels(*by)}) ({expression})" if by else f"{function}({expression})"


def rate(series: Series, *by: str, window: str = RATE_INTERVAL) -> str:
    """Return the growth of a counter per second."""
    return total(_each(series, lambda one: f"rate({one}[{window}])"), *by)


def increase(series: Series, *by: str, window: str = RANGE) -> str:
    """Return the growth of a counter in a window. The first event of a series doesn't count; see `occurrences`."""
    return total(_each(series, lambda one: f"increase({one}[{window}])"), *by)


def occurrences(series: Series, *by: str, window: str) -> str:
    """Return the growth of a counter in a window, including events before the first sample of a series.

    A counter appears with its first event, of which `increase` knows nothing. A series is new if it had no sample in
    the hour before the window, so that a scrape that fails does not make it new.
    """

    def growth(one: str) -> str:
        new = f"max_over_time({one}[{window}]) unless last_over_time({one}[1h] offset {window})"
        return f"({new}) or increase({one}[{window}])"

    return total(_each(series, growth), *by)


def _each(series: Series, expression: Callable[[str], str]) -> str:
    """Return an expression for each of several selectors. A label tells apart what would have the same labels."""
    if isinstance(series, str):
        return expression(series)
    return " or ".join(
        f'label_replace({expression(one)}, "selector", "{number}", "", "")' for number, one in enumerate(series)
    )


def share(part: str, whole: str) -> str:
    """Return a part of a whole: 0 if the part has no series, and nothing if the whole is 0."""
    return f"(({part}) or 0 * ({whole})) / (({whole}) > 0)"


def mean(selection: Selection, metric: Metric | tuple[Metric, ...], *by: str, window: str = RATE_INTERVAL) -> str:
    """Return the mean of a histogram's values."""
    value, count = (rate(selection(metric, part=part), *by, window=window) for part in ("sum", "count"))
    return f"{value} / ({count} > 0)"


def quantile(
    of: float,
    selection: Selection,
    metric: Metric | tuple[Metric, ...],
    *by: str,
    matchers: Iterable[str] = (),
    window: str = RATE_INTERVAL,
) -> str:
    """Return a quantile of a histogram, which may be stored with buckets or as a native histogram."""
    return quantile_of(
        of, selection(metric, *matchers, part="bucket"), selection(metric, *matchers), *by, window=window
    )


def quantile_of(of: float, buckets: Series, native: Series, *by: str, window: str = RATE_INTERVAL) -> str:
    """Return a quantile of histograms, by the selectors of their buckets and of native histograms."""
    stored = rate(buckets, "le", *by, window=window), _native_rate(native, *by, window=window)
    return " or ".join(f"histogram_quantile({of:g}, {growth})" for growth in stored)


def distribution(selection: Selection, metric: Metric | tuple[Metric, ...], *matchers: str) -> str:
    """Return the growth of a histogram's buckets, for a heatmap."""
    buckets = rate(selection(metric, *matchers, part="bucket"), "le")
    return f"{buckets} or {_native_rate(selection(metric, *matchers))}"


def _native_rate(series: Series, *by: str, window: str = RATE_INTERVAL) -> str:
    """Return the growth of native histograms, which lose their values if they get a label, as in `_each`."""
    several = (series,) if isinstance(series, str) else series
    return total(" or ".join(f"rate({one}[{window}])" for one in several), *by)


def labels(*attributes: str) -> str:
    """Return attributes as labels with commas between them."""
    return ", ".join(map(label_name, attributes))


def legend(*attributes: str) -> str:
    """Return the legend of series that differ in these labels."""
    return " ".join(f"{{{{{label_name(attribute)}}}}}" for attribute in attributes)
