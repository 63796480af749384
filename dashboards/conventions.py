"""The metrics of model calls, which have other names in each release of the GenAI conventions.

A process emits one set of names. Processes of a service may differ, and after an upgrade a window has the series of
both sets, so queries add up the metrics of a tuple.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dashboards.promql import RATE_INTERVAL, Part, Selection, equals, rate, total
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

MODEL_CALL_DURATION: Final = (names.OPERATION_DURATION, names.INFERENCE_DURATION, names.EMBEDDINGS_DURATION)
TIME_TO_FIRST_CHUNK: Final = (names.TIME_TO_FIRST_CHUNK, names.INFERENCE_TIME_TO_FIRST_CHUNK)
TIME_PER_OUTPUT_CHUNK: Final = (names.TIME_PER_OUTPUT_CHUNK, names.INFERENCE_TIME_PER_OUTPUT_CHUNK)


def input_tokens_of_chats(selection: Selection, part: Part) -> tuple[str, str]:
    """Return the selectors of the histograms of input tokens per chat."""
    matchers = (equals(names.OPERATION_NAME, names.CHAT), equals(names.TOKEN_TYPE, names.TOKEN_INPUT))
    return selection(names.TOKEN_USAGE, *matchers, part=part), selection(names.INPUT_TOKENS_A_CALL, part=part)


def token_rate(selection: Selection, *by: str, matchers: Iterable[str] = (), window: str = RATE_INTERVAL) -> str:
    """Return the tokens per second by `gen_ai.token.type` and the labels in `by`."""
    label = label_name(names.TOKEN_TYPE)
    earlier = rate(selection(names.TOKEN_USAGE, *matchers, part="sum"), names.TOKEN_TYPE, *by, window=window)
    released = (
        f'label_replace({rate(series, *by, window=window)}, "{label}", "{kind}", "", "")'
        for kind, series in (
            (
                names.TOKEN_INPUT,
                (
                    selection(names.INPUT_TOKENS_USED, *matchers),
                    selection(names.EMBEDDINGS_INPUT_TOKENS, *matchers, part="sum"),
                ),
            ),
            (names.TOKEN_OUTPUT, selection(names.OUTPUT_TOKENS_USED, *matchers)),
        )
    )
    numbered = (
        f'label_replace({each}, "selector", "{number}", "", "")' for number, each in enumerate((earlier, *released))
    )
    return total(" or ".join(numbered), names.TOKEN_TYPE, *by)
