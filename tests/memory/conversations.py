"""What the tests of the memory advisor share: agents with a memory, and the rules of a conversation that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traced_tools import AssistantMessage, ChatClient, MemoryAdvisor, Message, SystemMessage, ToolMessage, UserMessage
from traced_tools.memory import ChatMemory, ChatMemoryRepository, InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.testing import ScriptedChatModel

OUTSIDE, INSIDE = 200, 400
"""The place of a memory: around the tool loop, or in it."""


def remembering(
    turns: Sequence[Any],
    repository: ChatMemoryRepository | None = None,
    *,
    order: int = OUTSIDE,
    memory: ChatMemory | None = None,
    **settings: Any,
) -> tuple[ChatClient, ScriptedChatModel]:
    """Return a client with a memory, and the model that it asks."""
    model = ScriptedChatModel(turns)
    memory = memory or MessageWindowChatMemory(repository or InMemoryChatMemoryRepository())
    advisor = MemoryAdvisor(memory, order=order, on_failure=settings.pop("on_failure", "raise"))
    return ChatClient(model, advisors=[advisor, *settings.pop("advisors", ())], **settings), model


def shown(messages: Sequence[Message]) -> list[str]:
    """Return the messages, each as a short text: its role and what it says, calls or results."""
    return [_shown(message) for message in messages]


def _shown(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return "tool " + ", ".join(part.content for part in message.results)
    if isinstance(message, AssistantMessage) and message.tool_calls:
        return "call " + ", ".join(call.name for call in message.tool_calls)
    return f"{message.role} {message.text}"


def sent(model: ScriptedChatModel, index: int = -1) -> list[str]:
    """Return the messages of a request, as `shown` does."""
    return shown(model.requests[index].messages)


def logged(repository: ChatMemoryRepository, conversation: str = "c", **selection: Any) -> list[str]:
    """Return the messages of a log, as `shown` does."""
    return shown(repository.read(conversation, **selection).messages)


def assert_well_formed(messages: Sequence[Message]) -> None:
    """Check what strict providers demand of a conversation.

    The instructions come first. Each call has exactly one result, in the message right behind it, and each result has a
    call there. The first message is the user's, and no message is empty. The memory left no call without a result, for
    which the client would add one.
    """
    assert not any("went on without its result" in text for text in shown(messages)), shown(messages)
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    assert messages[len(messages) - len(rest) :] == tuple(rest)
    assert isinstance(rest[0], UserMessage), shown(messages)
    asked: list[str | None] = []
    for message in rest:
        if isinstance(message, ToolMessage):
            assert asked and [part.call_id for part in message.results] == asked, shown(messages)
            asked = []
            continue
        assert not asked, shown(messages)
        if isinstance(message, AssistantMessage):
            asked = [call.id for call in message.tool_calls]
        assert asked or message.text.strip(), shown(messages)
    assert not asked, shown(messages)
