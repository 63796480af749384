"""What the runs of a scenario share, and one run on it."""

from __future__ import annotations

import asyncio
import math
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from traced_tools.client import ChatClient
from traced_tools.core.enums import StopReason
from traced_tools.core.messages import ToolCall, Usage
from traced_tools.demo.scenario.models import HTTP, LARGE, REASONING, ScenarioPrices, TimedChatModel
from traced_tools.loop.exchange import ChatClientResponse
from traced_tools.models.http.retries import RetryPolicy
from traced_tools.models.openai.chat import OpenAIChatModel
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.request_spec import ChatClientRequestSpec
from traced_tools.testing.reply import Reply
from traced_tools.testing.server import Received, ReplayServer

T = TypeVar("T")
Mode = Literal["call", "acall", "stream", "astream"]
MODES: Final[tuple[Mode, ...]] = ("call", "acall", "stream", "astream")
AGENTS: Final = ("travel_planner", "shopping_assistant", "support_desk")
VERSION: Final = "2.0"
"""The version of the agents, except for runs of a new one."""
_MODEL_SECONDS, _TOOL_SECONDS = 0.02, 0.01
"""The medians of the latencies, which are drawn from a log-normal distribution."""
_WATCHED: Final = 5
_RETRIES = RetryPolicy(retries=2, first_delay=0.01)


class Stage:
    """What the runs of a scenario share: telemetry, an event loop, a provider's server, and a folder.

    Args:
        telemetry: what the runs emit, and where to; without `prices`, the scenario's own price table applies.
        is_watched: whether scrapers read the metrics while runs are active. So that they see active runs and outages,
            latencies are then five times as long, and outages last seconds.

    Attributes:
        is_watched: as above.
    """

    def __init__(self, telemetry: TelemetryOptions, *, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        self.telemetry = telemetry if telemetry.prices is not None else replace(telemetry, prices=ScenarioPrices())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server = ReplayServer(self._reply)
        self._replies: dict[str, list[Reply]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        with ExitStack() as stack:
            stack.callback(self._stop_loop)
            stack.enter_context(self._server)
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="traced_tools-")))
            self.model = OpenAIChatModel(
                HTTP, base_url=self._server.url, api_key="none", provider="openai", retries=_RETRIES
            )
            stack.callback(self.model.close)
            stack.callback(lambda: self.perform(self.model.aclose()))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _stop_loop(self) -> None:
        self.perform(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def perform(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the stage's event loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def script(self, prompt: str, replies: Sequence[Reply]) -> None:
        """Have the server answer requests that end with `prompt` with these replies, in order."""
        self._replies[prompt] = list(replies)

    def _reply(self, request: Received) -> Reply:
        self._server.requests.clear()  # a load may run for hours
        return self._replies[request.json()["messages"][-1]["content"]].pop(0)


class ScenarioRun:
    """One run of a scenario: its mode, its random numbers, and the stage it runs on.

    Args:
        stage: what all runs share.
        key: identifies the run; it is also the prompt.
        random: the source of everything that is random in the run.
    """

    def __init__(self, stage: Stage, key: str, random: Random) -> None:
        self.stage = stage
        self.key = key
        self.random = random
        self.mode: Mode = random.choice(MODES)

    @property
    def is_async(self) -> bool:
        """Whether the run is on asyncio."""
        return self.mode in ("acall", "astream")

    @property
    def is_streamed(self) -> bool:
        """Whether the run is streamed."""
        return self.mode in ("stream", "astream")

    def seconds(self, median: float = _TOOL_SECONDS) -> float:
        """Return a latency in seconds, at most five times the median; `is_watched` makes the median longer."""
        median = median * _WATCHED if self.stage.is_watched else median
        return min(self.random.lognormvariate(math.log(median), 0.5), median * 5)

    def asks(self, tool: str, **arguments: Any) -> ToolCall:
        """Return a call of a tool that takes a random time."""
        return ToolCall(tool, {**arguments, "seconds": round(self.seconds(), 4)})

    def prompt(
        self,
        turns: Iterable[Any],
        *,
        agent: str = AGENTS[0],
        model: str = LARGE,
        seconds: float | None = None,
        **settings: Any,
    ) -> ChatClientRequestSpec:
        """Return a prompt to an agent with a scripted model.

        Args:
            turns: the turns of the model's script, as in `ScriptedChatModel`.
            agent: the agent's name.
            model: the model's name.
            seconds: the latency of the model; by default random.
            **settings: other arguments of `ChatClient`.
        """
        script = list(turns)
        usage = [self._usage(turn, model) for turn in range(len(script))]
        latency = self.seconds(_MODEL_SECONDS) if seconds is None else seconds
        scripted = TimedChatModel(script, usage=usage, model=model, seconds=latency)
        client_options = {"version": VERSION, "telemetry": self.stage.telemetry, **settings}
        return ChatClient(scripted, name=agent, **client_options).prompt(self.key)

    def _usage(self, turn: int, model: str) -> Usage:
        """Return the usage of a turn: the input grows with each turn, and the provider caches the turns before."""
        input_tokens, output_tokens = self.random.randint(300, 600) + 200 * turn, self.random.randint(20, 200)
        reasoning = self.random.randint(100, 900) if model == REASONING else 0
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens + reasoning,
            cache_read_tokens=200 * turn,
            cache_write_tokens=200,
            reasoning_tokens=reasoning or None,
        )

    def prompt_over_http(self, *replies: Reply) -> ChatClientRequestSpec:
        """Return a prompt to an agent whose provider answers with the replies, in order."""
        self.stage.script(self.key, replies)
        client = ChatClient(self.stage.model, name=AGENTS[2], version=VERSION, telemetry=self.stage.telemetry)
        return client.prompt(self.key)

    def said(self, text: str) -> Reply:
        """Return the provider's answer in this run's mode."""
        usage = {"prompt_tokens": self.random.randint(50, 90), "completion_tokens": self.random.randint(5, 20)}
        if not self.is_streamed:
            message = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}
            return Reply.json(message, delay=self.seconds())
        pieces: list[object] = [{"choices": [{"delta": {"content": word}}]} for word in text.split(" ")]
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
        return Reply.sse([*pieces, last, "[DONE]"], delay=self.seconds())

    def ends(self, spec: ChatClientRequestSpec, reason: StopReason) -> ChatClientResponse:
        """Run a prompt in this run's mode, and check why it stopped."""
        response = self._response(spec)
        if response.stop_reason != reason:
            raise AssertionError(f"{self.key} stopped because of {response.stop_reason}, not {reason}")
        return response

    def fails(self, spec: ChatClientRequestSpec, error: type[Exception]) -> None:
        """Run a prompt in this run's mode, and check that it raises `error`."""
        try:
            self._response(spec)
        except error:
            return
        raise AssertionError(f"{self.key} raised no {error.__name__}")

    def _response(self, spec: ChatClientRequestSpec) -> ChatClientResponse:
        if self.is_async:
            return self.stage.perform(_on_asyncio(spec, is_streamed=self.is_streamed))
        if not self.is_streamed:
            return spec.call()
        with spec.stream() as stream:
            for _ in stream:
                pass
        return stream.response


async def _on_asyncio(spec: ChatClientRequestSpec, *, is_streamed: bool) -> ChatClientResponse:
    if not is_streamed:
        return await spec.acall()
    async with spec.astream() as stream:
        async for _ in stream:
            pass
    return stream.response
