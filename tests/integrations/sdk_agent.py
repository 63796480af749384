"""The small agent on the APIs of OpenAI and Anthropic: the answers of the server, and an application's loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tests import modes
from tests.integrations.small_agent import AGENT, INSTRUCTIONS, LIMITS, MESSAGES, QUESTION, TOOLS, TURNS, USAGE, Run
from tests.waiting import patiently
from traced_tools import ChatClient, ChatOptions, ToolCall, ToolResult, observe
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.core import ProviderPart
from traced_tools.models import ChatResponse
from traced_tools.models.http.model import HttpChatModel
from traced_tools.observe import ManualRun
from traced_tools.testing import ReplayServer, Reply
from traced_tools.tools import tool_callbacks

Json = dict[str, Any]
NAME: Final = "m"
"""The name of the model."""
DEFINITIONS: Final = [tool.definition for tool in tool_callbacks(*TOOLS)]


@dataclass(frozen=True)
class Asked:
    """What an API answers, and how an application asks it.

    Args:
        provider: the provider.
        own: makes our own model, at an address.
        blocking: makes the traced client of the SDK, at an address.
        asyncio: makes the traced client for asyncio.
        create: sends a request with a client: its arguments are the client, the messages, the tools, and whether the
            answer is streamed.
        whole: returns the body of an answer, from its number and its turn.
        events: returns the events of an answer.
        tools: the tools as the API declares them.
        begin: returns the messages that ask the question.
        go_on: returns the messages that follow an answer with calls: the answer and the results.
        options: options of each request.
    """

    provider: str
    own: Callable[[str], HttpChatModel]
    blocking: Callable[[str], Any]
    asyncio: Callable[[str], Any]
    create: Callable[..., Any]
    whole: Callable[[int, Any], Json]
    events: Callable[[int, Any], Iterable[Any]]
    tools: Sequence[Json]
    begin: Callable[[], list[Any]]
    go_on: Callable[[Sequence[ToolCall], Sequence[ToolResult]], list[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def replies(self, *, streamed: bool) -> list[Reply]:
        """Return what the server answers to the small agent."""
        if not streamed:
            return [Reply.json(self.whole(number, turn)) for number, turn in enumerate(TURNS)]
        return [Reply.sse([*self.events(number, turn)]) for number, turn in enumerate(TURNS)]


def calls_of(turn: Any) -> Sequence[ToolCall]:
    """Return the calls of a turn."""
    return () if isinstance(turn, str) else turn


def text_of(turn: Any) -> str:
    """Return the text of a turn."""
    return turn if isinstance(turn, str) else ""


def named_events(events: Iterable[Json]) -> Iterable[bytes]:
    """Return events with a name, as the SDK of Anthropic needs them."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def ask_ours(asked: Asked, url: str, mode: str) -> Run:
    """Run the agent in our loop."""
    run = Run()
    with asked.own(url) as model:
        client = ChatClient(
            model,
            name=AGENT,
            system=INSTRUCTIONS,
            tools=TOOLS,
            advisors=[run.policy, AuditAdvisor(run.trail), run.watching],  # type: ignore[arg-type]  # it stands for one
            limits=LIMITS,
            options=ChatOptions(**asked.options),
            telemetry=run.telemetry.options,
        )
        modes.run(mode, client.prompt(QUESTION), model)
    return run


def ask_sdk(asked: Asked, url: str, mode: str, *, blocks: bool = True) -> Run:
    """Run the agent in an application's loop with the SDK; `blocks` says whether it has blocks for iterations."""
    run = Run()
    manual = observe.run(
        AGENT,
        model=NAME,
        provider=asked.provider,
        messages=MESSAGES,
        audit=run.trail,  # type: ignore[arg-type]  # it stands for a trail
        observers=[run.watching],
        advisors=[run.policy],
        limits=LIMITS,
        telemetry=run.telemetry.options,
    )
    with manual:
        if mode in modes.BLOCKING_MODES:
            _loop(asked, asked.blocking(url), manual, streamed=mode == "stream", blocks=blocks)
        else:
            loop = _aloop(asked, asked.asyncio(url), manual, streamed=mode == "astream", blocks=blocks)
            asyncio.run(patiently(loop))
    return run


def _loop(asked: Asked, client: Any, run: ManualRun, *, streamed: bool, blocks: bool) -> None:
    messages = asked.begin()
    with client:
        while True:
            with run.iteration() if blocks else nullcontext() as iteration:
                tools = () if iteration is not None and iteration.limit else asked.tools
                answer = asked.create(client, messages, tools, streamed)
                for _ in answer if streamed else ():
                    pass
                assert run.response is not None
                calls = run.response.tool_calls
                if not calls:
                    return
                messages += asked.go_on(calls, [run.execute(TOOLS, call) for call in calls])


async def _aloop(asked: Asked, client: Any, run: ManualRun, *, streamed: bool, blocks: bool) -> None:
    messages = asked.begin()
    async with client:
        while True:
            with run.iteration() if blocks else nullcontext() as iteration:
                tools = () if iteration is not None and iteration.limit else asked.tools
                answer = await asked.create(client, messages, tools, streamed)
                if streamed:
                    async for _ in answer:
                        pass
                assert run.response is not None
                calls = run.response.tool_calls
                if not calls:
                    return
                messages += asked.go_on(calls, [await run.aexecute(TOOLS, call) for call in calls])


def with_sorted_json(response: ChatResponse) -> ChatResponse:
    """Return a response whose opaque parts have their fields in one order: the SDKs have another one than the wire."""
    parts = [
        part.replace(data=json.dumps(json.loads(part.data), sort_keys=True)) if isinstance(part, ProviderPart) else part
        for part in response.message.parts
    ]
    return response.replace(message=response.message.replace(parts=parts))


def serving(asked: Asked, mode: str, times: int = 2) -> ReplayServer:
    """Return a server that answers the agent some times."""
    return ReplayServer(asked.replies(streamed=mode in modes.STREAMING_MODES) * times)


COUNTS: Final = {"input": USAGE.input_tokens, "output": USAGE.output_tokens}
