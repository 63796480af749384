"""The advisor that keeps conversations, and sends the model what it remembers of them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    Usage,
)
from traced_tools.core.part_check import PartCheck
from traced_tools.errors import AdvisorChainError
from traced_tools.flow.steps import perform
from traced_tools.loop.advisor import MEMORY_ORDER, AdviseNext, TranscriptAdvisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.memory.chat_memory import ChatMemory
from traced_tools.memory.run_log import OnFailure
from traced_tools.memory.session import MemorySession, session_of
from traced_tools.observe.failures import error_type
from traced_tools.run.context import RunContext
from traced_tools.tools.refusals import refuse_superseded

_LOG: Final = logging.getLogger(__name__)


class MemoryAdvisor(TranscriptAdvisor):
    """Keeps each conversation in the memory's repository, and sends the model the memory's view of it.

    It works for requests with a `conversation_id`. Others are passed on, and nothing of them is kept. The instructions
    (`system=`) belong to the client: they are sent with each request, and never kept.

    Outside the tool loop, it keeps the question and the final answer of each run. Inside the loop (`order` above 300),
    it keeps the whole transcript as it happens, with tool calls and results. It keeps what was streamed if a stream is
    abandoned. If a run ends between a call and its result, the model reads in the next run that the outcome of the call
    is unknown, or that the call was not run if that is certain.

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
        self._on_failure = on_failure

    def checks(self) -> Iterable[PartCheck]:
        """Return the check whether conversations can be read."""
        repository = self.memory.repository
        yield PartCheck(
            f"{self.name}: {type(repository).__name__}", partial(perform, repository.find_conversation, "check")
        )

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Send the view of the conversation, and append the new messages of the request and the answer."""
        if request.conversation_id is None and not request.iteration:
            return await call_next(request)
        instructions = [message for message in request.messages if isinstance(message, SystemMessage)]
        conversation = [message for message in request.messages if not isinstance(message, SystemMessage)]
        session = session_of(request.run.id, self)
        if session is None:
            session = await self._begin(request, conversation)
        else:
            await session.go_on(conversation, request.iteration)
        await session.fit()
        try:
            response = await call_next(request.replace(messages=(*instructions, *session.messages())))
        except BaseException:
            try:
                await session.finish_streamed()
            except Exception as problem:  # the error on its way is the one to raise
                _LOG.warning("%s cannot keep what was streamed: %s", self.name, error_type(problem))
            raise
        is_inside = request.iteration > 0
        if response.pending and not is_inside:  # the run that resumes this one keeps its answer
            await session.pause(response.pending)
            await session.flush()
            return response
        await session.append([_kept(response, is_inside=is_inside)], _get_usage(response, is_inside=is_inside))
        if not is_inside:  # inside the loop, `complete` does so
            await session.flush()
        return response

    async def _begin(self, request: ChatClientRequest, conversation: Sequence[Message]) -> MemorySession:
        """Return a session that has taken the conversation of the first request of a run."""
        session = MemorySession(self, self.memory, request.run, self._on_failure)
        self._check_alone(session)
        session.iteration = request.iteration
        await session.begin(conversation)
        if session.superseded:
            refuse_superseded(request.run, session.superseded, request.tools)
        return session

    def _check_alone(self, session: MemorySession) -> None:
        """Raise an error if another advisor of the chain keeps the conversation in the same repository."""
        other = session.enclosing
        while other is not None and other.run is session.run:
            if other.memory.repository is self.memory.repository:
                raise AdvisorChainError(
                    f"{other.owner!r} and {self!r} keep the conversation in the same repository: keep one of them"
                )
            other = other.enclosing

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Collect the streamed text, to append it if the stream is abandoned."""
        session = session_of(chunk.run.id, self)
        if session is not None and chunk.delta is not None:
            session.stream(chunk.text, chunk.iteration, restarts=chunk.delta.restarts)
        return chunk

    async def resume(self, run: RunContext) -> None:
        """Read the conversation of a run that resumes, and refuse the run if the conversation went on."""
        session = MemorySession(self, self.memory, run, self._on_failure)
        self._check_alone(session)
        messages: Sequence[Message] = ()
        if run.conversation_id is None and run.resumption is not None:  # only the state has what the run was sent
            messages = (*(run.first_request or ()), *run.resumption.paused.messages())
        await session.begin([message for message in messages if not isinstance(message, SystemMessage)])

    async def claim(self, run: RunContext) -> None:
        """Record that the calls which waited begin, if the log decides which run resumes."""
        if (session := session_of(run.id, self)) is not None:
            await session.claim()

    async def complete(self, run: RunContext, messages: Sequence[Message], *, failing: bool) -> None:
        """Keep what the model was not sent anymore, such as the results of the last tools."""
        if (session := session_of(run.id, self)) is not None:
            conversation = [message for message in messages if not isinstance(message, SystemMessage)]
            await session.finish(conversation, failing=failing)

    def __repr__(self) -> str:
        return f"<MemoryAdvisor {self.name!r}: order {self.order}, on_failure {self._on_failure!r}>"


def _kept(response: ChatClientResponse, *, is_inside: bool) -> AssistantMessage:
    """Return the answer as it is kept.

    Outside the loop, the calls of an answer at which a limit ended the run are not kept: the loop has answered them.
    """
    message = response.message
    if message.tool_calls and not is_inside and response.stop_reason != "answered":
        return message.replace(parts=[part for part in message.parts if not isinstance(part, ToolCall)])
    return message


def _get_usage(response: ChatClientResponse, *, is_inside: bool) -> Usage | None:
    """Return the usage of the model call that gave the stored answer; None if other calls were part of it."""
    answer = response.chat_response
    return None if answer is None or (response.iteration > 1 and not is_inside) else answer.usage
