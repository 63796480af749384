"""The board of models: does a provider fail, slow down or refuse calls, and which model is it?"""

from __future__ import annotations

from typing import Final

from dashboards import links, traceql
from dashboards.conventions import MODEL_CALL_DURATION, TIME_PER_OUTPUT_CHUNK, TIME_TO_FIRST_CHUNK, token_rate
from dashboards.objectives import (
    ENOUGH,
    FIRST_CHUNK_SECONDS,
    MODEL_ERRORS,
    MODEL_SUCCESS,
    NOT_CANCELLED,
    RATE_LIMITED,
)
from dashboards.panels import (
    Board,
    Column,
    Instant,
    Range,
    Section,
    SpanMetric,
    Spans,
    Stat,
    Table,
    Threshold,
    TimeSeries,
)
from dashboards.promql import (
    RANGE,
    equals,
    has,
    increase,
    labels,
    legend,
    occurrences,
    quantile,
    rate,
    share,
)
from dashboards.variables import MODEL, SERVICE, selection_of
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, MODEL)
select: Final = selection_of(*VARIABLES)
spans: Final = traceql.SpanSelection(VARIABLES)

_CHAT: Final = equals(names.OPERATION_NAME, names.CHAT)
_EMBEDDINGS: Final = equals(names.OPERATION_NAME, names.EMBEDDINGS)
_CUT: Final = ("length", "content_filter")
_MODEL: Final = (names.PROVIDER_NAME, names.REQUEST_MODEL)
_ANSWER: Final = (*_MODEL, names.RESPONSE_MODEL)

_CALLS: Final = select(MODEL_CALL_DURATION, part="count")
_CHATS: Final = select(MODEL_CALL_DURATION, _CHAT, part="count")
_EMBEDS: Final = select(MODEL_CALL_DURATION, _EMBEDDINGS, part="count")
_FAILED: Final = (has(names.ERROR_TYPE), NOT_CANCELLED)
_COUNTED: Final = select(MODEL_CALL_DURATION, NOT_CANCELLED, part="count")
_FAILED_CALLS: Final = select(MODEL_CALL_DURATION, *_FAILED, part="count")
_COUNTED_CHATS: Final = select(MODEL_CALL_DURATION, _CHAT, NOT_CANCELLED, part="count")
_FAILED_CHATS: Final = select(MODEL_CALL_DURATION, _CHAT, *_FAILED, part="count")
_COUNTED_EMBEDS: Final = select(MODEL_CALL_DURATION, _EMBEDDINGS, NOT_CANCELLED, part="count")
_FAILED_EMBEDS: Final = select(MODEL_CALL_DURATION, _EMBEDDINGS, *_FAILED, part="count")
_RATE_LIMITS: Final = select(names.MODEL_RATE_LIMITS)
_RETRIES: Final = select(names.MODEL_RETRIES)
_RETRY_WAIT: Final = select(names.MODEL_RETRY_WAIT)

_NO_CALLS: Final = "No model call in this time range. Choose a longer range, or run: traced-tools demo --load"
_NO_STREAMS: Final = "No streamed answer in this time range. Only agents that call stream or astream have one."
_NO_RETRIES: Final = "No request to a provider was retried in this time range."
_NO_EMBEDDINGS: Final = (
    "No embedding model was called in this time range. Call one through EmbeddingModel, and choose it or All above."
)
_FAILING: Final = Threshold(MODEL_ERRORS)
_FEW: Final = f"Below {ENOUGH}, the quantiles say little."

_ANSWERED_BY: Final = increase(
    select(MODEL_CALL_DURATION, _CHAT, has(names.RESPONSE_MODEL), part="count"),
    *_ANSWER,
)
_ANSWERED_AS_REQUESTED: Final = (
    f"label_join({increase(_CHATS, *_MODEL)}, "
    f'"{label_name(names.RESPONSE_MODEL)}", "", "{label_name(names.REQUEST_MODEL)}")'
)

