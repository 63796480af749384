"""What the integrations of the SDKs of OpenAI and Anthropic share: a client that observes its requests to models.

Both SDKs send every request through the method `request` of their client, and read streams with a class of their own.
A traced client is a copy of the application's client, of a subclass with another `request`. What fails here is counted
and logged, and never reaches the application. The exception is a limit of the run, which is for the application to see.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, cast
from weakref import finalize

from traced_tools.core.messages import Message, SystemMessage
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition
from traced_tools.errors import LoopLimitExceeded, ModelError
from traced_tools.flow.deferred import in_finalizer
from traced_tools.flow.flow import call
from traced_tools.integrations.joining import lasting
from traced_tools.integrations.sdk_messages import plain
from traced_tools.models.folding import ChunkFold
from traced_tools.models.parsing import repair_surrogates
from traced_tools.observe.manual.run import ManualRun, RunSettings, current_manual_run, run
from traced_tools.observe.run_telemetry import current_telemetry
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from traced_tools.models.base import ChatResponse
    from traced_tools.models.codec import ChunkDecoder
    from traced_tools.observe.manual.model_call import ManualModelCall

C = TypeVar("C")
Json = Mapping[str, Any]
_KEY: Final = "traced_tools"
"""The extension of an HTTP response that holds the observation of its request."""
_WHAT: Final = "the integration of an SDK"
_MOST_TOOL_SETS: Final = 32
_TRACED: Final = "__traced_tools__"
"""The attribute of the classes of traced clients."""
_JSON: Final = (str, int, float, Mapping, list, tuple)


class AnswerCodec(Protocol):
    """The part of a `Codec` that reads answers."""

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed."""

    def decoder(self) -> ChunkDecoder:
        """Return a decoder for one streamed answer."""


class SdkApi(Protocol):
    """An API of an SDK: how its requests and answers become messages of this package."""

    @property
    def codec(self) -> AnswerCodec:
        """Reads its answers."""

    @property
    def last_event(self) -> str:
        """The event that ends its streams, and that the SDK does not show; empty for none."""

    def options(self, request: Json) -> Mapping[str, Any]:
        """Return the options of a request, under the names that `ChatOptions` has for them."""

    def tools(self, request: Json) -> Iterator[ToolDefinition]:
        """Yield the tools that a request declares."""

    def results(self, request: Json) -> Iterator[tuple[str, str]]:
        """Yield the results of tool calls in a request: the id of each call, and the text."""

    def instructions(self, request: Json) -> str:
        """Return the instructions of a request; empty for none."""

    def messages(self, request: Json) -> list[Message]:
        """Return the conversation that a request sends."""


