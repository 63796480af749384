"""No content and no key is in the telemetry, logs, output or errors of a model behind HTTP."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tests import modes
from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.models.samples import CLOSING, NAME, REASONING, SAMPLES, TEXT, Answer, Sample
from tests.modes import MODES
from tests.sweeps import sweep
from traced_tools import ChatClient, ChatOptions, ModelError
from traced_tools.models import GeminiEmbeddingModel, OllamaEmbeddingModel, OpenAIEmbeddingModel
from traced_tools.testing import Fault, ReplayServer, Reply


def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"{MARKER} in {city}"


def said(sample: Sample, answer: Answer, mode: str) -> Reply:
    """Return an answer in which all that the model says holds the marker."""
    body = sample.body(answer, streamed="stream" in mode).decode()
    for words in (REASONING[4:], TEXT[3:], CLOSING[5:], "Oslo"):
        body = body.replace(words, f"{words}{MARKER}")
    return Reply(body.encode(), content_type=sample.content_type if "stream" in mode else "application/json")


def refused(sample: Sample, mode: str) -> list[Any]:
    return [Reply.json({"error": {"message": MARKER, "code": f"{MARKER} !", "param": MARKER}}, 400)]


def broken(sample: Sample, mode: str) -> list[Any]:
    kind = sample.content_type if "stream" in mode else "application/json"
    event = {"error": {"message": MARKER, "failed_generation": MARKER}, MARKER: MARKER}
    body = sample.body(Answer(event, [event]), streamed="stream" in mode)
    return [Reply(body, content_type=kind)]


def garbled(sample: Sample, mode: str) -> list[Any]:
    kind = sample.content_type if "stream" in mode else "application/json"
    return [Reply(f'data: {{"{MARKER}": [{MARKER}\n\n'.encode(), content_type=kind)]


def cut(sample: Sample, mode: str) -> list[Any]:
    whole = said(sample, sample.asking, mode)
    assert isinstance(whole.body, bytes)
    return [Reply([whole.body[: len(whole.body) // 2], Fault.RESET], content_type=whole.content_type)]


def loop(sample: Sample, mode: str) -> list[Any]:
    return [said(sample, sample.asking, mode), said(sample, sample.closing, mode)]


def loop_that_fails(sample: Sample, mode: str) -> list[Any]:
    return [said(sample, sample.asking, mode), *refused(sample, mode)]


ENDINGS: list[Callable[[Sample, str], list[Any]]] = [loop, loop_that_fails, refused, broken, garbled, cut]


@sweep(mode=MODES, ending=ENDINGS, sample=SAMPLES)
def test_no_content_and_no_key_leaves_the_process_however_a_call_ends(
    sample: Sample, ending: Callable[[Sample, str], list[Any]], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    shown: list[str] = []
    with ReplayServer(ending(sample, mode)) as server:
        model = sample.kind("m", base_url=server.url, api_key=f"sk-{MARKER}", retries=0, headers={"X-Own": MARKER})
        client = ChatClient(
            model, system=MARKER, tools=[weather], tool_context={"user": MARKER}, telemetry=telemetry.options
        )
        spec = client.prompt(f"Where? {MARKER}", options=ChatOptions(extra={"metadata": {"note": MARKER}}))
        with telemetry.tracer_provider.get_tracer("application").start_as_current_span("outer"):
            try:
                response = modes.run(mode, spec, model)
                shown += [repr(response), repr(response.chat_response), repr(response.messages)]
                assert response.tool_results[0].tool == NAME
            except ModelError as error:
                shown += [str(error), repr(error), *traceback.format_exception(error), repr(vars(error))]
        shown += [repr(model), repr(client), repr(spec), repr(server.requests)]
        sent = b"".join(request.body for request in server.requests).decode()
    assert MARKER in sent, "the marker was never there"
    spans = [span.to_json() for span in telemetry.spans]
    assert len(spans) > 2
    for text in (*spans, everything(telemetry.metrics), caplog.text, *shown):
        assert MARKER not in text


@pytest.mark.parametrize("kind", [OpenAIEmbeddingModel, OllamaEmbeddingModel, GeminiEmbeddingModel])
@pytest.mark.parametrize("status", [200, 400])
def test_no_text_and_no_key_of_an_embedding_leaves_the_process(
    kind: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    embeddings: list[Any] = [{"values": [1.0]}] if kind is GeminiEmbeddingModel else [[1.0]]
    answered = {"data": [{"index": 0, "embedding": [1.0]}], "embeddings": embeddings}
    body = answered if status == 200 else {"error": MARKER}
    shown: list[str] = []
    with ReplayServer([Reply.json(body, status)]) as server:
        with kind("m", base_url=server.url, api_key=f"sk-{MARKER}", retries=0) as model:
            try:
                shown.append(repr(model.embed([MARKER], telemetry=telemetry.options)))
            except ModelError as error:
                shown += [repr(error), *traceback.format_exception(error), repr(vars(error))]
            shown.append(repr(model))
        assert MARKER in server.requests[0].body.decode()
    assert [span.name for span in telemetry.spans] == ["embeddings m"]
    for text in (telemetry.spans[0].to_json(), everything(telemetry.metrics), caplog.text, *shown):
        assert MARKER not in text
