"""Bodies and streams that nobody should send: every codec answers them, or says with a `ModelError` why it cannot."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures import exchanges, wire_cases
from tests.helpers import relaxed
from tests.models import recorded
from tests.models.samples import SAMPLES, Answer, Sample
from tests.support import in_time
from traced_tools import InvalidResponse, ModelError
from traced_tools.models import ChatResponse
from traced_tools.models.http import framing

wild = settings(relaxed, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""A slow machine is no fault of a codec's."""

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=repr)


def nested() -> Any:
    """A value in 200 lists."""
    value: Any = "x"
    for _ in range(200):
        value = [value]
    return value


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "", "null", "[DONE]", "stop", "tool_calls", 10**400])
    | st.builds(nested)
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@st.composite
def damage(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw bytes that differ from `body` in a few places: changed, left out, said twice, put in, cut off."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 60)))
        put = draw(st.binary(max_size=6) | st.sampled_from([b'"', b"}", b"\n\n", b"\r", b"data: ", b"\xff", b"1e999"]))
        kept = draw(st.sampled_from([body[end:], body[start:], b""]))
        body = body[:start] + put + kept
    return body


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the path of everything in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def swapped(draw: st.DrawFn, value: Any) -> Any:
    """Draw a JSON value with a few of its parts taken out or replaced by others."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(sorted(places(value), key=str) or [("added",)]))
        holder = value
        for key in path:
            holder = holder[key]
        if isinstance(holder, dict) and draw(st.booleans()):
            holder.pop(last, None)
        else:
            holder[last] = copy.deepcopy(draw(values))
    return value


def ask(sample: Sample, body: bytes, *, streamed: bool) -> ChatResponse | ModelError:
    """Return what a model makes of `body`: an answer, or the error it raises; any other error passes."""
    content_type = sample.content_type if streamed else "application/json"

    def answer() -> ChatResponse:
        with recorded.answering(lambda request: recorded.streamed_response([body], content_type)) as client:
            model = sample.model_at("http://127.0.0.1", client=client)
            return recorded.folded(model) if streamed else model.call(recorded.REQUEST)

    try:
        return in_time(answer)
    except ModelError as error:
        return error


def check(found: ChatResponse | ModelError) -> None:
    if isinstance(found, ModelError):
        assert isinstance(found, InvalidResponse)
        assert found.__context__ is None
    else:
        assert ChatResponse.model_validate_json(found.model_dump_json()) == found


@every_sample
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@wild
@given(data=st.data())
def test_damaged_bytes_are_an_answer_or_an_invalid_response(
    sample: Sample, streamed: bool, data: st.DataObject
) -> None:
    body = data.draw(damage(sample.body(sample.asking, streamed=streamed)))
    check(ask(sample, body, streamed=streamed))


@every_sample
@wild
@given(data=st.data())
def test_a_body_with_other_values_in_it_is_an_answer_or_an_invalid_response(
    sample: Sample, data: st.DataObject
) -> None:
    body = json.dumps(data.draw(swapped(sample.asking.whole))).encode()
    check(ask(sample, body, streamed=False))


@every_sample
@wild
@given(data=st.data())
def test_a_stream_with_other_values_in_it_is_an_answer_or_an_invalid_response(
    sample: Sample, data: st.DataObject
) -> None:
    events = list(sample.asking.events)
    number = data.draw(st.integers(0, len(events) - 1))
    if not isinstance(events[number], str):
        events[number] = data.draw(swapped(events[number]))
    order = data.draw(st.permutations(range(len(events))) | st.just(range(len(events))))
    body = sample.body(Answer(None, [events[place] for place in order]), streamed=True)
    check(ask(sample, body, streamed=True))


@every_sample
@wild
@given(body=values)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_any_json_is_an_answer_or_an_invalid_response(sample: Sample, streamed: bool, body: Any) -> None:
    answer = Answer(body, [body, body])
    check(ask(sample, sample.body(answer, streamed=streamed), streamed=streamed))


@every_sample
def test_json_nested_without_end_is_an_invalid_response(sample: Sample) -> None:
    for streamed in (False, True):
        body = b"[" * 100_000
        if streamed:
            body = body + b"\n" if sample.content_type == "application/x-ndjson" else b"data: " + body + b"\n\n"
        assert isinstance(ask(sample, body, streamed=streamed), InvalidResponse)


@every_sample
def test_an_answer_that_never_ends_is_given_up(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MOST_BYTES", 100_000)
    event = sample.body(Answer(None, [sample.closing.events[0]]), streamed=True)

    def endless() -> Iterator[bytes]:
        while True:
            yield event

    for streamed in (False, True):
        content_type = sample.content_type if streamed else "application/json"
        with recorded.answering(lambda _, kind=content_type: recorded.streamed_response(endless(), kind)) as client:
            model = sample.model_at("http://127.0.0.1", client=client)
            with pytest.raises(InvalidResponse, match="larger than 100000 bytes"):
                recorded.folded(model) if streamed else model.call(recorded.REQUEST)


@every_sample
def test_memory_is_bounded_by_the_answer_and_not_by_the_events_that_say_nothing(sample: Sample) -> None:
    first, *rest = sample.closing.events
    nothing = {"type": "ping"} if "type" in first else {**first, **_emptied(first)}
    event = sample.body(Answer(None, [nothing]), streamed=True)
    pieces = [sample.body(Answer(None, [first]), streamed=True), sample.body(Answer(None, rest), streamed=True)]

    def body() -> Iterator[bytes]:
        yield pieces[0]
        for number in range(20_000):
            if number == 1_000:
                tracemalloc.start()
            yield event
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        yield pieces[1]

    held: list[int] = []
    with recorded.answering(lambda _: recorded.streamed_response(body(), sample.content_type)) as client:
        recorded.folded(sample.model_at("http://127.0.0.1", client=client))
    assert held[0] < 100_000


def _emptied(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event's fields that hold text, with none in them."""
    emptied: dict[str, Any] = json.loads(json.dumps(event).replace('"Rain ', '"').replace('"Rain', '"'))
    return emptied


STREAMS = wire_cases("anthropic--sse", "gemini--sse", "openai-responses--sse", "openai-chat--sse", "ollama-chat--sse")
PROVIDERS = {repr(sample): sample for sample in SAMPLES}
MODELS = {
    "anthropic": "AnthropicChatModel",
    "gemini": "GeminiChatModel",
    "openai-responses": "OpenAIResponsesModel",
    "openai-chat": "OpenAIChatModel",
    "ollama-chat": "OpenAIChatModel",
}


@pytest.mark.parametrize("case", STREAMS)
@wild
@given(data=st.data())
def test_a_recorded_stream_that_is_damaged_is_an_answer_or_an_invalid_response(case: str, data: st.DataObject) -> None:
    sample = PROVIDERS[MODELS[case.split("--")[0]]]
    body = data.draw(damage(exchanges(case)[0].body))
    check(ask(sample, body, streamed=True))
