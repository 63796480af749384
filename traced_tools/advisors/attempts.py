"""The attempts of an advisor that asks the model again until the answer is good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from traced_tools.core.messages import AssistantMessage, Message, Usage, UsageSum, UserMessage, Value
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.loop.state import AnyText, Messages
from traced_tools.models.base import ChatResponse


class KeptAnswer(ChatResponse):
    """An answer of an attempt before a pause.

    Attributes:
        iteration: the iteration of the loop that produced it.
    """

    id: AnyText | None = None
    model: AnyText | None = None
    provider_reason: AnyText | None = None
    iteration: int

    @classmethod
    def of(cls, response: ChatClientResponse) -> Self:
        """Return what is kept of the response to an attempt."""
        answer = response.chat_response or ChatResponse(response.message)
        return cls(iteration=response.iteration, **{name: getattr(answer, name) for name in ChatResponse.model_fields})

    def response(self, attempts: Attempts) -> ChatClientResponse:
        """Return the response to the attempt, with the fields that a state keeps, in the run that goes on."""
        answer = ChatResponse(**{name: getattr(self, name) for name in ChatResponse.model_fields})
        return ChatClientResponse(
            attempts.request.run,
            answer,
            attempts.conversation_with(answer.message),
            context=attempts.request.context,
            iteration=self.iteration,
            offered=attempts.request.tools,
        )


class KeptAttempts(Value):
    """What is kept of the attempts when a run pauses during one of them.

    Attributes:
        exchanges: the tool calls of the attempts before, and their results.
        correction: what the attempt is about.
        usage: the tokens of all attempts so far.
    """

    exchanges: Messages = ()
    correction: Messages = ()
    usage: Usage | None = None


class Attempts:
    """What the model is sent for each attempt, and what the attempts add up to.

    The model sees the last answer and what is wrong with it, and no earlier ones. It sees the tool calls of all
    attempts. The responses contain neither the corrections nor the earlier answers.

    Args:
        request: the request that the advisor received.
        asking: the request to send, with what the advisor has added.
        earlier: the attempts of the run that this one resumes; None if the first attempt begins.

    Attributes:
        request: as above.
        exchanges: the tool calls of all attempts and their results.
    """

    def __init__(
        self, request: ChatClientRequest, asking: ChatClientRequest, earlier: KeptAttempts | None = None
    ) -> None:
        earlier = earlier or KeptAttempts()
        self.request = request
        self._asking = self._sent = asking
        self.exchanges: Sequence[Message] = earlier.exchanges
        self._correction: Sequence[Message] = earlier.correction
        self._usage = UsageSum()
        self._usage.add(earlier.usage)
        self._before: Sequence[Message] = ()

    def next_request(self) -> ChatClientRequest:
        """Return the request of the next attempt."""
        if self._correction:
            self._sent = self._asking.replace(messages=(*self._asking.messages, *self.exchanges, *self._correction))
            self.request.run.first_request = None  # if the attempt pauses, this advisor sends this request again
        return self._sent

    def add(self, response: ChatClientResponse) -> ChatClientResponse:
        """Record the response to the request of the attempt; return it with the usage of all attempts."""
        self._usage.add(response.usage)
        self._before = self.exchanges
        response = response.replace(usage=self._usage.total)
        request_messages = self._sent.messages
        if response.messages[: len(request_messages)] != request_messages:  # an advisor replaced them
            return response
        exchanges = (*self.exchanges, *response.messages[len(request_messages) :])
        self.exchanges = exchanges[:-1] if exchanges and isinstance(exchanges[-1], AssistantMessage) else exchanges
        return response.replace(messages=(*self.request.messages, *exchanges))

    def kept(self) -> KeptAttempts:
        """Return what to keep of the attempts if the response that was added last waits."""
        return KeptAttempts(exchanges=tuple(self._before), correction=tuple(self._correction), usage=self._usage.total)

    def conversation_with(self, answer: Message) -> tuple[Message, ...]:
        """Return the conversation of all attempts, with the answer of one of them."""
        return (*self.request.messages, *self.exchanges, answer)

    def correct(self, response: ChatClientResponse, ask: str) -> None:
        """Set what the next attempt is about: the answer of `response`, and the text that asks for another one."""
        answer = (response.message,) if response.content.strip() else ()  # providers refuse an empty message
        self._correction = (*answer, UserMessage(ask))


class RestartMark:
    """Marks the first chunk of each further attempt, so that the reader of a stream forgets the attempt before it."""

    _is_shown = _restarts = False

    def restart(self) -> None:
        """Mark the next chunk, unless no text has been shown."""
        self._restarts = self._is_shown

    def on(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Return the chunk, marked if it begins a further attempt."""
        if chunk.text:
            self._is_shown = True
        if not self._restarts or chunk.delta is None:
            return chunk
        self._restarts = False
        return chunk.replace(delta=replace(chunk.delta, restarts=True))
