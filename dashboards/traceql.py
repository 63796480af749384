"""TraceQL over the spans of the registry: https://grafana.com/docs/tempo/latest/traceql/."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dashboards.panels import Variable
from dashboards.promql import JOB
from dashboards.variables import LABELS, SERVICE
from traced_tools.observe import names

RUNS: Final = f'span.{names.OPERATION_NAME} = "{names.INVOKE_AGENT}"'
TOOL_CALLS: Final = f'span.{names.OPERATION_NAME} = "{names.EXECUTE_TOOL}"'
MODEL_CALLS: Final = f'span.{names.OPERATION_NAME} = "{names.CHAT}"'
FAILED: Final = "status = error"


@dataclass(frozen=True)
class SpanSelection:
    """Selects spans by the variables of a board, as `promql.Selection` selects series."""

    variables: tuple[Variable, ...] = (SERVICE,)

    def __call__(self, *conditions: str) -> str:
        """Return the spans that meet all conditions."""
        chosen = [f'{self._attribute(LABELS[each])} =~ "${each.name}"' for each in self.variables]
        return f"{{ {' && '.join([*chosen, *conditions])} }}"

    def _attribute(self, label: str) -> str:
        return "resource.service.name" if label == JOB else span(label)


def span(attribute: str) -> str:
    """Return an attribute of a span."""
    return f"span.{attribute}"


def equals(attribute: str, value: str) -> str:
    """Return a condition on the value of an attribute."""
    return f'{span(attribute)} = "{value}"'


def one_of(attribute: str, values: Iterable[str]) -> str:
    """Return a condition on the values of an attribute."""
    choices = "|".join(values)
    return f'{span(attribute)} =~ "{choices}"'


def exceeds(attribute: str, value: float) -> str:
    """Return a condition on the size of an attribute."""
    return f"{span(attribute)} > {value:g}"


def select(*attributes: str) -> str:
    """Return the pipeline stage that adds attributes to the result, as columns of a table."""
    return f"| select({', '.join(map(span, attributes))})"