class ObservedRequest:
    """The model call of a request, and the run of the request if it belongs to no other.

    Args:
        of_run: the run.
        model_call: the model call.
        api: reads the answer.
        provider: the provider that answers.
        is_own_run: whether the run ends with the request.
    """

    def __init__(
        self, of_run: ManualRun, model_call: ManualModelCall, api: SdkApi, provider: str, *, is_own_run: bool
    ) -> None:
        self._run = of_run
        self._call = model_call
        self._api = api
        self._provider = provider
        self._is_own_run = is_own_run
        self._lock = threading.RLock()  # a finalizer in this thread may end the request
        self._has_ended = self._is_read = self._is_reading = False
        self._decoder: ChunkDecoder | None = None
        self._fold = ChunkFold(provider)

    def begin(self) -> Self:
        """Begin the model call, which ends with its iteration or its run if nothing else ends it."""
        self._call.begin(on_left=self.closed)
        return self

    @property
    def _is_over(self) -> bool:
        return self._has_ended or not self._call.is_open

    def place(self) -> AbstractContextManager[object]:
        """Return a `with` block for the request, whose spans are children of the model call."""
        return self._call.place()

    def lost(self, error: Exception) -> None:
        """End the call, whose answer can't be observed because of an error here."""
        self._run.telemetry_failed(error, _WHAT)
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """Record that the request has failed."""
        self._end(error)

    def answered(self, body: bytes | None) -> None:
        """Record the whole answer; None if the application reads it later, where it can't be observed."""
        if body is not None:
            try:
                self._report(self._api.codec.decode(repair_surrogates(body)))
            except ModelError as error:
                self._end(error)
            except Exception as error:
                self._run.telemetry_failed(error, _WHAT)
        self._end(None)

    def _report(self, response: ChatResponse) -> None:
        self._call.answered(response.attributed_to(self._provider).without_cut_off_call())

    def requests_stream(self) -> None:
        """Record that the answer is requested in chunks."""
        self._decoder = self._api.codec.decoder()
        self._guard(self._call.streaming)

    def streams(self, response: Any) -> None:
        """Observe the stream of an HTTP response, which the SDK's object for the stream has as well."""
        response.__class__ = _observed_response(type(response))  # type: ignore[arg-type]  # classes are hashable
        response.extensions[_KEY] = self
        finalize(response, self._dropped).atexit = False

    def arrived(self, event: Any) -> None:
        """Record an event of the stream."""
        self._is_reading = False
        if self._decoder is None or self._is_over:
            return
        try:
            data = event.model_dump_json(by_alias=True, exclude_unset=True, warnings=False)
            self._read(self._decoder, data)
        except ModelError as error:
            self._end(error)
        except Exception as error:
            self._decoder = None  # it can't read what follows
            self._run.telemetry_failed(error, _WHAT)

    def _read(self, decoder: ChunkDecoder, data: str) -> None:
        for chunk in decoder.chunks(data):
            self.delivered()
            self._fold.add(chunk)
            self._is_read = True
            self._guard(self._call.arrived, partial(self._fold.with_call_identity, chunk))

    def delivered(self) -> None:
        """Record that the reader of the stream is done with the last event."""
        if self._is_read and not self._is_over:
            self._is_read = False
            self._guard(self._call.delivered)

    def reads(self) -> None:
        """Record that the reader of the stream asks for the next event."""
        self.delivered()
        self._is_reading = True

    def exhausted(self) -> None:
        """Record that the stream has ended: the application has what it contained, even if that is not all."""
        if self._decoder is not None and not self._is_over:
            self._guard(self._finish, self._decoder)
        self._end(None)

    def _finish(self, decoder: ChunkDecoder) -> None:
        if self._api.last_event:
            self._read(decoder, self._api.last_event)
        self._report(self._fold.response())

    def response_closed(self) -> None:
        """Record that the application, or a helper of the SDK, has closed the response."""
        if not self._is_reading:  # otherwise, the reader learns how the stream ends
            self.closed()

    def closed(self) -> None:
        """Record that the application has left the stream, perhaps after the last event that it needs."""
        if self._has_ended:
            return
        self.delivered()
        if self._has_whole_answer():
            self.exhausted()
        else:
            self._end(GeneratorExit())

    def _has_whole_answer(self) -> bool:
        if self._decoder is None:
            return False
        try:
            self._decoder.end()
        except ModelError:
            return False
        return True

    def _dropped(self) -> None:
        """End the call of a stream that the application has neither read to its end nor closed."""
        with in_finalizer():
            self.closed()

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._guard(self._call.end, error)
        if self._is_own_run:
            self._guard(self._run.end, error)

    def _guard(self, report: Callable[..., object], *args: object) -> None:
        try:
            report(*args)
        except Exception as error:
            self._run.telemetry_failed(error, _WHAT)


