"""The servers of chat completions: the key of each, the format of its requests, and its errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.models.openai.completions import codec_of, encoded
from traced_tools import AuthenticationError, ConfigurationError, ModelError, RateLimited, UserMessage
from traced_tools.errors import InvalidRequest
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply

SECRET = "the-secret-in-the-body"
KEYS = {
    "https://api.openai.com/v1": ("openai", "OPENAI_API_KEY"),
    "https://api.groq.com/openai/v1": ("groq", "GROQ_API_KEY"),
    "https://api.mistral.ai/v1": ("mistral_ai", "MISTRAL_API_KEY"),
    "https://api.deepseek.com": ("deepseek", "DEEPSEEK_API_KEY"),
    "https://openrouter.ai/api/v1": ("openrouter", "OPENROUTER_API_KEY"),
    "https://router.huggingface.co/v1": ("huggingface", "HF_TOKEN"),
    "https://api.perplexity.ai": ("perplexity", "PERPLEXITY_API_KEY"),
    "https://api.x.ai/v1": ("x_ai", "XAI_API_KEY"),
    "https://generativelanguage.googleapis.com/v1beta/openai": ("gcp.gemini", "GEMINI_API_KEY"),
}
FINE = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
ASKED = ChatRequest((UserMessage("hi"),))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_BASE_URL", *(variable for _, variable in KEYS.values())):
        monkeypatch.delenv(variable, raising=False)


def sent_key(base_url: str, **settings: Any) -> str | None:
    """Return the key that a server at `base_url` is sent."""
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json=FINE)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        OpenAIChatModel("m", base_url=base_url, client=client, **settings).call(ASKED)
    return seen[0] and seen[0].removeprefix("Bearer ")


# Who is there, and the key.


@pytest.mark.parametrize("base_url", KEYS)
def test_a_known_server_has_its_name_and_gets_its_own_key(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, variable = KEYS[base_url]
    for _, each in KEYS.values():
        monkeypatch.setenv(each, f"the-{each}")
    assert sent_key(base_url) == f"the-{variable}"
    assert sent_key(base_url, api_key="given") == "given"
    assert OpenAIChatModel("m", base_url=base_url).provider == provider
    assert OpenAIChatModel("m", base_url=base_url, provider="mine").provider == "mine"


@pytest.mark.parametrize("base_url", [url for url in KEYS if "openai.com" not in url])
def test_a_known_server_without_its_key_gets_no_other_key(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with pytest.raises(ConfigurationError, match=KEYS[base_url][1]) as caught:
        OpenAIChatModel("m", base_url=base_url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "base_url", ["https://API.GROQ.COM/openai/v1", "https://api.groq.com.:443/v1", "https://eu.api.groq.com/v1"]
)
def test_a_known_server_is_recognized_in_every_form_of_its_address(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "groqs")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert sent_key(base_url) == "groqs"


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8000/v1", "https://notapi.groq.com.example.org/v1"])
def test_an_unknown_server_gets_openais_key_or_the_key_of_the_provider_behind_it(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent_key(base_url) is None
    monkeypatch.setenv("OPENAI_API_KEY", "openais")
    monkeypatch.setenv("GROQ_API_KEY", "groqs")
    assert sent_key(base_url) == "openais"
    assert sent_key(base_url, provider="groq") == "groqs"
    assert OpenAIChatModel("m", base_url=base_url).provider == "openai"


def test_an_address_from_the_environment_is_treated_like_a_passed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.groq.com/openai/v1")
    monkeypatch.setenv("GROQ_API_KEY", "groqs")
    assert OpenAIChatModel("m").provider == "groq"


# How each is asked.

SETTINGS = {"max_tokens": 9, "seed": 1, "reasoning_effort": "low"}
PLAIN = {"max_tokens": 9, "seed": 1, "reasoning_effort": "low", "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("provider", "settings"),
    [
        (None, PLAIN),
        ("somebody", PLAIN),
        ("groq", PLAIN),
        ("openai", {**PLAIN, "max_tokens": None, "max_completion_tokens": 9}),
        ("mistral_ai", {**PLAIN, "seed": None, "random_seed": 1, "stream_options": None}),
        ("openrouter", {**PLAIN, "reasoning_effort": None, "reasoning": {"effort": "low"}}),
    ],
)
def test_each_server_gets_its_own_field_names(provider: str | None, settings: dict[str, Any]) -> None:
    body = encoded(UserMessage("hi"), codec=codec_of(provider), stream=True, **SETTINGS)
    known = body.keys() - {"model", "messages", "stream"}
    assert {name: body[name] for name in known} == {
        name: value for name, value in settings.items() if value is not None
    }


def test_openai_itself_gets_the_newer_name_of_the_token_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=FINE)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        asked = ChatRequest(ASKED.messages, options=ASKED.options.replace(max_tokens=9))
        OpenAIChatModel("m", api_key="k", client=client).call(asked)
        OpenAIChatModel("m", base_url="http://127.0.0.1/v1", client=client).call(asked)
    assert [set(body) - {"model", "messages"} for body in bodies] == [{"max_completion_tokens"}, {"max_tokens"}]


def test_extra_fields_extend_objects_and_lists() -> None:
    body = encoded(
        UserMessage("hi"),
        codec=codec_of("openrouter"),
        reasoning_effort="low",
        extra={"reasoning": {"exclude": True}, "provider": {"sort": "price"}},
    )
    assert (body["reasoning"], body["provider"]) == ({"effort": "low", "exclude": True}, {"sort": "price"})


EXACT = {"type": "object", "title": "City of birth", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (
            EXACT,
            {
                "name": "City_of_birth",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
        ),
        ({**EXACT, "required": []}, {"name": "City_of_birth", "strict": False, "schema": {**EXACT, "required": []}}),
        ({"type": "array", "items": {}}, {"name": "answer", "strict": False, "schema": {"type": "array", "items": {}}}),
    ],
    ids=["the same in strict mode", "a field may be left out", "strict mode cannot say it"],
)
def test_an_output_schema_is_strict_if_strict_mode_has_the_same_meaning(
    schema: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = json.loads(json.dumps(encoded(UserMessage("hi"), output_schema=schema)))
    assert body["response_format"] == {"type": "json_schema", "json_schema": sent}


def test_an_optional_field_is_found_at_every_level() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    for place in ({"items": inner, "type": "array"}, {"anyOf": [inner, {"type": "null"}]}, {"$ref": "#/$defs/B"}):
        schema = {"type": "object", "properties": {"a": place}, "required": ["a"], "$defs": {"B": inner}}
        body = encoded(UserMessage("hi"), output_schema=schema)
        assert body["response_format"]["json_schema"]["strict"] is False


def test_an_output_schema_is_inlined_for_servers_that_do_not_resolve_references() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}}
    inline = codec_of(inline_definitions=True)
    sent = encoded(UserMessage("hi"), codec=inline, output_schema=schema)["response_format"]["json_schema"]["schema"]
    assert sent["properties"] == {"a": {"type": "string"}}
    with pytest.raises(ConfigurationError, match="output_schema cannot be sent") as caught:
        encoded(UserMessage("hi"), codec=inline, output_schema={"$ref": "#/$defs/none"})
    assert caught.value.__cause__ is None


def test_an_output_schema_is_refused_for_a_server_without_support() -> None:
    with pytest.raises(ConfigurationError, match=r"deepseek.*output_schema"):
        encoded(UserMessage("hi"), codec=codec_of("deepseek"), output_schema=EXACT)


# Refusals.

MISSING = [{"type": "missing", "loc": ["body", "model"], "msg": SECRET, "input": {"x": SECRET}}]
SAID = {"message": SECRET, "type": "BadRequestError", "param": None, "code": 400}
REFUSALS: dict[str, tuple[int, Any, str | None]] = {
    "OpenAI": (404, {"error": {**SAID, "code": "model_not_found"}}, "model_not_found"),
    "OpenAI without a code": (401, {"error": {**SAID, "code": None}}, "BadRequestError"),
    "Groq": (400, {"error": {**SAID, "code": "tool_use_failed", "failed_generation": SECRET}}, "tool_use_failed"),
    "Mistral": (400, {**SAID, "object": "error", "type": "invalid_model", "code": "1500"}, "invalid_model"),
    "Mistral, a wrong field": (422, {"object": "error", "message": {"detail": MISSING}, "type": "wrong"}, "wrong"),
    "Mistral's gateway": (401, {"message": SECRET, "request_id": "req-7"}, None),
    "FastAPI": (422, {"detail": MISSING}, "missing"),
    "FastAPI in words": (404, {"detail": SECRET}, None),
    "vLLM": (400, {"error": SAID}, "BadRequestError"),
    "older vLLM": (400, {**SAID, "object": "error"}, "BadRequestError"),
    "OpenRouter": (402, {"error": {"message": SECRET, "code": 402, "metadata": {"raw": SECRET}}}, "402"),
    "text-generation-inference": (422, {"error": SECRET, "error_type": "validation"}, "validation"),
    "Hugging Face": (429, {"error": SECRET}, None),
    "a list": (500, [SECRET], None),
    "nonsense": (503, {"error": {"message": SECRET, "type": [SECRET], "code": {"x": SECRET}}}, None),
}
CLASSES = {401: AuthenticationError, 429: RateLimited, 500: ModelError, 503: ModelError}


@pytest.mark.parametrize("shape", REFUSALS)
def test_each_format_of_error_answer_raises_its_class_with_its_code_and_quotes_nothing(shape: str) -> None:
    status, body, code = REFUSALS[shape]
    with ReplayServer([Reply.json(body, status)]) as server, pytest.raises(ModelError) as caught:
        with OpenAIChatModel("m", base_url=server.url, retries=0) as model:
            model.call(ASKED)
    error = caught.value
    assert (type(error), error.status_code, error.code) == (CLASSES.get(status, InvalidRequest), status, code)
    assert error.request_id == ("req-7" if "request_id" in body else None)
    assert SECRET not in str(error) + repr(error) + repr(vars(error))


@pytest.mark.parametrize("header", ["x-request-id", "mistral-correlation-id", "x-ds-trace-id"])
def test_an_error_answer_has_the_servers_request_id(header: str) -> None:
    with ReplayServer([Reply.json({}, 400, {header: "req-1"})]) as server:
        with pytest.raises(InvalidRequest) as caught, OpenAIChatModel("m", base_url=server.url) as model:
            model.call(ASKED)
    assert caught.value.request_id == "req-1"
