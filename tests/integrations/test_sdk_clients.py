"""Clients of SDKs in runs and outside of them: what each request becomes, and what an application never notices."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.integrations import anthropic_api, openai_apis
from tests.integrations.contents import names_by_end
from tests.integrations.sdk_agent import ask_sdk, serving
from tests.integrations.small_agent import AGENT, TURNS, Run
from tests.modes import ALL_MODES
from tests.waiting import patiently
from traced_tools import LoopLimits, ToolCall, ToolResult, observe, tool
from traced_tools.errors import LoopLimitExceeded
from traced_tools.integrations import anthropic, openai
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply

APIS = {**openai_apis.APIS, **anthropic_api.APIS}
TRACED: dict[str, Callable[..., Any]] = {
    "chat": openai.traced,
    "responses": openai.traced,
    "messages": anthropic.traced,
}
SECRET = "marker-of-the-prompt"
both = pytest.mark.parametrize("api", APIS)


def untraced(api: str, url: str, *, on_asyncio: bool = False) -> Any:
    """Return a client of the SDK of an API."""
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    if api == "messages":
        return (AsyncAnthropic if on_asyncio else Anthropic)(base_url=url, **anthropic_api.SETTINGS)
    return (AsyncOpenAI if on_asyncio else OpenAI)(base_url=url, **openai_apis.SETTINGS)


def whole(api: str, *turns: Any) -> list[Reply]:
    return [Reply.json(APIS[api].whole(number, turn)) for number, turn in enumerate(turns)]


def streamed(api: str, *turns: Any, cut: bool = False) -> list[Reply]:
    return [Reply.sse([*APIS[api].events(number, turn)], cut=cut) for number, turn in enumerate(turns)]


def emitted_text(telemetry: Telemetry) -> str:
    """Return all that was emitted, for searches."""
    return " ".join([*(span.to_json() for span in telemetry.spans), repr(telemetry.events), repr(telemetry.metrics)])


def names_of(telemetry: Telemetry) -> list[str]:
    return sorted(span.name for span in telemetry.spans)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with Telemetry() as captured:
        yield captured


@both
@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_without_blocks_for_iterations_has_the_same_iterations(api: str, mode: str) -> None:
    asked = APIS[api]
    with serving(asked, mode) as server:
        with_blocks, without = (ask_sdk(asked, server.url, mode, blocks=blocks) for blocks in (True, False))
    last = ("invoke_agent desk ", "iteration 4", "chat m 4")  # the application does not know of the limit
    spans = [[span for span in run.seen()["spans"] if span[0] != last] for run in (with_blocks, without)]
    assert spans[0] == spans[1]


@both
def test_a_call_that_the_application_answers_or_leaves_is_recorded(api: str) -> None:
    asked, run = APIS[api], Run()
    with ReplayServer(whole(api, TURNS[0], TURNS[1], "Done.")) as server:
        client, messages = asked.blocking(server.url), asked.begin()
        with observe.run(AGENT, observers=[run.watching], telemetry=run.telemetry.options) as manual:
            asked.create(client, messages, asked.tools, False)
            assert [call.id for call in manual.open_calls] == ["c1", "c2"]
            messages += asked.go_on(TURNS[0], [ToolResult("c1", "add", "42"), ToolResult("c2", "look_up", "none")])
            asked.create(client, messages, asked.tools, False)
            assert not [call for call in manual.open_calls if call.id in ("c1", "c2")]
            asked.create(client, asked.begin(), asked.tools, False)
    decisions = {
        (span.attributes or {}).get(names.TOOL_CALL_ID): (span.attributes or {}).get(names.TOOL_DECISION)
        for span in run.telemetry.spans
        if names.TOOL_CALL_ID in (span.attributes or {})
    }
    assert decisions == {"c1": "answered", "c2": "answered", "c3": None, "c4": None}
    assert len(run.telemetry.named("refuse_tool add")) == 1
    assert [result.content for result in manual.tool_results] == ["42", "none"]


@both
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_outside_of_a_run_is_a_run(api: str, is_streamed: bool, telemetry: Telemetry) -> None:
    replies = streamed(api, "Hello.") if is_streamed else whole(api, "Hello.")
    with ReplayServer(replies) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client, "greeter", telemetry=telemetry.options)
        answer = APIS[api].create(traced, APIS[api].begin(), (), is_streamed)
        events = [*answer] if is_streamed else []
    assert bool(events) == is_streamed
    assert names_of(telemetry) == ["chat m", "invoke_agent greeter", "iteration"]
    (run,) = telemetry.named("invoke_agent greeter")
    assert run.attributes is not None
    assert run.attributes[names.USAGE_INPUT_TOKENS] == 10


@both
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_that_nobody_executes_belongs_to_the_iteration_of_its_request(
    api: str, is_streamed: bool, telemetry: Telemetry
) -> None:
    replies = [*(streamed if is_streamed else whole)(api, [ToolCall("add", {"a": 1}, id="c1")])]
    with ReplayServer(replies) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client, telemetry=telemetry.options)
        answer = APIS[api].create(traced, APIS[api].begin(), APIS[api].tools, is_streamed)
        for _ in answer if is_streamed else ():
            pass
    (iteration,), (refused,) = telemetry.named("iteration"), telemetry.named("refuse_tool add")
    assert refused.parent is not None
    assert refused.parent == iteration.context


@both
def test_the_client_of_the_application_stays_as_it_is(api: str, telemetry: Telemetry) -> None:
    with ReplayServer(whole(api, "a", "b")) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client, telemetry=telemetry.options)
        APIS[api].create(client, APIS[api].begin(), (), False)
        assert names_of(telemetry) == []
        assert isinstance(traced, type(client))
        assert type(traced).__name__ == type(client).__name__
        APIS[api].create(traced.with_options(timeout=5).copy(max_retries=0), APIS[api].begin(), (), False)
    assert names_of(telemetry) == ["chat m", "invoke_agent assistant", "iteration"]


@both
def test_a_client_is_traced_once(api: str) -> None:
    with untraced(api, "http://127.0.0.1:1") as client, pytest.raises(TypeError, match="traced already"):
        TRACED[api](TRACED[api](client))
    with pytest.raises(TypeError, match="client must be"):
        TRACED[api](object())
    with untraced(api, "http://127.0.0.1:1") as client, pytest.raises(TypeError, match="limits"):
        TRACED[api](client, limits=3)


@both
def test_a_request_in_a_tool_is_a_nested_run(api: str, telemetry: Telemetry) -> None:
    asked = APIS[api]
    with ReplayServer(whole(api, [ToolCall("sub", {}, id="c1")], "inner", "outer")) as server:
        with untraced(api, server.url) as client:
            traced = TRACED[api](client, "inner", telemetry=telemetry.options)

            def sub() -> str:
                """Ask the sub-agent."""
                asked.create(traced, asked.begin(), (), False)
                return "done"

            with observe.run(AGENT, telemetry=telemetry.options) as run:
                asked.create(traced, asked.begin(), asked.tools, False)
                assert run.response is not None
                (call,) = run.response.tool_calls
                assert run.execute([sub], call).content == "done"
                asked.create(traced, asked.begin(), asked.tools, False)
    (nested,) = telemetry.named("invoke_agent inner")
    (tool,) = telemetry.named("execute_tool sub")
    assert nested.parent is not None
    assert tool.context is not None
    assert nested.parent.span_id == tool.context.span_id
    assert len(telemetry.named("iteration")) == 3


@both
@pytest.mark.parametrize("is_streamed", [False, True])
def test_requests_side_by_side_share_an_iteration(api: str, is_streamed: bool, telemetry: Telemetry) -> None:
    asked = APIS[api]

    async def ask(client: Any) -> None:
        answer = await asked.create(client, asked.begin(), (), is_streamed)
        if is_streamed:
            async for _ in answer:
                pass

    async def ask_both(url: str) -> None:
        async with untraced(api, url, on_asyncio=True) as client:
            traced = TRACED[api](client, telemetry=telemetry.options)
            with observe.run(AGENT, telemetry=telemetry.options):
                await asyncio.gather(ask(traced), ask(traced))

    replies = streamed(api, "a", "b") if is_streamed else whole(api, "a", "b")
    with ReplayServer(replies) as server:
        asyncio.run(patiently(ask_both(server.url)))
    assert names_of(telemetry) == ["chat m", "chat m", "invoke_agent desk", "iteration"]


@both
def test_a_refused_request_ends_its_run_with_the_error_of_the_sdk(api: str, telemetry: Telemetry) -> None:
    with ReplayServer([Reply.json({"error": {"message": SECRET}}, 400)]) as server:
        with untraced(api, server.url) as client:
            traced = TRACED[api](client, telemetry=telemetry.options)
            with pytest.raises(Exception, match=SECRET) as raised:
                APIS[api].create(traced, APIS[api].begin(), (), False)
    (chat,) = telemetry.named("chat m")
    assert chat.attributes is not None
    assert chat.attributes[names.ERROR_TYPE] == f"{type(raised.value).__module__}.BadRequestError"
    assert names_of(telemetry) == ["chat m", "invoke_agent assistant", "iteration"]
    assert SECRET not in emitted_text(telemetry)


@both
@pytest.mark.parametrize("left", ["closed", "dropped"])
def test_a_stream_that_is_left_ends_its_run(api: str, left: str, telemetry: Telemetry) -> None:
    with ReplayServer(streamed(api, "Hello.")) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client, telemetry=telemetry.options)
        stream = APIS[api].create(traced, APIS[api].begin(), (), True)
        next(stream)
        if left == "closed":
            stream.close()
        del stream
        gc.collect()
        (run,) = telemetry.named("invoke_agent assistant")
    assert run.attributes is not None
    assert run.attributes[names.LOOP_STOP_REASON] == "cancelled"


LEFT = pytest.mark.parametrize("left", ["exception", "break", "cancelled"])
HELPED = pytest.mark.parametrize("is_helped", [False, True])


def _open_stream(api: str, client: Any, *, is_helped: bool) -> Any:
    """Return a stream of an SDK, or the manager of its helper."""
    if not is_helped:
        return APIS[api].create(client, APIS[api].begin(), (), True)
    if api == "messages":
        return client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "?"}])
    if api == "responses":
        return client.responses.stream(model="m", input="?")
    return client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}])


def _check_is_cancelled(telemetry: Telemetry) -> None:
    assert names_by_end(telemetry) == ["chat m", "iteration", "invoke_agent desk"]
    assert (telemetry.one("chat m").attributes or {})[names.ERROR_TYPE] == "cancelled"
    assert all(point.sum >= 0 for point in telemetry.metric("gen_ai.client.inference.duration"))


@both
@LEFT
def test_a_stream_that_is_left_in_a_run_ends_with_it(api: str, left: str, telemetry: Telemetry) -> None:
    with ReplayServer(streamed(api, "Hello.")) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client)
        with suppress(ValueError, asyncio.CancelledError):
            with observe.run(AGENT, telemetry=telemetry.options) as run:
                stream = _open_stream(api, traced, is_helped=False)
                for _ in stream:
                    if left == "break":
                        break
                    raise ValueError if left == "exception" else asyncio.CancelledError
        _check_is_cancelled(telemetry)
        assert not run.is_calling_model
        del stream
        gc.collect()
    telemetry.check_each_ended_once()


@both
@HELPED
def test_the_block_of_a_stream_ends_its_model_call(api: str, is_helped: bool, telemetry: Telemetry) -> None:
    with ReplayServer(streamed(api, "Hello.")) as server, untraced(api, server.url) as client:
        with observe.run(AGENT, telemetry=telemetry.options) as run:
            with _open_stream(api, TRACED[api](client), is_helped=is_helped) as stream:
                next(iter(stream))
                assert run.is_calling_model
            assert names_of(telemetry) == ["chat m"]
            assert not run.is_calling_model
    _check_is_cancelled(telemetry)


@both
@HELPED
def test_the_block_of_a_stream_on_asyncio_ends_its_model_call(api: str, is_helped: bool, telemetry: Telemetry) -> None:
    async def read(url: str, reads: asyncio.Event) -> None:
        async with untraced(api, url, on_asyncio=True) as client:
            with observe.run(AGENT, telemetry=telemetry.options):
                opened = _open_stream(api, TRACED[api](client), is_helped=is_helped)
                async with opened if is_helped else await opened as stream:
                    async for _ in stream:
                        reads.set()
                        await asyncio.Event().wait()

    async def cancel(url: str) -> None:
        reads = asyncio.Event()
        task = asyncio.create_task(read(url, reads))
        await reads.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        _check_is_cancelled(telemetry)

    with ReplayServer(streamed(api, "Hello.")) as server:
        asyncio.run(patiently(cancel(server.url)))


@both
def test_a_stream_that_a_cancelled_task_reads_ends_with_its_run(api: str, telemetry: Telemetry) -> None:
    streams = []

    async def read(url: str, reads: asyncio.Event) -> None:
        async with untraced(api, url, on_asyncio=True) as client:
            with observe.run(AGENT, telemetry=telemetry.options):
                streams.append(await _open_stream(api, TRACED[api](client), is_helped=False))
                async for _ in streams[0]:
                    reads.set()
                    await asyncio.Event().wait()

    async def cancel(url: str) -> None:
        reads = asyncio.Event()
        task = asyncio.create_task(read(url, reads))
        await reads.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        _check_is_cancelled(telemetry)
        await streams[0].close()

    with ReplayServer(streamed(api, "Hello.")) as server:
        asyncio.run(patiently(cancel(server.url)))
    telemetry.check_each_ended_once()


@both
def test_a_stream_that_is_left_after_its_last_event_has_its_answer_in_the_run(api: str, telemetry: Telemetry) -> None:
    with ReplayServer(streamed(api, "Hello.")) as server, untraced(api, server.url) as client:
        with observe.run(AGENT, telemetry=telemetry.options) as run:
            stream = APIS[api].create(TRACED[api](client), APIS[api].begin(), (), True)
            for event in stream:
                if _is_last(event):
                    break
        assert run.content == "Hello."
        assert names.ERROR_TYPE not in (telemetry.one("chat m").attributes or {})
        stream.close()
    telemetry.check_each_ended_once()


@both
def test_a_stream_that_is_closed_after_its_last_event_has_its_answer(api: str, telemetry: Telemetry) -> None:
    with ReplayServer(streamed(api, "Hello.")) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client, telemetry=telemetry.options)
        with APIS[api].create(traced, APIS[api].begin(), (), True) as stream:
            for event in stream:
                if _is_last(event):
                    break
    (run,) = telemetry.named("invoke_agent assistant")
    assert run.attributes is not None
    assert run.attributes[names.LOOP_STOP_REASON] == "answered"


def _is_last(event: Any) -> bool:
    kind = getattr(event, "type", None)
    return kind in ("response.completed", "message_stop") or (kind is None and not event.choices)


@both
def test_a_raw_answer_has_its_model_call(api: str, telemetry: Telemetry) -> None:
    with ReplayServer([*whole(api, "a"), *streamed(api, "b"), *whole(api, "c")]) as server:
        with untraced(api, server.url) as client:
            raw = _raw(TRACED[api](client, telemetry=telemetry.options))
            answer = APIS[api].create(raw, APIS[api].begin(), (), False)
            assert answer.parse().model == "m"
            assert len([*APIS[api].create(raw, APIS[api].begin(), (), True).parse()]) > 2
    assert [span.attributes[names.RESPONSE_ID] for span in telemetry.named("chat m") if span.attributes] == [
        "r0",
        "r0",
    ]


@both
def test_an_answer_that_the_application_reads_itself_has_a_model_call_without_it(
    api: str, telemetry: Telemetry
) -> None:
    with ReplayServer([*whole(api, "a"), *streamed(api, "b")]) as server, untraced(api, server.url) as client:
        raw = _raw(TRACED[api](client, telemetry=telemetry.options), "with_streaming_response")
        with APIS[api].create(raw, APIS[api].begin(), (), False) as answer:
            assert answer.parse().model == "m"
        with APIS[api].create(raw, APIS[api].begin(), (), True) as answer:
            assert len([*answer.parse()]) > 2
    ids = [span.attributes.get(names.RESPONSE_ID) for span in telemetry.named("chat m") if span.attributes]
    assert ids == [None, "r0"]
    assert [run.status.is_ok for run in telemetry.named("invoke_agent")] == [True, True]


@both
def test_a_raw_answer_on_asyncio_has_its_model_call(api: str, telemetry: Telemetry) -> None:
    async def ask(url: str) -> None:
        async with untraced(api, url, on_asyncio=True) as client:
            raw = _raw(TRACED[api](client, telemetry=telemetry.options))
            await APIS[api].create(raw, APIS[api].begin(), (), False)

    with ReplayServer(whole(api, "a")) as server:
        asyncio.run(patiently(ask(server.url)))
    attributes = telemetry.one("chat m").attributes
    assert attributes is not None
    assert attributes[names.RESPONSE_ID] == "r0"


@both
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_without_capture_stays_out_of_captured_answers(api: str, is_streamed: bool) -> None:
    @tool(name="add", capture=False)
    def silent(a: int, b: str) -> str:
        """Add two numbers."""
        return b

    call = [ToolCall("add", {"a": 1, "b": SECRET}, id="c1")]
    with Telemetry("SPAN_AND_EVENT") as telemetry, untraced(api, "http://127.0.0.1:1") as client:
        with ReplayServer([*(streamed if is_streamed else whole)(api, call)]) as server:
            client.base_url = server.url
            traced = TRACED[api](client, tools=[silent])
            with observe.run(AGENT, telemetry=telemetry.options) as run:
                answer = APIS[api].create(traced, APIS[api].begin(), APIS[api].tools, is_streamed)
                for _ in answer if is_streamed else ():
                    pass
                assert run.response is not None
                assert run.execute([silent], run.response.tool_calls[0]).content == SECRET
        assert SECRET not in emitted_text(telemetry)
        assert "Be brief." in emitted_text(telemetry) or "Add, look up" in emitted_text(telemetry)


def _raw(client: Any, kind: str = "with_raw_response") -> Any:
    """Return a client whose requests return raw answers."""
    if hasattr(client, "messages"):
        return SimpleNamespace(messages=getattr(client.messages, kind))
    chat = SimpleNamespace(completions=getattr(client.chat.completions, kind))
    return SimpleNamespace(chat=chat, responses=getattr(client.responses, kind))


@both
def test_a_limit_of_the_run_reaches_the_application(api: str, telemetry: Telemetry) -> None:
    asked = APIS[api]
    with ReplayServer(whole(api, "a", "b", "c")) as server, untraced(api, server.url) as client:
        traced = TRACED[api](client)
        with observe.run(AGENT, limits=LoopLimits(max_iterations=1), telemetry=telemetry.options):
            for _ in range(2):
                asked.create(traced, asked.begin(), (), False)
            with pytest.raises(LoopLimitExceeded):
                asked.create(traced, asked.begin(), (), False)
        assert len(server.requests) == 2


@both
@pytest.mark.parametrize("is_streamed", [False, True])
def test_prompts_stay_out_of_telemetry_without_capture(api: str, is_streamed: bool, telemetry: Telemetry) -> None:
    asked = APIS[api]
    call = [ToolCall("add", {"a": 1, "b": SECRET}, id="c1")]
    with ReplayServer([*(streamed if is_streamed else whole)(api, call, SECRET)]) as server:
        with untraced(api, server.url) as client:
            traced = TRACED[api](client, telemetry=telemetry.options)
            with observe.run(AGENT, telemetry=telemetry.options) as run:
                for _ in range(2):
                    answer = asked.create(traced, [{"role": "user", "content": SECRET}], asked.tools, is_streamed)
                    for _ in answer if is_streamed else ():
                        pass
    assert run.content == SECRET
    assert SECRET not in emitted_text(telemetry)
    assert SECRET not in repr(run)


@both
def test_the_digest_of_the_instructions_does_not_depend_on_capture(api: str) -> None:
    digests = set()
    for telemetry in (Telemetry(), Telemetry("SPAN_ONLY")):
        with ReplayServer(whole(api, "a")) as server, untraced(api, server.url) as client:
            APIS[api].create(TRACED[api](client, telemetry=telemetry.options), APIS[api].begin(), (), False)
        digests.add((telemetry.one("invoke_agent").attributes or {})[names.INSTRUCTIONS_DIGEST])
    assert len(digests) == 1


@both
def test_what_fails_in_the_integration_is_counted_and_the_answer_returned(
    api: str, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    asked = APIS[api]
    from traced_tools.integrations import sdk_client

    for target in ("RequestObserver._begin", "RequestObserver._tool_set", "ObservedRequest._report", "ChatOptions"):
        with ReplayServer(whole(api, "a")) as server, untraced(api, server.url) as client:
            traced = TRACED[api](client, telemetry=telemetry.options)
            with monkeypatch.context() as patched:
                patched.setattr(f"{sdk_client.__name__}.{target}", fail)
                answer = asked.create(traced, asked.begin(), asked.tools, False)
        assert answer.model == "m", target
    assert sum(point.value for point in telemetry.metric("traced_tools.telemetry.failures")) >= 3
    assert SECRET not in caplog.text