class RequestObserver:
    """Observes the requests of a client.

    Args:
        agent: the name of runs that consist of one request.
        provider: the provider that answers.
        apis: the observed APIs by their path.
        tools: the tools that requests declare, for what may be captured of their calls.
        settings: the settings of runs that consist of one request.
    """

    def __init__(
        self, agent: str, provider: str, apis: Mapping[str, SdkApi], tools: object, settings: RunSettings
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._apis = apis
        self._tools = {tool.definition.name: tool for tool in call(ToolSelection(tools).tool_set())}
        self._settings = lasting(settings, agent)
        self._tool_sets: dict[str, ToolSet] = {}

    def _new_run(self, model: str, messages: Iterable[Message] = ()) -> ManualRun:
        return run(self._agent, model=model, provider=self._provider, messages=messages, **self._settings)

    def begin(self, options: Any, base_url: Any, *, stream: bool) -> ObservedRequest | None:
        """Return the observation of a request, which begins; None if the request is not for a model.

        Args:
            options: the request, as the SDK describes it.
            base_url: the address of the server.
            stream: whether the answer is requested as a stream.

        Raises:
            LoopLimitExceeded: if the run has reached a limit, and no iteration is left to conclude it.
        """
        try:
            api = self._apis.get(options.url.partition("?")[0]) if options.method == "post" else None
            if api is None:
                return None
            request = {**(options.json_data or {}), **(options.extra_json or {})}
            if request.get("background"):  # it is answered later, to another request
                return None
            observed = self._begin(api, request, base_url)
            if stream:
                observed.requests_stream()
            return observed
        except LoopLimitExceeded:
            raise
        except Exception as error:
            current_telemetry(self._settings.get("telemetry")).telemetry_failed(error, _WHAT)
            return None

    def _begin(self, api: SdkApi, request: Json, base_url: Any) -> ObservedRequest:
        of_run = current_manual_run()
        is_own_run = of_run is None or of_run.is_in_tool
        model = request.get("model") if isinstance(request.get("model"), str) else None
        if of_run is None or is_own_run:
            of_run = self._new_run(model or "")
            if of_run.may_capture:
                of_run = self._new_run(model or "", self._messages(of_run, api, request))
            of_run.begin()
        try:
            if not of_run.is_in_iteration and not of_run.is_calling_model:
                self._answer_calls(of_run, api, request)
                of_run.advance()
            tools = self._tool_set(of_run, api, request)
            model_call = of_run.model_call(
                model,
                self._provider,
                messages=self._messages(of_run, api, request),
                tools=tools,
                options=self._options(of_run, api, request),
                server_address=base_url.host,
                server_port=base_url.port or (80 if base_url.scheme == "http" else 443),
            )
            return ObservedRequest(of_run, model_call, api, self._provider, is_own_run=is_own_run).begin()
        except BaseException as error:
            if is_own_run:
                of_run.end(error)
            raise

    def _answer_calls(self, of_run: ManualRun, api: SdkApi, request: Json) -> None:
        """Record the calls of the last answer whose results the request has, and which the application answered."""
        open_calls = {open_call.id: open_call for open_call in of_run.open_calls}
        if not open_calls:
            return
        try:
            for call_id, content in api.results(request):
                if (answered_call := open_calls.pop(call_id, None)) is not None:
                    of_run.answer(answered_call, content)
        except Exception as error:
            of_run.telemetry_failed(error, _WHAT)

    def _messages(self, of_run: ManualRun, api: SdkApi, request: Json) -> list[Message]:
        """Return the conversation if it may be captured, else the instructions, of which only a digest is recorded."""
        try:
            if of_run.may_capture:
                return api.messages(request)
            instructions = api.instructions(request)
            return [SystemMessage(instructions)] if instructions else []
        except Exception as error:
            of_run.telemetry_failed(error, _WHAT)
            return []

    def _options(self, of_run: ManualRun, api: SdkApi, request: Json) -> ChatOptions:
        try:
            # the SDKs have values of their own for arguments that are not passed
            values = api.options(request).items()
            options: dict[str, Any] = {name: value for name, value in values if isinstance(value, _JSON)}
            return ChatOptions(**options) if options else NO_OPTIONS
        except Exception as error:
            of_run.telemetry_failed(error, _WHAT)
            return NO_OPTIONS

    def _tool_set(self, of_run: ManualRun, api: SdkApi, request: Json) -> ToolSet:
        """Return the tools of a request, which are those of the request before it in most cases."""
        if not request.get("tools"):
            return NO_TOOLS
        try:
            key = json.dumps(plain(request["tools"]), default=repr)
            tool_set = self._tool_sets.get(key)
            if tool_set is None:
                if len(self._tool_sets) >= _MOST_TOOL_SETS:
                    self._tool_sets.clear()
                by_name = {definition.name: self._tool(definition) for definition in api.tools(request)}
                self._tool_sets[key] = tool_set = ToolSet(by_name.values())
            return tool_set
        except Exception as error:
            of_run.telemetry_failed(error, _WHAT)
            return NO_TOOLS

    def _tool(self, definition: ToolDefinition) -> ToolCallback:
        return self._tools.get(definition.name) or FunctionToolCallback(_run_by_the_application, definition=definition)


def _run_by_the_application(**_: object) -> None:
    raise RuntimeError("the application runs this tool")


def body_of(answer: Any) -> bytes | None:
    """Return the JSON of an SDK's answer, whole or raw; None if it can't be read here."""
    response = getattr(answer, "http_response", answer)
    if hasattr(response, "is_closed"):
        return _content_of(response)
    if not hasattr(answer, "model_dump_json") or isinstance(answer, type):
        return None
    return bytes(answer.model_dump_json(by_alias=True, exclude_unset=True, warnings=False), "utf-8", "surrogatepass")


def wrong_answer(answer: object, accepted: str) -> TypeError:
    """Return the error for what is no answer, such as a message of one, or a stream."""
    way_out = "pass the whole answer, or read run.response.tool_calls"
    return TypeError(f"answer must be {accepted}, not {type(answer).__name__}: {way_out}")


def _content_of(response: Any) -> bytes | None:
    """Return the body of an HTTP response; None if it is a stream, which only one reader may read."""
    try:
        content: bytes = response.content
    except RuntimeError:  # nobody has read it
        return None
    return content


class ObservedStream(Generic[C]):
    """Mixed into a blocking stream of an SDK."""

    response: Any

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        request: ObservedRequest | None = self.response.extensions.get(_KEY)
        if request is None:
            return cast("C", super().__next__())  # type: ignore[misc]
        request.reads()
        try:
            event: C = super().__next__()  # type: ignore[misc]
        except StopIteration:
            request.exhausted()
            raise
        except BaseException as error:
            request.failed(error)
            raise
        request.arrived(event)
        return event


class ObservedAsyncStream(Generic[C]):
    """Mixed into an async stream of an SDK."""

    response: Any

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        request: ObservedRequest | None = self.response.extensions.get(_KEY)
        if request is None:
            return cast("C", await super().__anext__())  # type: ignore[misc]
        request.reads()
        try:
            event: C = await super().__anext__()  # type: ignore[misc]
        except StopAsyncIteration:
            request.exhausted()
            raise
        except BaseException as error:
            request.failed(error)
            raise
        request.arrived(event)
        return event


@cache
def _observed_response(response_class: Any) -> type:
    """Return the class of HTTP responses whose end is observed: the helpers of the SDKs close only the response."""

    class ObservedResponse(response_class):  # type: ignore[misc]  # a class that is not known before
        def close(self) -> None:
            try:
                super().close()
            finally:
                self._closed()

        async def aclose(self) -> None:
            try:
                await super().aclose()
            finally:
                self._closed()

        def _closed(self) -> None:
            request: ObservedRequest | None = self.extensions.get(_KEY)
            if request is not None:
                request.response_closed()

    return _named_as(response_class, ObservedResponse)


_STREAMS: Final = (ObservedStream, ObservedAsyncStream)


@dataclass(frozen=True)
class ClientTracing:
    """How the clients of an SDK are traced.

    Args:
        observer: observes the requests.
        streams: the observed class for each class of streams.
    """

    observer: RequestObserver
    streams: Mapping[Any, Any]

    def begin(self, client: Any, options: Any, *, stream: bool) -> ObservedRequest | None:
        """Return the observation of a request, which begins; None if the request is not for a model."""
        return self.observer.begin(options, client.base_url, stream=stream)

    def observed_class(self, stream_class: Any) -> Any:
        """Return the observed class of a stream such as `Stream[Chunk]`; None if it is not a class of the SDK."""
        observed = self.streams.get(getattr(stream_class, "__origin__", None))
        return None if observed is None else observed[stream_class.__args__]


def _received(request: ObservedRequest, result: Any, observed_class: Any) -> Any:
    """Observe the answer that the SDK returns, and return it."""
    try:
        if observed_class is None:
            request.answered(body_of(result))
        else:
            request.streams(result.response if isinstance(result, _STREAMS) else result.http_response)
    except Exception as error:
        request.lost(error)
    return result


def trace_client(client: C, tracing: ClientTracing, *, is_async: bool) -> C:
    """Return a copy of an SDK's client whose requests are observed."""
    sdk_class = type(client)
    if hasattr(sdk_class, _TRACED):
        raise TypeError("client must not be traced already: pass the client of the SDK")
    copied = client.copy()  # type: ignore[attr-defined]  # it is a client
    copied.__class__ = _async_class(sdk_class, tracing) if is_async else _blocking_class(sdk_class, tracing)
    traced: C = copied
    return traced


def _blocking_class(sdk_class: Any, tracing: ClientTracing) -> type:
    class BlockingClient(sdk_class):  # type: ignore[misc]  # a class that is not known before
        def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            request = tracing.begin(self, options, stream=stream)
            if request is None:
                return super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
            observed_class = tracing.observed_class(stream_cls) if stream else None
            try:
                with request.place():
                    result = super().request(cast_to, options, stream=stream, stream_cls=observed_class or stream_cls)
            except BaseException as error:
                request.failed(error)
                raise
            return _received(request, result, observed_class)

    return _finished_class(BlockingClient, sdk_class)


def _async_class(sdk_class: Any, tracing: ClientTracing) -> type:
    class AsyncioClient(sdk_class):  # type: ignore[misc]  # a class that is not known before
        async def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            request = tracing.begin(self, options, stream=stream)
            if request is None:
                return await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
            observed_class = tracing.observed_class(stream_cls) if stream else None
            try:
                with request.place():
                    result = await super().request(
                        cast_to, options, stream=stream, stream_cls=observed_class or stream_cls
                    )
            except BaseException as error:
                request.failed(error)
                raise
            return _received(request, result, observed_class)

    return _finished_class(AsyncioClient, sdk_class)


def _finished_class(traced_class: Any, sdk_class: type) -> type:
    """Return the class with the name of the SDK's class, whose copies are traced as well."""

    def copied(self: Any, **options: Any) -> Any:
        untraced = copy.copy(self)
        untraced.__class__ = sdk_class  # the SDKs copy all credentials only of clients of their own classes
        other = untraced.copy(**options)
        other.__class__ = traced_class
        return other

    traced_class.copy = traced_class.with_options = copied
    setattr(traced_class, _TRACED, True)
    return _named_as(sdk_class, traced_class)


def _named_as(original: type, subclass: type) -> type:
    subclass.__name__, subclass.__qualname__ = original.__name__, original.__qualname__
    subclass.__module__ = original.__module__
    return subclass
