"""Names of fields that providers refuse: sent under accepted names, and restored in the arguments of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests import modes
from tests.models.samples import CITIES, NAME, SAMPLES, Answer, Sample
from tests.models.test_providers import reply
from tests.modes import MODES
from tests.sweeps import check_each, sweep
from traced_tools import ChatClient, ToolCall
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.models import AnthropicChatModel
from traced_tools.testing import ReplayServer
from traced_tools.tools.schema.wire_fields import wire_fields

SAMPLE_OF = {repr(sample): sample for sample in SAMPLES}
ACCEPTED = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Recording:
    """A custom callback that records its arguments."""

    metadata = ToolMetadata(sequential=True)  # so that the calls of an answer are in order

    def __init__(self, schema: dict[str, Any], name: str = NAME) -> None:
        self.definition = ToolDefinition(name=name, description="Do.", input_schema=schema)
        self.given: list[Any] = []

    def call(self, tool_input: str, context: object = None) -> str:
        self.given.append(json.loads(tool_input))
        return "done"


def names_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from schema.get("properties") or ()
        for value in schema.values():
            yield from names_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from names_in(value)


def with_field(answer: Answer, name: str) -> Answer:
    """Return an answer whose calls have the field `name` instead of `city`, also in texts and pieces of JSON."""
    text = json.dumps([answer.whole, answer.events]).replace('"city"', json.dumps(name))
    whole, events = json.loads(text.replace('{\\"city', f'{{\\"{name}'))
    return Answer(whole, events)


SCHEMA = {"type": "object", "properties": {"$city": {"type": "string"}}, "required": ["$city"]}


@sweep(sample=SAMPLE_OF, mode=MODES)
def test_a_tool_gets_its_arguments_under_their_own_names(sample: str, mode: str) -> None:
    provider: Sample = SAMPLE_OF[sample]
    tool = Recording(SCHEMA)
    replies = [reply(provider, with_field(provider.asking, "_city"), mode), reply(provider, provider.closing, mode)]
    with ReplayServer(replies) as server:
        model = provider.model_at(server.url)
        response = modes.run(mode, ChatClient(model, tools=[tool]).prompt("?"), model)
        first, second = (request.body.decode() for request in server.requests)
    assert tool.given == [{"$city": city} for city in CITIES]
    calls = [call for message in response.messages for call in getattr(message, "tool_calls", ())]
    assert [json.loads(call.arguments) for call in calls] == tool.given
    assert '"_city"' in first
    assert "$city" in first  # as the title of the field
    for body in (first, second):
        assert '"$city":' not in body
        assert '\\"$city\\"' not in body


CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "OData": ({"properties": {"$filter": {}, "@odata.type": {}}}, [{"$filter": 1, "@odata.type": 2}]),
    "brackets": ({"properties": {"filter[id]": {}, "filter[name]": {}}}, [{"filter[id]": 1, "filter[name]": 2}]),
    "equal if replaced": ({"properties": {"$a": {}, "@a": {}, "_a": {}}}, [{"$a": 1, "@a": 2, "_a": 3}]),
    "only refused characters": ({"properties": {"$": {}, "": {}, "公司": {}}}, [{"$": 1, "": 2, "公司": 3}]),
    "long": ({"properties": {"a" * 65: {}, "a" * 66: {}}}, [{"a" * 65: 1, "a" * 66: 2}]),
    "nested": (
        {"properties": {"q": {"type": "array", "items": {"properties": {"$a": {"properties": {"b c": {}}}}}}}},
        [{"q": [{"$a": {"b c": 1}}]}],
    ),
    "in a branch": (
        {"properties": {"q": {"anyOf": [{"properties": {"$a": {}}}, {"type": "null"}]}}},
        [{"q": {"$a": 1}}, {"q": None}],
    ),
    "in a definition": (
        {"properties": {"q": {"$ref": "#/$defs/Q"}}, "$defs": {"Q": {"properties": {"$q": {"$ref": "#/$defs/Q"}}}}},
        [{"q": {"$q": {"$q": {}}}}],
    ),
    "referred to by its name": (
        {"properties": {"$a": {"properties": {"$b": {}}}, "c": {"$ref": "#/properties/$a"}}},
        [{"$a": {"$b": 1}, "c": {"$b": 2}}],
    ),
    "of another dialect": (
        {"properties": {"q": {"$ref": "#/definitions/Q"}}, "definitions": {"Q": {"properties": {"$q": {}}}}},
        [{"q": {"$q": 1}}],
    ),
    "required together": (
        {"properties": {"$a": {}, "$b": {}}, "dependentRequired": {"$a": ["$b"]}, "required": ["$b"]},
        [{"$b": 1}, {"$a": 1, "$b": 2}],
    ),
    "keys of a map": (
        {"properties": {"$a": {"additionalProperties": {"properties": {"$b": {}}}}}},
        [{"$a": {"_a": {"$b": 1}, "$a": {"$b": 2}}}],
    ),
}  # fmt: skip


def test_every_name_is_accepted_and_every_argument_keeps_its_own() -> None:
    def check(case: tuple[dict[str, Any], list[Any]]) -> None:
        schema, values = case
        fields = wire_fields({"type": "object", **schema})
        assert fields is not None
        assert all(map(ACCEPTED.fullmatch, names_in(fields.schema)))
        Draft202012Validator.check_schema(fields.schema)
        for value in values:
            sent = fields.to_wire(value)
            assert Draft202012Validator(fields.schema).is_valid(sent)
            assert fields.to_own(sent) == value
            assert fields.to_own(value) == value  # a model may write the own names, which it reads in the titles
        assert not any(Draft202012Validator(fields.schema).is_valid({}) for _ in schema.get("required", ()))

    check_each(CASES, check)


def test_nothing_changes_if_all_names_are_accepted() -> None:
    assert wire_fields({"properties": {"a": {"properties": {"b.c-d_1": {}}}}}) is None


@pytest.mark.parametrize("mode", ("stream", "astream"))
def test_the_calls_of_other_tools_still_stream_their_arguments(mode: str) -> None:
    from tests.events.watching import Watching
    from traced_tools.observe import ToolArgumentsDelta

    provider, other, odd = SAMPLE_OF["AnthropicChatModel"], Recording({"type": "object"}), Recording(SCHEMA, "odd")
    watching = Watching(deltas=True)
    with ReplayServer([reply(provider, provider.asking, mode), reply(provider, provider.closing, mode)]) as server:
        model = provider.model_at(server.url)
        modes.run(mode, ChatClient(model, tools=[other, odd], advisors=[watching]).prompt("?"), model)
    pieces = [event for event in watching.events if isinstance(event, ToolArgumentsDelta)]
    assert len([piece for piece in pieces if piece.arguments]) > len(CITIES)
    assert other.given == [{"city": city} for city in CITIES]


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_are_no_object_stay_as_the_model_wrote_them(mode: str) -> None:
    from tests.models.test_rare_answers import CHAT_END, chat
    from traced_tools.models import OpenAIChatModel
    from traced_tools.testing import Reply

    call = {"index": 0, "id": "c1", "function": {"name": NAME, "arguments": '{"_city": "Os'}}
    answers = [chat({"tool_calls": [call]}, [{"tool_calls": [call]}], "tool_calls"), CHAT_END]
    replies = [Reply.sse(events) if "stream" in mode else Reply.json(whole) for whole, events in answers]
    tool = Recording(SCHEMA)
    with ReplayServer(replies) as server:
        model = OpenAIChatModel("m", base_url=server.url, api_key="k")
        response = modes.run(mode, ChatClient(model, tools=[tool]).prompt("?"), model)
    assert response.tool_results[0].decision == "invalid_arguments"
    (made,) = [call for message in response.messages for call in getattr(message, "tool_calls", ())]
    assert made == ToolCall(NAME, '{"_city": "Os', "c1")


def test_a_schema_of_an_answer_with_such_names_is_not_enforced_by_anthropic() -> None:
    with AnthropicChatModel("m", api_key="k") as model:
        assert model.enforces_schema({"type": "object", "properties": {"a": {}}}, with_tools=False)
        assert not model.enforces_schema(SCHEMA, with_tools=False)
