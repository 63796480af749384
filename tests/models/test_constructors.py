"""The constructor of every model behind HTTP: arguments, address, key."""

from __future__ import annotations

from typing import Any

import pytest

from traced_tools import ConfigurationError
from traced_tools.models import (
    AnthropicChatModel,
    ChatModel,
    GeminiChatModel,
    GeminiEmbeddingModel,
    OllamaChatModel,
    OllamaEmbeddingModel,
    OpenAIChatModel,
    OpenAIEmbeddingModel,
    OpenAIResponsesModel,
)
from traced_tools.models.http.model import HttpModel

SECRET = "sk-marker-7"
HERE = "http://127.0.0.1:8123"
VARIABLES: dict[type[HttpModel], tuple[str, str]] = {
    OpenAIChatModel: ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    OpenAIResponsesModel: ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    OpenAIEmbeddingModel: ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    AnthropicChatModel: ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    GeminiChatModel: ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
    GeminiEmbeddingModel: ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
    OllamaChatModel: ("OLLAMA_HOST", "OLLAMA_API_KEY"),
    OllamaEmbeddingModel: ("OLLAMA_HOST", "OLLAMA_API_KEY"),
}
"""The variables that hold the address and the key."""
ANY: dict[str, Any] = {"model": 1, "base_url": 1, "api_key": 1, "retries": "2", "timeout": "1", "headers": "x: y"}
"""Arguments that every model has, each of the wrong type."""
CHAT: dict[str, Any] = {"context_window": "9"}
OPENAI: dict[str, Any] = {"provider": 1, "strict_tools": 1, "inline_definitions": "yes"}
EMBEDDING: dict[str, Any] = {"dimensions": True, "extra": ["x"]}
OTHERS: dict[type[HttpModel], dict[str, Any]] = {
    OpenAIChatModel: {**CHAT, **OPENAI, "stream_usage": 1},
    OpenAIResponsesModel: {**CHAT, **OPENAI},
    OpenAIEmbeddingModel: {**EMBEDDING, "provider": 1, "batch_size": 2.0},
    AnthropicChatModel: {**CHAT, "max_tokens": "9"},
    GeminiChatModel: CHAT,
    GeminiEmbeddingModel: EMBEDDING,
    OllamaChatModel: CHAT,
    OllamaEmbeddingModel: EMBEDDING,
}
WRONG = [(kind, name, value) for kind in VARIABLES for name, value in {**ANY, **OTHERS.get(kind, {})}.items()]

every_model = pytest.mark.parametrize("kind", VARIABLES, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"GEMINI_API_KEY", *(name for names in VARIABLES.values() for name in names)}:
        monkeypatch.delenv(name, raising=False)


def made(kind: Any, **arguments: Any) -> HttpModel:
    """Return a model of any class."""
    model: HttpModel = kind(**{"model": "m", "base_url": HERE, **arguments})
    return model


@pytest.mark.parametrize(("kind", "name", "value"), WRONG, ids=lambda each: getattr(each, "__name__", str(each)))
def test_an_argument_of_the_wrong_type_is_named(kind: type[HttpModel], name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        made(kind, **{name: value})


@pytest.mark.parametrize("kind", [kind for kind in VARIABLES if issubclass(kind, ChatModel)])
def test_the_context_window_is_the_one_given_or_the_one_that_genai_prices_lists(kind: type[HttpModel]) -> None:
    given, unknown = made(kind, context_window=9), made(kind)
    assert isinstance(given, ChatModel)
    assert isinstance(unknown, ChatModel)
    assert (given.known_context_window(), unknown.known_context_window()) == (9, None)
    with pytest.raises(ValueError, match="context_window must be at least 1"):
        made(kind, context_window=0)


@every_model
def test_an_unknown_argument_is_named_and_the_valid_ones_are_listed(kind: type[HttpModel]) -> None:
    with pytest.raises(TypeError, match=r"unknown argument time_out; the arguments of all models are timeout, .*"):
        made(kind, time_out=3)


@every_model
def test_an_unknown_argument_is_reported_before_a_missing_key(kind: type[HttpModel]) -> None:
    itself = "https://ollama.com" if "OLLAMA_HOST" in VARIABLES[kind] else None
    with pytest.raises(TypeError, match="unknown argument apikey"):
        made(kind, base_url=itself, apikey=SECRET)


@every_model
@pytest.mark.parametrize("address", ["not an address", "ftp://example.org", "http://", "http://[::1"])
def test_an_invalid_address_is_refused(kind: type[HttpModel], address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        made(kind, base_url=address)


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (OpenAIChatModel, "/chat/completions"),
        (OpenAIResponsesModel, "/responses"),
        (OpenAIEmbeddingModel, "/embeddings"),
        (AnthropicChatModel, "/v1"),
        (AnthropicChatModel, "/v1/messages"),
    ],
)
def test_an_address_that_includes_the_endpoint_path_is_refused(kind: type[HttpModel], path: str, slash: str) -> None:
    with pytest.raises(ConfigurationError, match=f"base_url.*: drop {path.removesuffix('/messages')}$"):
        made(kind, base_url=f"{HERE}{path}{slash}")


@every_model
def test_server_and_key_come_from_environment_variables(kind: type[HttpModel], monkeypatch: pytest.MonkeyPatch) -> None:
    address, key = VARIABLES[kind]
    monkeypatch.setenv(address, f"{HERE}/")
    monkeypatch.setenv(key, SECRET)
    model = made(kind, base_url=None)
    assert (model.server_address, model.server_port) == ("127.0.0.1", 8123)
    assert SECRET in str(model._transport._headers)
    assert repr(model) == f"<{kind.__name__} m at 127.0.0.1>"
    assert SECRET not in repr(vars(model))


@every_model
def test_a_key_is_required_only_for_the_providers_own_address(kind: type[HttpModel]) -> None:
    itself = "https://ollama.com" if "OLLAMA_HOST" in VARIABLES[kind] else None
    with pytest.raises(ConfigurationError, match=f"no API key: set {VARIABLES[kind][1]}"):
        made(kind, base_url=itself)
    assert made(kind).server_address == "127.0.0.1"
