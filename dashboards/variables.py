"""The variables of the boards, and what they select in each query language."""

from __future__ import annotations

from typing import Final

from dashboards.conventions import MODEL_CALL_DURATION
from dashboards.panels import Variable
from dashboards.promql import JOB, Selection
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.otel.prometheus_names import label_name, prometheus_name

_ALL: Final = Selection()
_OF_SERVICE: Final = Selection({JOB: ("job",)})


def _values_of(label: str, metric: Metric, selection: Selection) -> str:
    return f"label_values({selection(metric)}, {label_name(label)})"


# Gauges and counters have the same series whether histograms are stored with buckets or as native histograms.

SERVICE: Final = Variable("job", "Service", _values_of(JOB, names.RUN_ACTIVE, _ALL))
AGENT: Final = Variable("agent", "Agent", _values_of(names.AGENT_NAME, names.RUN_ACTIVE, _OF_SERVICE))
TOOL_CALLER: Final = Variable("agent", "Agent", _values_of(names.AGENT_NAME, names.TOOL_DECISIONS, _OF_SERVICE))
"""An agent that calls tools."""
TOOL: Final = Variable("tool", "Tool", _values_of(names.TOOL_NAME, names.TOOL_DECISIONS, _OF_SERVICE))
MODEL: Final = Variable(
    "model",
    "Model",
    f'label_values({{__name__=~"({"|".join(map(prometheus_name, MODEL_CALL_DURATION))})(_count)?", job=~"$job"}}, '
    f"{label_name(names.REQUEST_MODEL)})",
)
_VERSIONS: Final = (
    f'label_values({{__name__=~"{prometheus_name(names.LOOP_ITERATIONS_METRIC)}(_count)?", job=~"$job", '
    f'{label_name(names.AGENT_NAME)}=~"$agent"}}, {label_name(names.AGENT_VERSION)})'
)
VERSION_A: Final = Variable("version_a", "Version A", _VERSIONS)
VERSION_B: Final = Variable("version_b", "Version B", _VERSIONS)
CONVERSATION: Final = Variable("conversation", "Conversation ID", None)
RUN: Final = Variable("run", "Run ID", None)

LABELS: Final = {
    SERVICE: JOB,
    AGENT: names.AGENT_NAME,
    TOOL_CALLER: names.AGENT_NAME,
    TOOL: names.TOOL_NAME,
    MODEL: names.REQUEST_MODEL,
    VERSION_A: names.AGENT_VERSION,
    VERSION_B: names.AGENT_VERSION,
}
"""The label that each variable selects."""


def selection_of(*variables: Variable) -> Selection:
    """Return the selection of a board with these variables."""
    chosen: dict[str, tuple[str, ...]] = {}
    for variable in variables:
        chosen[LABELS[variable]] = (*chosen.get(LABELS[variable], ()), variable.name)
    return Selection(chosen)
