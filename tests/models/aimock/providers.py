"""The providers that aimock speaks for, and what it can do wrong for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.models.aimock.server import KEY, Aimock
from traced_tools import AuthenticationError, ModelError, RateLimited
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OllamaEmbeddingModel,
    OpenAIChatModel,
    OpenAIEmbeddingModel,
    OpenAIResponsesModel,
)
from traced_tools.models.http.retries import RetryPolicy


@dataclass(frozen=True)
class Provider:
    """A provider that aimock speaks for.

    Args:
        name: for the names of tests.
        model: the class of ours that asks it.
        path: where its API is on the server.
        unsaid: what aimock cannot answer for the provider, or answers with values that the provider does not have.
    """

    name: str
    model: Callable[..., Any]
    path: str = ""
    unsaid: tuple[str, ...] = ()

    def model_at(self, aimock: Aimock, *, key: str = KEY, **options: Any) -> Any:
        """Return a model that asks `aimock` in this provider's language."""
        return self.model("m", base_url=aimock.address + self.path, api_key=key, **options)

    def __str__(self) -> str:
        return self.name


LANGUAGES = (
    Provider("openai", OpenAIChatModel, "/v1"),
    Provider("responses", OpenAIResponsesModel, "/v1", unsaid=("length", "content_filter")),
    Provider("anthropic", AnthropicChatModel, unsaid=("content_filter",)),
    Provider("gemini", GeminiChatModel, "/v1beta"),
    Provider("ollama", OllamaChatModel, unsaid=("ids", "usage", "reasoning", "length", "content_filter")),
)
"""One provider for each wire format."""

PROVIDERS = (
    *LANGUAGES,
    Provider("azure", OpenAIChatModel, "/openai/deployments/m"),
    Provider("byteplus", OpenAIChatModel, "/api/v3"),
    Provider("groq", OpenAIChatModel, "/openai/v1"),
    Provider("openrouter", OpenAIChatModel, "/api/v1"),
    Provider("vertex", GeminiChatModel, "/v1/projects/p/locations/l/publishers/google"),
)
"""All providers, those included that speak another's language at an address of their own."""

EMBEDDERS = (
    Provider("openai", OpenAIEmbeddingModel, "/v1"),
    Provider("azure", OpenAIEmbeddingModel, "/openai/deployments/m"),
    Provider("ollama", OllamaEmbeddingModel, unsaid=("vectors",)),
)
"""The providers of embeddings."""


def each(providers: tuple[Provider, ...], said: str = "") -> pytest.MarkDecorator:
    """Run a test for each of `providers` for which aimock can say what is to be `said`."""
    return pytest.mark.parametrize("provider", [each for each in providers if said not in each.unsaid], ids=str)


SECRET = "what-nobody-else-may-read"
SOON = RetryPolicy(retries=2, first_delay=0.001)
FAULTS: dict[str, tuple[dict[str, float], type[ModelError], int | None]] = {
    "dropped": ({"dropRate": 1}, ModelError, 500),
    "malformed": ({"malformedRate": 1}, InvalidResponse, None),
    "too many": ({"rateLimitRate": 1}, RateLimited, 429),
    "disconnected": ({"disconnectRate": 1}, ModelError, None),
}
"""The faults by name: the setting of aimock, the error that the model raises, and the HTTP status."""

REFUSALS: dict[int, type[ModelError]] = {
    400: InvalidRequest,
    401: AuthenticationError,
    404: InvalidRequest,
    429: RateLimited,
    500: ModelError,
    529: ModelError,
}
"""The error that each status stands for."""


def refused(status: int, **options: float) -> dict[str, Any]:
    """Return what makes aimock refuse with `status`."""
    said = {"message": SECRET, "type": "a_short_code", "code": "a_short_code"}
    return {"error": said, "status": status, **options}
