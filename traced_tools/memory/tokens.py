"""Counts of tokens: what the provider reported, or an estimate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from traced_tools.core.messages import (
    ImagePart,
    Message,
    ProviderPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
)

_BYTES_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 4
_TOKENS_PER_IMAGE: Final = 1_000


class TokenCount(NamedTuple):
    """A number of tokens.

    Attributes:
        tokens: the number.
        is_estimated: whether it is an estimate, at least in part, and not what the provider reported.
    """

    tokens: int
    is_estimated: bool


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Return an estimate of the tokens of messages: a token for four bytes of UTF-8, and 1,000 for each image.

    It counts texts, reasoning, names and arguments of calls, and results. Providers count differently.
    """
    return sum(_TOKENS_PER_MESSAGE + _message_tokens(message) for message in messages)


def _message_tokens(message: Message) -> int:
    if isinstance(message, SystemMessage):
        return _text_tokens(message.text)
    if isinstance(message, ToolMessage):
        return sum(
            _text_tokens(result.name, result.content) + _TOKENS_PER_IMAGE * len(result.images)
            for result in message.results
        )
    parts = message.parts
    tokens = 0
    for part in parts:
        if isinstance(part, ImagePart):
            tokens += _TOKENS_PER_IMAGE
        elif isinstance(part, ToolCall):
            tokens += _text_tokens(part.name, part.arguments)
        elif isinstance(part, ProviderPart):
            tokens += _text_tokens(part.data)
        elif isinstance(part, TextPart | ReasoningPart):
            tokens += _text_tokens(part.text)
    return tokens


def _text_tokens(*texts: str) -> int:
    size = sum(len(text) if text.isascii() else len(text.encode(errors="replace")) for text in texts)
    return -(-size // _BYTES_PER_TOKEN)
