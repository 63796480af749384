"""Chat models: the protocol, and the providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.models.base import ChatChunk as ChatChunk
    from traced_tools.models.base import ChatModel as ChatModel
    from traced_tools.models.base import ChatRequest as ChatRequest
    from traced_tools.models.base import ChatResponse as ChatResponse
    from traced_tools.models.base import ToolCallDelta as ToolCallDelta
    from traced_tools.models.openai import OpenAIChatModel as OpenAIChatModel

_EXPORTS = {
    "ChatChunk": "traced_tools.models.base",
    "ChatModel": "traced_tools.models.base",
    "ChatRequest": "traced_tools.models.base",
    "ChatResponse": "traced_tools.models.base",
    "ToolCallDelta": "traced_tools.models.base",
    "OpenAIChatModel": "traced_tools.models.openai",
}

__all__ = [
    "ChatChunk",
    "ChatModel",
    "ChatRequest",
    "ChatResponse",
    "OpenAIChatModel",
    "ToolCallDelta",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
