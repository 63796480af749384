"""`output=` with every provider: its own schema where it accepts one, else the schema in the instructions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.models.samples import CLOSING, SAMPLES, Answer, Sample
from tests.modes import MODES, run
from traced_tools import ChatClient, StructuredOutputAdvisor
from traced_tools.models import AnthropicChatModel, OpenAIChatModel
from traced_tools.models.http.model import HttpChatModel
from traced_tools.testing import ReplayServer, Reply

each_provider = pytest.mark.parametrize("sample", SAMPLES, ids=repr)
each_mode = pytest.mark.parametrize("mode", MODES)
WITH_TOOLS = ("OpenAIResponsesModel", "AnthropicChatModel")


class City(BaseModel):
    name: str
    rain: bool


OSLO = City(name="Oslo", rain=True)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "rain": {"type": "boolean"}},
    "required": ["name", "rain"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"rain in {city}"


def saying(sample: Sample, text: str, mode: str) -> Reply:
    """Return the sample's closing answer with another text, in two pieces where the sample's text is."""

    def rewritten(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rewritten(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [rewritten(each) for each in value]
        if not isinstance(value, str) or not value or value not in CLOSING:
            return value
        return text if value == CLOSING else text[:7] if CLOSING.startswith(value) else text[7:]

    streamed = mode.endswith("stream")
    answer = Answer(rewritten(sample.closing.whole), rewritten(sample.closing.events))
    content_type = sample.content_type if streamed else "application/json"
    return Reply(sample.body(answer, streamed=streamed), content_type=content_type)


def sent_schema(body: Any) -> Any:
    """Return the schema for the answer in the body of a request; None if it has none."""
    return (
        body.get("response_format", {}).get("json_schema", {}).get("schema")
        or body.get("text", {}).get("format", {}).get("schema")
        or body.get("output_config", {}).get("format", {}).get("schema")
        or body.get("generationConfig", {}).get("responseJsonSchema")
        or body.get("format")
    )


@each_provider
@each_mode
def test_the_provider_is_sent_the_schema_of_the_output(sample: Sample, mode: str) -> None:
    with ReplayServer([saying(sample, OSLO.model_dump_json(), mode)]) as server:
        model = sample.model_at(server.url)
        response = run(mode, ChatClient(model).prompt("Where?", output=City), model)
        body = server.requests[0].json()
    assert response.output == OSLO
    assert sent_schema(body) == SCHEMA
    assert "JSON Schema" not in json.dumps(body)


@each_provider
@each_mode
def test_a_type_that_is_no_object_is_sent_as_a_field_and_asked_for_again(sample: Sample, mode: str) -> None:
    answers = [saying(sample, text, mode) for text in ('["Oslo"]', '{"value": ["Oslo"]}')]
    with ReplayServer(answers) as server:
        model = sample.model_at(server.url)
        response = run(mode, ChatClient(model).prompt("Where?", output=list[str]), model)
        first, second = (request.json() for request in server.requests)
    assert response.output == ["Oslo"]
    schema = sent_schema(first)
    assert (schema["type"], schema["required"]) == ("object", ["value"])
    assert schema["properties"] == {"value": {"type": "array", "items": {"type": "string"}}}
    assert sent_schema(second) == schema
    assert "The answer is invalid" in json.dumps(second)


@each_provider
@each_mode
def test_the_schema_is_in_the_instructions_if_the_provider_ignores_it_beside_tools(sample: Sample, mode: str) -> None:
    fenced = f"Here you are:\n```json\n{OSLO.model_dump_json()}\n```"
    native = repr(sample) in WITH_TOOLS
    with ReplayServer([saying(sample, OSLO.model_dump_json() if native else fenced, mode)]) as server:
        model = sample.model_at(server.url)
        response = run(mode, ChatClient(model, tools=[weather]).prompt("Where?", output=City), model)
        body = server.requests[0].json()
    assert response.output == OSLO
    assert (sent_schema(body) is not None) == native
    assert ("JSON Schema" in json.dumps(body)) == (not native)


@each_provider
def test_native_false_puts_the_schema_in_the_instructions(sample: Sample) -> None:
    with ReplayServer([saying(sample, OSLO.model_dump_json(), "call")]) as server:
        model = sample.model_at(server.url)
        client = ChatClient(model, advisors=[StructuredOutputAdvisor(City, native=False)])
        assert run("call", client.prompt("Where?"), model).output == OSLO
        body = server.requests[0].json()
    assert sent_schema(body) is None
    assert "JSON Schema" in json.dumps(body)


MAP = {"type": "object", "properties": {"of": {"type": "object", "additionalProperties": {"type": "integer"}}}}


@pytest.mark.parametrize(
    ("model", "schema", "with_tools", "enforced"),
    [
        (OpenAIChatModel("m", base_url="https://api.openai.com/v1", api_key="k"), SCHEMA, True, True),
        (OpenAIChatModel("m", base_url="https://api.deepseek.com", api_key="k"), SCHEMA, False, False),
        (OpenAIChatModel("m", base_url="https://api.groq.com/openai/v1", api_key="k"), SCHEMA, False, False),
        (OpenAIChatModel("m", base_url="https://api.x.ai/v1", api_key="k"), SCHEMA, False, True),
        (OpenAIChatModel("m", base_url="https://api.x.ai/v1", api_key="k"), SCHEMA, True, False),
        (AnthropicChatModel("m", api_key="k"), SCHEMA, True, True),
        (AnthropicChatModel("m", api_key="k"), MAP, False, False),
    ],
    ids=["openai", "deepseek", "groq", "xai", "xai with tools", "anthropic", "anthropic with a map"],
)
def test_a_model_knows_which_schemas_its_provider_enforces(
    model: HttpChatModel, schema: dict[str, Any], with_tools: bool, enforced: bool
) -> None:
    with model:
        assert model.enforces_schema(schema, with_tools=with_tools) == enforced


def test_openai_enforces_the_schema_of_a_union_strictly() -> None:
    (sample,) = [each for each in SAMPLES if each.kind is OpenAIChatModel]
    with ReplayServer([saying(sample, '{"value": {"name": "Oslo", "rain": true}}', "call")]) as server:
        model = sample.model_at(server.url)
        response = run("call", ChatClient(model).prompt("Where?", output=City | None), model)
        sent = server.requests[0].json()["response_format"]["json_schema"]
    assert response.output == OSLO
    assert sent["strict"] is True
    assert sent["schema"]["properties"]["value"]["anyOf"] == [SCHEMA, {"type": "null"}]
