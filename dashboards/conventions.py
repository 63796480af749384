"""The metrics of model calls, which have other names with the latest GenAI conventions.

An application emits one set or the other, so each tuple is selected as one metric.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dashboards.promql import RATE_INTERVAL, Selection, rate
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

MODEL_CALL_DURATION: Final = (names.OPERATION_DURATION, names.INFERENCE_DURATION)
TIME_TO_FIRST_CHUNK: Final = (names.TIME_TO_FIRST_CHUNK, names.INFERENCE_TIME_TO_FIRST_CHUNK)
TIME_PER_OUTPUT_CHUNK: Final = (names.TIME_PER_OUTPUT_CHUNK, names.INFERENCE_TIME_PER_OUTPUT_CHUNK)


def token_rate(selection: Selection, *by: str, matchers: Iterable[str] = (), window: str = RATE_INTERVAL) -> str:
    """Return the tokens per second by `gen_ai.token.type` and the labels in `by`."""
    stable = rate(selection(names.TOKEN_USAGE, *matchers, part="sum"), names.TOKEN_TYPE, *by, window=window)
    kinds = {names.TOKEN_INPUT: names.INPUT_TOKENS_USED, names.TOKEN_OUTPUT: names.OUTPUT_TOKENS_USED}
    label = label_name(names.TOKEN_TYPE)
    latest = (
        f'label_replace({rate(selection(metric, *matchers), *by, window=window)}, "{label}", "{kind}", "", "")'
        for kind, metric in kinds.items()
    )
    return " or ".join((stable, *latest))
