"""The attempts of an advisor that asks the model again until the answer is good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.core.messages import AssistantMessage, Message, UsageSum, UserMessage


class Attempts:
    """What the model is sent for each attempt, and what the attempts add up to.

    The model sees the last answer and what is wrong with it, and no earlier ones. It sees the tool calls of all
    attempts. The responses contain neither the corrections nor the earlier answers.

    Args:
        request: the request that the advisor received.
        asking: the request to send, with what the advisor has added.

    Attributes:
        exchanges: the tool calls of all attempts and their results.
    """

    def __init__(self, request: ChatClientRequest, asking: ChatClientRequest) -> None:
        self._request = request
        self._asking = self._sent = asking
        self.exchanges: Sequence[Message] = ()
        self._correction: Sequence[Message] = ()
        self._usage = UsageSum()

    def next_request(self) -> ChatClientRequest:
        """Return the request of the next attempt."""
        if self._correction:
            self._sent = self._asking.replace(messages=(*self._asking.messages, *self.exchanges, *self._correction))
        return self._sent

    def add(self, response: ChatClientResponse) -> ChatClientResponse:
        """Record the response to the request of the attempt; return it with the usage of all attempts."""
        self._usage.add(response.usage)
        response = response.replace(usage=self._usage.total)
        sent = self._sent.messages
        if response.messages[: len(sent)] != sent:  # an advisor replaced them
            return response
        added = (*self.exchanges, *response.messages[len(sent) :])
        self.exchanges = added[:-1] if added and isinstance(added[-1], AssistantMessage) else added
        return response.replace(messages=(*self._request.messages, *added))

    def conversation_with(self, answer: Message) -> tuple[Message, ...]:
        """Return the conversation of all attempts, with the answer of one of them."""
        return (*self._request.messages, *self.exchanges, answer)

    def correct(self, response: ChatClientResponse, ask: str) -> None:
        """Set what the next attempt is about: the answer of `response`, and the text that asks for another one."""
        shown = (response.message,) if response.content.strip() else ()  # providers refuse an empty message
        self._correction = (*shown, UserMessage(ask))


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
