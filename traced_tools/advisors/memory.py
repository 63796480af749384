"""The advisor that keeps conversations, and sends the model what it remembers of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

from traced_tools.advisors.base import MEMORY_ORDER, AdviseNext, TranscriptAdvisor
from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import (
    AssistantMessage,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    Usage,
)
from traced_tools.memory.chat_memory import ChatMemory
from traced_tools.memory.session import MemorySession, OnFailure
from traced_tools.run.context import RunContext


class MemoryAdvisor(TranscriptAdvisor):
    """Keeps each conversation in the memory's repository, and sends the model the memory's view of it.

    It works for requests with a `conversation_id`. Others are passed on, and nothing of them is kept. The instructions
    (`system=`) belong to the client: they are sent with each request, and never kept.

    Outside the tool loop, it keeps the question and the final answer of each run. Inside the loop (`order` above 300),
    it keeps the whole transcript as it happens, with tool calls and results. It keeps what was streamed if a stream is
    abandoned. If a run ends between a call and its result, the model is told in the next run that the call was not run,
    or that its outcome is unknown.

    Args:
        memory: decides what the model is sent, such as `MessageWindowChatMemory(repository)`.
        order: the position in the chain.
        on_failure: what happens if the store is down. `raise` fails the run before the model is called; `warn` goes on
            without the store, logs it, and counts it.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.

    In a run, it raises `ConversationDenied` for another principal's conversation, `UnreadableConversation` if an entry
    cannot be read, and `ChatMemoryUnavailable` if the store is down.
    """

    def __init__(
        self,
        memory: ChatMemory,
        *,
        order: int = MEMORY_ORDER,
        on_failure: OnFailure = "raise",
        name: str = "memory",
    ) -> None:
        expect("memory", memory, ChatMemory, "a ChatMemory, such as MessageWindowChatMemory(repository)")
        expect_whole("order", order, -sys.maxsize)
        if on_failure not in ("raise", "warn"):
            raise ValueError("on_failure must be 'raise' or 'warn'")
        expect("name", name, str, "a str")
        self.memory: Final = memory
        self.order = order
        self.name = name
        self.on_failure = on_failure

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Send the view of the conversation, and keep what is new in the request and in the answer."""
        if request.conversation_id is None:
            return await call_next(request)
        instructions = [each for each in request.messages if isinstance(each, SystemMessage)]
        conversation = [each for each in request.messages if not isinstance(each, SystemMessage)]
        kept = self._kept_of(request.run)
        if kept is None:
            kept = _Kept(self, request.run)
            kept.session.iteration = request.iteration
            await kept.session.begin(conversation)
        else:
            kept.session.iteration = request.iteration
            await kept.session.go_on(conversation)
        await kept.session.fit()
        kept.pieces = []
        try:
            response = await call_next(request.replace(messages=(*instructions, *kept.session.messages())))
        except BaseException:
            await kept.session.finish_streamed("".join(kept.pieces))
            raise
        message = _message_to_keep(response, is_inside=request.iteration > 0)
        if message is not None:
            await kept.session.append([message], _usage_of(response, is_inside=request.iteration > 0))
        return response

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Collect what is streamed, to keep it if the stream is abandoned."""
        kept = self._kept_of(chunk.run)
        if kept is not None and chunk.delta is not None:
            if chunk.delta.restarts or chunk.iteration != kept.iteration:
                kept.pieces, kept.iteration = [], chunk.iteration
            kept.pieces.append(chunk.text)
        return chunk

    async def complete(self, run: RunContext, messages: Sequence[Message], *, failing: bool) -> None:
        """Keep what the model was not sent anymore, such as the results of the last tools."""
        kept = self._kept_of(run)
        if kept is not None:
            await kept.session.finish(
                [each for each in messages if not isinstance(each, SystemMessage)], failing=failing
            )

    def _kept_of(self, run: RunContext) -> _Kept | None:
        """Return what this advisor keeps of `run`; None if it has not begun to."""
        kept = _CURRENT.get()
        while kept is not None and not (kept.advisor is self and kept.session.run is run):
            kept = kept.enclosing
        return kept

    def __repr__(self) -> str:
        return f"<MemoryAdvisor {self.name!r}: order {self.order}, on_failure {self.on_failure!r}>"


class _Kept:
    """What a memory advisor keeps of an active run. It is current in the context of the run.

    Attributes:
        pieces: what was streamed of the last answer.
        iteration: the iteration that the pieces belong to.
        enclosing: what was current before.
    """

    __slots__ = ("advisor", "enclosing", "iteration", "pieces", "session")

    def __init__(self, advisor: MemoryAdvisor, run: RunContext) -> None:
        self.advisor = advisor
        self.enclosing = _CURRENT.get()
        self.iteration = 0
        self.pieces: list[str] = []
        self.session = MemorySession(advisor.memory, run, self._outer(run), advisor.on_failure)
        _CURRENT.set(self)

    def _outer(self, run: RunContext) -> MemorySession | None:
        """Return the session of the run that asks this one in the same conversation, if there is one."""
        kept = self.enclosing
        while kept is not None:
            session = kept.session
            if session.run is not run and session.run.conversation_id == run.conversation_id:
                return session
            kept = kept.enclosing
        return None


_CURRENT: ContextVar[_Kept | None] = ContextVar("traced_tools_memory", default=None)


def _message_to_keep(response: ChatClientResponse, *, is_inside: bool) -> AssistantMessage | None:
    """Return the answer as it is kept; None if it says nothing, because providers refuse such a message.

    Outside the loop, the calls of an answer at which a limit ended the run are not kept: the loop has answered them.
    """
    message = response.message
    if message.tool_calls and not is_inside and response.stop_reason != "answered":
        message = message.replace(parts=[part for part in message.parts if not isinstance(part, ToolCall)])
    says_something = any(
        part.text.strip() if isinstance(part, TextPart) else not isinstance(part, ReasoningPart)
        for part in message.parts
    )
    return message if says_something else None


def _usage_of(response: ChatClientResponse, *, is_inside: bool) -> Usage | None:
    """Return the usage of the model call that answered what is kept; None if other calls were part of it."""
    answer = response.chat_response
    return None if answer is None or (response.iteration > 1 and not is_inside) else answer.usage