BOARD: Final = Board(
    uid="tt-models",
    title="Agents: models",
    question="Does a provider fail, slow down or refuse calls, and which model is it?",
    variables=VARIABLES,
    sections=(
        Section(
            "Calls",
            (
                Stat(
                    id=1,
                    title="Model calls that don't fail",
                    question="Do the providers answer?",
                    reading=(
                        "Calls to chat and embedding models, after all retries. Cancelled calls don't count. Below the "
                        "objective, the table of models says which model fails, and the errors beside it say how."
                    ),
                    queries=(Instant(f"1 - {share(increase(_FAILED_CALLS), increase(_COUNTED))}"),),
                    unit="percentunit",
                    threshold=Threshold(MODEL_SUCCESS.objective, color="green", below="red"),
                    empty=_NO_CALLS,
                    links=(links.board("tt-slo", "Objectives and budgets", "job"),),
                ),
                Stat(
                    id=2,
                    title="Chat calls",
                    question="How many answers do the other numbers stand for?",
                    reading=f"With fewer than {ENOUGH} calls, quantiles and shares on this board say little.",
                    queries=(Instant(increase(_CHATS)),),
                    empty=_NO_CALLS,
                ),
                Stat(
                    id=3,
                    title="Rate limits",
                    question="Do providers refuse requests because we send too many?",
                    reading=(
                        "Requests that providers refused in this time range, whether they were retried or not. Above "
                        "0, ask for a higher quota, spread the load, or lower the number of runs at the same time."
                    ),
                    queries=(Instant(f"{occurrences(_RATE_LIMITS, window=RANGE)} or 0 * {increase(_COUNTED)}"),),
                    threshold=Threshold(1),
                    empty=_NO_CALLS,
                ),
                Stat(
                    id=4,
                    title="Retried requests",
                    question="How much trouble do retries hide?",
                    reading="Failed requests in this time range that were sent again. Users only wait longer for them.",
                    queries=(Instant(f"{occurrences(_RETRIES, window=RANGE)} or 0 * {increase(_COUNTED)}"),),
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=5,
                    title="Chat calls per second by model",
                    question="Which models do the agents call, and did that change?",
                    reading="A model that ends while another begins is a switch of models, such as a fallback.",
                    queries=(Range(rate(_CHATS, *_MODEL), legend(*_MODEL)),),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=6,
                    title="Share of chat calls that fail",
                    question="Does one model fail, or do all of them?",
                    reading=(
                        "One model: its provider has a problem, or the model is gone. All models: look at the network "
                        "and the keys. A model that fails every time is a line at 100 %."
                    ),
                    queries=(
                        Range(share(rate(_FAILED_CHATS, *_MODEL), rate(_COUNTED_CHATS, *_MODEL)), legend(*_MODEL)),
                    ),
                    unit="percentunit",
                    threshold=_FAILING,
                    empty=_NO_CALLS,
                    links=(links.traces("Failed calls", spans(traceql.MODEL_CALLS, traceql.FAILED)),),
                ),
                TimeSeries(
                    id=7,
                    title="Failed chat calls per second by error",
                    question="How do the calls fail?",
                    reading=(
                        "RateLimited: quota. A time-out: the provider is slow, or the client's time-out is short. "
                        "Other errors: open a failed call, and read its exception."
                    ),
                    queries=(
                        Range(
                            rate(_FAILED_CHATS, names.REQUEST_MODEL, names.ERROR_TYPE),
                            legend(names.REQUEST_MODEL, names.ERROR_TYPE),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty="No chat call has failed in this time range.",
                    links=(links.traces("Failed calls", spans(traceql.MODEL_CALLS, traceql.FAILED)),),
                ),
                Table(
                    id=8,
                    title="Chat models",
                    question="Which model fails, or is slow?",
                    reading=(
                        "The models with the largest share of failures come first. Calls is the number of samples. "
                        + _FEW
                    ),
                    queries=(
                        Instant(occurrences(_CHATS, *_MODEL, window=RANGE)),
                        Instant(
                            share(
                                occurrences(_FAILED_CHATS, *_MODEL, window=RANGE),
                                occurrences(_COUNTED_CHATS, *_MODEL, window=RANGE),
                            )
                        ),
                        *(
                            Instant(quantile(of, select, MODEL_CALL_DURATION, *_MODEL, matchers=(_CHAT,), window=RANGE))
                            for of in (0.5, 0.95)
                        ),
                    ),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column(
                            "Model", link=links.board_url("tt-models", links.chosen("model"))
                        ),
                        "Value #A": Column("Calls"),
                        "Value #B": Column("Failed", "percentunit"),
                        "Value #C": Column("p50", "s"),
                        "Value #D": Column("p95", "s"),
                    },
                    sort="Value #B",
                    empty=_NO_CALLS,
                ),
            ),
        ),
        Section(
            "Latency",
            (
                TimeSeries(
                    id=9,
                    title="Duration of chat calls",
                    question="Are all answers slow, or a few?",
                    reading=(
                        "With retries, to the end of the answer, without hooks of advisors and the reader. If this is "
                        "flat and runs are slow, the provider is not the cause. A dot is a call: it opens its trace."
                    ),
                    links=(links.board("tt-home", "Where the time goes", "job"),),
                    queries=tuple(
                        Range(
                            quantile(of, select, MODEL_CALL_DURATION, matchers=(_CHAT,)),
                            f"p{of * 100:g}",
                            exemplars=of == 0.95,
                        )
                        for of in (0.5, 0.95, 0.99)
                    ),
                    unit="s",
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=10,
                    title="Duration of chat calls by model, p95",
                    question="Which model is slow?",
                    reading=(
                        "Compare a model with itself an hour ago: longer answers are slower, too. The tokens below "
                        "tell a slow provider from long answers."
                    ),
                    queries=(
                        Range(
                            quantile(0.95, select, MODEL_CALL_DURATION, *_MODEL, matchers=(_CHAT,)),
                            legend(*_MODEL),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=11,
                    title="Time to the first chunk (streaming only), p95",
                    question="How soon does the model begin to answer?",
                    reading=(
                        "Until the chunk arrives, before `on_chunk` of advisors. Only streamed answers have it. A dot "
                        "is a call: it opens the trace."
                    ),
                    links=(links.board("tt-home", "Where the time goes", "job"),),
                    queries=(
                        Range(quantile(0.95, select, TIME_TO_FIRST_CHUNK, *_MODEL), legend(*_MODEL), exemplars=True),
                    ),
                    unit="s",
                    threshold=Threshold(FIRST_CHUNK_SECONDS),
                    empty=_NO_STREAMS,
                ),
                TimeSeries(
                    id=12,
                    title="Time per output chunk (streaming only), p95",
                    question="Does the model write faster than people read?",
                    reading=(
                        "The pause between two chunks, without `on_chunk` of advisors. Only streamed answers of two "
                        "chunks or more have it."
                    ),
                    queries=(
                        Range(quantile(0.95, select, TIME_PER_OUTPUT_CHUNK, *_MODEL), legend(*_MODEL), exemplars=True),
                    ),
                    unit="s",
                    empty=_NO_STREAMS,
                ),
                Table(
                    id=13,
                    title="Streamed answers by model",
                    question="How many samples stand behind the times of chunks?",
                    reading=f"Answers and pauses are the numbers of samples. {_FEW}",
                    queries=(
                        Instant(increase(select(TIME_TO_FIRST_CHUNK, part="count"), *_MODEL)),
                        *(
                            Instant(quantile(of, select, TIME_TO_FIRST_CHUNK, *_MODEL, window=RANGE))
                            for of in (0.5, 0.95)
                        ),
                        Instant(increase(select(TIME_PER_OUTPUT_CHUNK, part="count"), *_MODEL)),
                        *(
                            Instant(quantile(of, select, TIME_PER_OUTPUT_CHUNK, *_MODEL, window=RANGE))
                            for of in (0.5, 0.95)
                        ),
                    ),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column("Model"),
                        "Value #A": Column("Answers"),
                        "Value #B": Column("First chunk, p50", "s"),
                        "Value #C": Column("First chunk, p95", "s"),
                        "Value #D": Column("Pauses"),
                        "Value #E": Column("Pause, p50", "s"),
                        "Value #F": Column("Pause, p95", "s"),
                    },
                    sort="Value #A",
                    empty=_NO_STREAMS,
                ),
                Table(
                    id=14,
                    title="Slow chat calls",
                    question="What does a slow call look like?",
                    reading=(
                        "Examples of calls that took more than 100 ms, the slowest first. Each row opens a trace. Look "
                        "at the output tokens first: long answers take long."
                    ),
                    queries=(
                        Spans(
                            spans(traceql.MODEL_CALLS, "duration > 100ms")
                            + traceql.select(
                                names.AGENT_NAME,
                                names.PROVIDER_NAME,
                                names.REQUEST_MODEL,
                                names.USAGE_INPUT_TOKENS,
                                names.USAGE_OUTPUT_TOKENS,
                                names.RESEND_COUNT,
                            )
                        ),
                    ),
                    sort="Duration",
                    empty="No chat call of more than 100 ms in Tempo in this time range.",
                ),
            ),
        ),
        Section(
            "Limits and retries",
            (
                TimeSeries(
                    id=15,
                    title="Rate limits per model call",
                    question="Which quota is used up, and since when?",
                    reading=(
                        "Requests that the provider refused, for each call; a call that is retried may be refused "
                        "again. Above the limit, ask for a higher quota, or send less."
                    ),
                    queries=(Range(share(rate(_RATE_LIMITS, *_MODEL), rate(_CALLS, *_MODEL)), legend(*_MODEL)),),
                    unit="percentunit",
                    threshold=Threshold(RATE_LIMITED),
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=16,
                    title="Retries per second by status",
                    question="Why are requests sent again?",
                    reading=(
                        "429 is a rate limit; 5xx is a problem of the provider; without a status, the request had no "
                        "answer at all."
                    ),
                    queries=(
                        Range(rate(_RETRIES, *_MODEL, names.RESPONSE_STATUS), legend(*_MODEL, names.RESPONSE_STATUS)),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_RETRIES,
                ),
                TimeSeries(
                    id=17,
                    title="Time waited before retries",
                    question="How much of the latency is waiting, not answering?",
                    reading=(
                        "Seconds that calls wait before they send a request again, per second: at 1, one call waits at "
                        "any time. Calls that wait long need a higher quota, not more retries."
                    ),
                    queries=(Range(rate(_RETRY_WAIT, *_MODEL), legend(*_MODEL)),),
                    unit="s",
                    stacked=True,
                    empty=_NO_RETRIES,
                ),
                Table(
                    id=18,
                    title="Retries by model, status and error",
                    question="Which failures are retried, and how long do calls wait for that?",
                    queries=tuple(
                        Instant(occurrences(series, *_MODEL, names.RESPONSE_STATUS, names.ERROR_TYPE, window=RANGE))
                        for series in (_RETRIES, _RETRY_WAIT)
                    ),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column("Model"),
                        label_name(names.RESPONSE_STATUS): Column("Status", "none"),
                        label_name(names.ERROR_TYPE): Column("Error"),
                        "Value #A": Column("Retries"),
                        "Value #B": Column("Waited", "s"),
                    },
                    sort="Value #A",
                    empty=_NO_RETRIES,
                    links=(
                        links.traces(
                            "Calls with retries",
                            spans(traceql.MODEL_CALLS, f"{traceql.span(names.RESEND_COUNT)} > 0"),
                        ),
                    ),
                ),
            ),
        ),
        Section(
            "Answers and tokens",
            (
                TimeSeries(
                    id=19,
                    title="Tokens per second by type and model",
                    question="Which model reads and writes how much?",
                    reading=(
                        "Input grows with the length of conversations and tool results; output makes calls slow. "
                        "Cached tokens count as input, reasoning tokens as output."
                    ),
                    queries=(
                        Range(
                            token_rate(select, names.REQUEST_MODEL, matchers=(_CHAT,)),
                            legend(names.TOKEN_TYPE, names.REQUEST_MODEL),
                        ),
                    ),
                    empty=_NO_CALLS,
                    links=(links.board("tt-cost", "Cost", "job"),),
                ),
                TimeSeries(
                    id=20,
                    title="Answers that are cut or withheld, per second by model",
                    question="Do users get half an answer?",
                    reading=(
                        "The finish reason is length or content_filter; the links tell them apart. length: raise "
                        "max_tokens, or ask for less. content_filter: the provider withheld the answer. Counted from "
                        "traces, so sampling makes it smaller."
                    ),
                    queries=(
                        SpanMetric(
                            spans(traceql.MODEL_CALLS, traceql.one_of(names.RESPONSE_FINISH_REASONS, _CUT))
                            + f" | rate() by ({traceql.span(names.REQUEST_MODEL)})",
                            legend(names.REQUEST_MODEL),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty="No such answer in Tempo in this time range. Tempo finds finish reasons from version 2.6 on.",
                    links=tuple(
                        links.traces(
                            f"Answers with {reason}",
                            spans(traceql.MODEL_CALLS, traceql.equals(names.RESPONSE_FINISH_REASONS, reason)),
                        )
                        for reason in _CUT
                    ),
                ),
                Table(
                    id=21,
                    title="Answers of another model",
                    question="Does a provider answer with another model than we ask for?",
                    reading=(
                        "A dated name of the requested model is normal. Another model is a fallback or a change of the "
                        "provider: check quality and price."
                    ),
                    queries=(Instant(f"({_ANSWERED_BY} > 0) unless on ({labels(*_ANSWER)}) {_ANSWERED_AS_REQUESTED}"),),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column("Requested"),
                        label_name(names.RESPONSE_MODEL): Column("Answered"),
                        "Value": Column("Calls"),
                    },
                    sort="Value",
                    width=24,
                    empty="Every answer in this time range names the model that was requested, or none.",
                ),
            ),
        ),
        Section(
            "Embeddings",
            (
                TimeSeries(
                    id=22,
                    title="Embedding calls per second by model",
                    question="How much do the agents embed?",
                    queries=(Range(rate(_EMBEDS, *_MODEL), legend(*_MODEL)),),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_EMBEDDINGS,
                ),
                TimeSeries(
                    id=23,
                    title="Share of embedding calls that fail",
                    question="Do searches fail because texts are not embedded?",
                    queries=(
                        Range(share(rate(_FAILED_EMBEDS, *_MODEL), rate(_COUNTED_EMBEDS, *_MODEL)), legend(*_MODEL)),
                    ),
                    unit="percentunit",
                    threshold=_FAILING,
                    empty=_NO_EMBEDDINGS,
                ),
                TimeSeries(
                    id=24,
                    title="Duration of embedding calls",
                    question="Does embedding make tools slow?",
                    reading="A call embeds one text or many: see the tokens. A dot is a call: it opens the trace.",
                    queries=tuple(
                        Range(
                            quantile(of, select, MODEL_CALL_DURATION, matchers=(_EMBEDDINGS,)),
                            f"p{of * 100:g}",
                            exemplars=of == 0.95,
                        )
                        for of in (0.5, 0.95)
                    ),
                    unit="s",
                    empty=_NO_EMBEDDINGS,
                ),
                TimeSeries(
                    id=25,
                    title="Embedded tokens per second by model",
                    question="How much text is embedded?",
                    queries=(
                        Range(
                            token_rate(select, names.REQUEST_MODEL, matchers=(_EMBEDDINGS,)),
                            legend(names.REQUEST_MODEL),
                        ),
                    ),
                    empty=_NO_EMBEDDINGS,
                ),
            ),
        ),
    ),
)
