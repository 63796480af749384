"""Chat and embedding models: their interfaces, and an implementation for each provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.models.anthropic.chat import AnthropicChatModel as AnthropicChatModel
    from traced_tools.models.base import AskModel as AskModel
    from traced_tools.models.base import ChatChunk as ChatChunk
    from traced_tools.models.base import ChatModel as ChatModel
    from traced_tools.models.base import ChatRequest as ChatRequest
    from traced_tools.models.base import ChatResponse as ChatResponse
    from traced_tools.models.base import ToolCallDelta as ToolCallDelta
    from traced_tools.models.embedding import EmbeddingModel as EmbeddingModel
    from traced_tools.models.embedding import EmbeddingResponse as EmbeddingResponse
    from traced_tools.models.fallback import FallbackModel as FallbackModel
    from traced_tools.models.gemini.chat import GeminiChatModel as GeminiChatModel
    from traced_tools.models.gemini.embedding import GeminiEmbeddingModel as GeminiEmbeddingModel
    from traced_tools.models.http.options import Timeouts as Timeouts
    from traced_tools.models.http.retries import RetryPolicy as RetryPolicy
    from traced_tools.models.ollama.chat import OllamaChatModel as OllamaChatModel
    from traced_tools.models.ollama.embedding import OllamaEmbeddingModel as OllamaEmbeddingModel
    from traced_tools.models.openai.chat import OpenAIChatModel as OpenAIChatModel
    from traced_tools.models.openai.embedding import OpenAIEmbeddingModel as OpenAIEmbeddingModel
    from traced_tools.models.openai.responses import OpenAIResponsesModel as OpenAIResponsesModel
    from traced_tools.models.rate_limit import RateLimitedModel as RateLimitedModel
    from traced_tools.models.routing import RoutingModel as RoutingModel

_EXPORTS = {
    "AnthropicChatModel": "traced_tools.models.anthropic.chat",
    "AskModel": "traced_tools.models.base",
    "ChatChunk": "traced_tools.models.base",
    "ChatModel": "traced_tools.models.base",
    "ChatRequest": "traced_tools.models.base",
    "ChatResponse": "traced_tools.models.base",
    "FallbackModel": "traced_tools.models.fallback",
    "RateLimitedModel": "traced_tools.models.rate_limit",
    "RoutingModel": "traced_tools.models.routing",
    "ToolCallDelta": "traced_tools.models.base",
    "RetryPolicy": "traced_tools.models.http.retries",
    "Timeouts": "traced_tools.models.http.options",
    "EmbeddingModel": "traced_tools.models.embedding",
    "EmbeddingResponse": "traced_tools.models.embedding",
    "GeminiChatModel": "traced_tools.models.gemini.chat",
    "GeminiEmbeddingModel": "traced_tools.models.gemini.embedding",
    "OllamaChatModel": "traced_tools.models.ollama.chat",
    "OllamaEmbeddingModel": "traced_tools.models.ollama.embedding",
    "OpenAIChatModel": "traced_tools.models.openai.chat",
    "OpenAIEmbeddingModel": "traced_tools.models.openai.embedding",
    "OpenAIResponsesModel": "traced_tools.models.openai.responses",
}

__all__ = [
    "AnthropicChatModel",
    "AskModel",
    "ChatChunk",
    "ChatModel",
    "ChatRequest",
    "ChatResponse",
    "EmbeddingModel",
    "EmbeddingResponse",
    "FallbackModel",
    "GeminiChatModel",
    "GeminiEmbeddingModel",
    "OllamaChatModel",
    "OllamaEmbeddingModel",
    "OpenAIChatModel",
    "OpenAIEmbeddingModel",
    "OpenAIResponsesModel",
    "RateLimitedModel",
    "RetryPolicy",
    "RoutingModel",
    "Timeouts",
    "ToolCallDelta",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
