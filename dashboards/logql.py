"""LogQL over the events of the registry: https://grafana.com/docs/loki/latest/query/.

Loki drops the name of an event, so the collector copies it into the attribute `event_name`. Attributes are structured
metadata: their dots become underscores, as in Prometheus, and the matchers of `promql` are filters here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dashboards.panels import Variable
from dashboards.promql import JOB, RANGE, one_of, total
from dashboards.variables import LABELS, SERVICE
from traced_tools.observe.names.registry_types import EventType
from traced_tools.otel.prometheus_names import label_name

SERVICE_NAME: Final = "service_name"
EVENT_NAME: Final = "event_name"

# Fields of records in tables that are not attributes.

TIME: Final = "Time"
TRACE_ID: Final = "trace_id"


@dataclass(frozen=True)
class EventSelection:
    """Selects events by the variables of a board, as `promql.Selection` selects series."""

    variables: tuple[Variable, ...] = (SERVICE,)

    def __call__(self, events: EventType | tuple[EventType, ...], *filters: str) -> str:
        """Return the events of these types that pass all filters; those of all types if `events` is empty.

        A variable is left out if one of the types doesn't have its attribute.
        """
        types = (events,) if isinstance(events, EventType) else events
        named = [one_of(EVENT_NAME, [each.name for each in types])] if types else []
        chosen = [
            f'{label_name(LABELS[each])}=~"${each.name}"'
            for each in self.variables
            if types and all(LABELS[each] in event.attributes for event in types)
        ]
        (service,) = (each for each in self.variables if LABELS[each] == JOB)
        stream = f'{{{SERVICE_NAME}=~".+", {SERVICE_NAME}=~"${service.name}"}}'  # Loki refuses to match only `.*`
        return " | ".join([stream, *named, *chosen, *filters])


def occurrences(events: str, *by: str) -> str:
    """Return the number of events in the board's time range."""
    return total(f"count_over_time({events} [{RANGE}])", *by)


def added(events: str, attribute: str, *by: str) -> str:
    """Return the sum of the values of an attribute in the board's time range."""
    return total(f"sum_over_time({events} | unwrap {label_name(attribute)} [{RANGE}])", *by)


def extreme(function: Literal["min", "max"], events: str, attribute: str, *by: str) -> str:
    """Return the smallest or largest value of an attribute in the board's time range."""
    values = f"{function}_over_time({events} | unwrap {label_name(attribute)} [{RANGE}])"
    return total(values, *by, function=function)
