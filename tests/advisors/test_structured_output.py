"""The answer of a run as a value of a Python type, in all four modes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, TypeAdapter, field_validator
from typing_extensions import TypedDict

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, STREAMING_MODES, run, run_chunks
from tests.sample_tools import add
from tests.sweeps import check_each
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    LoopLimitExceeded,
    LoopLimits,
    OutputValidationError,
    StructuredOutputAdvisor,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.errors import AdvisorChainError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.schema.output import InvalidOutput, OutputFormat


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Line(BaseModel):
    item: str
    price: float


class Invoice(BaseModel):
    customer: str
    lines: list[Line] = []

    @field_validator("customer")
    @classmethod
    def check_customer(cls, name: str) -> str:
        if name == "nobody":
            raise ValueError("must be somebody")
        return name


VALID = '{"customer": "Ana", "lines": [{"item": "tea", "price": 2.5}]}'
NO_PRICE = '{"customer": "Ana", "lines": [{"item": "tea"}]}'
NO_CUSTOMER = '{"lines": []}'
ANA = Invoice(customer="Ana", lines=[Line(item="tea", price=2.5)])
SUM = ToolCall("add", {"a": 1, "b": 2})


def asked(model: ScriptedChatModel, index: int) -> list[str]:
    """Return the texts of a request's messages after the instructions."""
    instructions, *messages = model.requests[index].messages
    assert isinstance(instructions, SystemMessage)
    return [message.text if not isinstance(message, ToolMessage) else "(results)" for message in messages]


def test_a_valid_answer_is_the_output_after_one_model_call(mode: str) -> None:
    model = ScriptedChatModel([VALID])
    response = run(mode, ChatClient(model, system="Be brief.").prompt("The invoice?", output=Invoice))
    assert response.output == ANA
    assert response.content == VALID
    assert len(model.requests) == 1


def test_the_instructions_are_sent_and_are_not_part_of_the_conversation(mode: str) -> None:
    model = ScriptedChatModel([VALID, "3"])
    client = ChatClient(model, system="Be brief.")
    response = run(mode, client.prompt("The invoice?", output=Invoice))
    (system, user) = model.requests[0].messages
    assert isinstance(system, SystemMessage)
    assert system.text.startswith("Be brief.\n\nAnswer with JSON only")
    assert json.loads(system.text.splitlines()[-1])["required"] == ["customer"]
    assert model.requests[0].options.output_schema is None
    assert response.messages == (SystemMessage("Be brief."), user, AssistantMessage(VALID))
    run(mode, client.prompt("How many?", messages=response.messages, output=int))
    assert [each.role for each in model.requests[1].messages] == ["system", "user", "assistant", "user"]


def test_an_invalid_answer_is_shown_to_the_model_with_its_problems_and_no_earlier_ones(mode: str) -> None:
    model = ScriptedChatModel([NO_CUSTOMER, NO_PRICE, VALID])
    response = run(mode, ChatClient(model).prompt("?", output=Invoice))
    assert response.output == ANA
    again = "Answer again, with the corrected JSON only."
    assert asked(model, 1) == ["?", NO_CUSTOMER, f"The answer is invalid:\n- customer: is required\n{again}"]
    assert asked(model, 2) == ["?", NO_PRICE, f"The answer is invalid:\n- lines.0.price: is required\n{again}"]
    assert response.messages == (UserMessage("?"), AssistantMessage(VALID))


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_run_without_a_valid_answer_fails_with_the_last_response(mode: str, attempts: int) -> None:
    model = ScriptedChatModel([NO_CUSTOMER, NO_PRICE], usage=Usage(input_tokens=10, output_tokens=1))
    client = ChatClient(model, advisors=[StructuredOutputAdvisor(Invoice, max_attempts=attempts)])
    with pytest.raises(OutputValidationError) as caught:
        run(mode, client.prompt("?"))
    assert len(model.requests) == caught.value.attempts == attempts
    assert caught.value.response.content == (NO_CUSTOMER, NO_PRICE)[attempts - 1]
    assert caught.value.response.usage == Usage(input_tokens=10 * attempts, output_tokens=attempts)
    assert ("lines[0].price" if attempts == 2 else "customer") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the answer is empty"),
        (" \n", "the answer is empty"),
        ("I cannot help with that.", "the answer: not valid JSON"),
        (VALID[:-5], "the answer: not valid JSON"),
        ("null", "the answer: must be an object"),
        ("[1]", "the answer: must be an object"),
        ('{"customer": "nobody"}', "customer: must be somebody"),
        ('{"customer": "Ana", "lines": [{"item": "tea", "price": NaN}]}', "a number in it is not finite"),
        ("[" * 100_000, "the answer"),
    ],
    ids=range(9),
)
def test_an_answer_that_is_not_an_output_is_asked_for_again(mode: str, text: str, problem: str) -> None:
    model = ScriptedChatModel([ChatResponse(AssistantMessage(text), finish_reason="stop"), VALID])
    assert run(mode, ChatClient(model).prompt("?", output=Invoice)).output == ANA
    assert problem in asked(model, 1)[-1]
    assert (text in asked(model, 1)) == bool(text.strip())


def test_a_missing_answer_is_asked_for_again(mode: str) -> None:
    class Forgetful(Advisor):
        name, order = "forgetful", 280

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            response = await call_next(request)
            return response.replace(chat_response=None) if response.content == "lost" else response

    model = ScriptedChatModel(["lost", VALID])
    assert run(mode, ChatClient(model, advisors=[Forgetful()]).prompt("?", output=Invoice)).output == ANA
    assert "the answer is empty" in asked(model, 1)[-1]


def test_a_model_whose_answer_was_cut_off_is_asked_to_be_brief(mode: str) -> None:
    model = ScriptedChatModel([ChatResponse(AssistantMessage(VALID[:-5]), finish_reason="length"), VALID])
    assert run(mode, ChatClient(model).prompt("?", output=Invoice)).output == ANA
    assert "cut off" in asked(model, 1)[-1]


def test_a_caller_who_drives_the_run_performs_each_attempt() -> None:
    run = ChatClient(ScriptedChatModel([NO_PRICE, VALID])).prompt("?", output=Invoice).start()
    steps = 0
    while step := run.next():
        run.perform(step)
        steps += 1
    assert steps == 2
    assert run.response.output == ANA


def test_usage_adds_up_over_attempts(mode: str) -> None:
    usage = [Usage(input_tokens=10, output_tokens=1), Usage(input_tokens=20, output_tokens=2)]
    seen = []

    class Outer(Advisor):
        name, order = "outer", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            response = await call_next(request)
            seen.append(response.usage)
            return response

    client = ChatClient(ScriptedChatModel([NO_PRICE, VALID], usage=usage), advisors=[Outer()])
    response = run(mode, client.prompt("?", output=Invoice))
    assert seen == [response.usage] == [Usage(input_tokens=30, output_tokens=3)]


# With tools.


def test_an_answer_that_calls_tools_is_not_validated(mode: str) -> None:
    model = ScriptedChatModel([["I add.", SUM], "3"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?", output=int))
    assert response.output == 3
    assert len(model.requests) == 2


@pytest.mark.parametrize("order", [250, 400])
def test_tools_do_not_run_again_for_another_attempt(mode: str, order: int) -> None:
    model = ScriptedChatModel([SUM, "three", SUM, "four", "3"])
    client = ChatClient(model, tools=[add], advisors=[StructuredOutputAdvisor(int, order=order)])
    response = run(mode, client.prompt("?"))
    assert response.output == 3
    assert [each.content for each in response.tool_results] == ["3", "3"]
    assert asked(model, 2)[:4] == ["?", "", "(results)", "three"]
    assert asked(model, 4)[:6] == ["?", "", "(results)", "", "(results)", "four"]
    roles = [each.role for each in response.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_the_result_of_a_return_direct_tool_is_the_output(mode: str) -> None:
    @tool(return_direct=True)
    def total() -> Invoice:
        """Return the invoice."""
        return ANA

    @tool(return_direct=True)
    def words() -> str:
        """Return words."""
        return "two teas"

    client = ChatClient(ScriptedChatModel([ToolCall("total")]), tools=[total])
    response = run(mode, client.prompt("?", output=Invoice))
    assert (response.output, response.stop_reason) == (ANA, "return_direct")
    model = ScriptedChatModel([ToolCall("words")])
    with pytest.raises(OutputValidationError) as caught:
        run(mode, ChatClient(model, tools=[words]).prompt("?", output=Invoice))
    assert caught.value.response.content == "two teas"
    assert len(model.requests) == 1


def test_the_result_of_a_return_direct_tool_is_not_expected_in_the_form_of_the_provider(mode: str) -> None:
    class Native(ScriptedChatModel):
        def enforces_schema(self, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
            return True

    @tool(return_direct=True)
    def numbers() -> list[int]:
        """Return numbers."""
        return [1, 2]

    model = Native(['{"value": [3]}', ToolCall("numbers")])
    client = ChatClient(model, tools=[numbers])
    assert run(mode, client.prompt("?", output=list[int])).output == [3]
    assert run(mode, client.prompt("?", output=list[int])).output == [1, 2]
    assert all(request.options.output_schema is not None for request in model.requests)


def test_calls_for_the_caller_to_run_have_no_output(mode: str) -> None:
    model = ScriptedChatModel([SUM])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?", output=int, tool_calling=False))
    assert response.tool_calls
    with pytest.raises(RuntimeError, match="has no output"):
        _ = response.output


def test_a_concluding_answer_is_validated_and_not_asked_for_again(mode: str) -> None:
    limits = LoopLimits(max_iterations=1)
    client = ChatClient(ScriptedChatModel([SUM, "3"]), tools=[add], limits=limits)
    response = run(mode, client.prompt("?", output=int))
    assert (response.output, response.stop_reason) == (3, "max_iterations")
    model = ScriptedChatModel([SUM, "three"])
    with pytest.raises(OutputValidationError) as caught:
        run(mode, ChatClient(model, tools=[add], limits=limits).prompt("?", output=int))
    assert caught.value.response.content == "three"


def test_another_attempt_counts_as_an_iteration(mode: str) -> None:
    def client(on_limit: Any) -> ChatClient:
        limits = LoopLimits(max_iterations=1, on_limit=on_limit)
        return ChatClient(ScriptedChatModel(["three", "3"]), tools=[add], limits=limits)

    assert run(mode, client("conclude").prompt("?", output=int)).output == 3
    with pytest.raises(OutputValidationError) as caught:
        run(mode, client("stop").prompt("?", output=int))
    assert (caught.value.response.content, caught.value.attempts) == ("three", 1)
    with pytest.raises(LoopLimitExceeded):
        run(mode, client("raise").prompt("?", output=int))


def test_a_run_that_stops_at_a_limit_with_calls_has_no_final_answer(mode: str) -> None:
    limits = LoopLimits(max_iterations=1, on_limit="stop")
    client = ChatClient(ScriptedChatModel([SUM]), tools=[add], limits=limits)
    with pytest.raises(OutputValidationError, match="there is no final answer") as caught:
        run(mode, client.prompt("?", output=int))
    assert [each.content for each in caught.value.response.tool_results] == ["3"]


def test_a_run_that_is_out_of_time_before_the_first_attempt_has_no_final_answer(mode: str) -> None:
    limits = LoopLimits(max_seconds=1e-9, on_limit="stop")
    model = ScriptedChatModel([])
    with pytest.raises(OutputValidationError, match="after 0 attempts: there is no final answer") as caught:
        run(mode, ChatClient(model, tools=[add], limits=limits).prompt("?", output=int))
    assert caught.value.response.messages == (UserMessage("?"),) or not caught.value.response.messages


# Streams.


def test_chunks_have_the_output_so_far_and_mark_a_new_attempt(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([["Let me add.", SUM], NO_PRICE, VALID]), tools=[add])
    response, chunks = run_chunks(mode, client.prompt("?", output=Invoice))
    assert response.output == ANA
    if mode not in STREAMING_MODES:
        return
    assert "".join(chunk.text for chunk in chunks) == f"Let me add.{NO_PRICE}{VALID}"
    (start,) = [place for place, chunk in enumerate(chunks) if chunk.delta is not None and chunk.delta.restarts]
    assert "".join(chunk.text for chunk in chunks[start:]) == VALID
    partials = [chunk.partial for chunk in chunks[start:] if chunk.text]
    assert partials[:2] == [{}, {"customer": "Ana"}]
    assert partials[-1] == json.loads(VALID)
    with pytest.raises(RuntimeError, match=r"use \.partial"):
        _ = chunks[-1].output


def test_text_beside_tool_calls_is_not_part_of_the_output_so_far(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([['{"customer": ', SUM], VALID]), tools=[add])
    _, chunks = run_chunks(mode, client.prompt("?", output=Invoice))
    final = [chunk.partial for chunk in chunks if chunk.iteration == 2]
    assert final[-1:] == [json.loads(VALID)] * (mode in STREAMING_MODES)


def test_an_advisor_keeps_nothing_of_a_run_that_has_ended(mode: str) -> None:
    advisor = StructuredOutputAdvisor(int, max_attempts=1)
    client = ChatClient(ScriptedChatModel(["3", "three", "1 2 3"]), advisors=[advisor])
    run(mode, client.prompt("?"))
    with pytest.raises(OutputValidationError):
        run(mode, client.prompt("?"))
    with client.prompt("?").stream() as stream:
        next(stream)
        assert len(advisor._streamed) == 1
    assert len(advisor._streamed) == 0


def test_an_outer_advisor_that_holds_chunks_back_delivers_the_valid_answer_only(mode: str) -> None:
    class Guard(Advisor):
        name, order = "guard", 100

        def on_chunk(self, chunk: ChatClientResponse) -> None:
            return None

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request)

    client = ChatClient(ScriptedChatModel([NO_PRICE, VALID]), advisors=[Guard()])
    response, chunks = run_chunks(mode, client.prompt("?", output=Invoice))
    assert response.output == ANA
    assert "".join(chunk.text for chunk in chunks) == (VALID if mode in STREAMING_MODES else "")


def test_runs_at_the_same_time_share_an_advisor(mode: str) -> None:
    client = ChatClient(ScriptedChatModel(["[1, 2]", "[3, 4]"]), advisors=[StructuredOutputAdvisor(list[int])])
    if mode != "stream":
        assert [run(mode, client.prompt("?")).output for _ in range(2)] == [[1, 2], [3, 4]]
        return
    with client.prompt("?").stream() as first, client.prompt("?").stream() as second:
        partials = [(one.partial, other.partial) for one, other in zip(first, second, strict=True)]
    assert partials[-1] == ([1, 2], [3, 4])
    with client.prompt("?").stream():
        pass  # it has not begun


def test_a_response_and_its_chunks_can_be_pickled(mode: str) -> None:
    @dataclass
    class Local:
        number: int

    client = ChatClient(ScriptedChatModel([VALID, '{"number": 3}']))
    response, chunks = run_chunks(mode, client.prompt("?", output=Invoice))
    assert pickle.loads(pickle.dumps(response)).output == ANA
    assert [pickle.loads(pickle.dumps(chunk)).partial for chunk in chunks] == [chunk.partial for chunk in chunks]
    local = run(mode, client.prompt("?", output=Local))
    assert local.output == Local(3)
    with pytest.raises(RuntimeError, match="has no output"):
        _ = pickle.loads(pickle.dumps(local)).output


# What the caller and telemetry see.


def test_a_response_without_output_says_how_to_get_one(mode: str) -> None:
    response = run(mode, ChatClient(ScriptedChatModel(["3"])).prompt("?"))
    with pytest.raises(RuntimeError, match="pass output= to prompt"):
        _ = response.output
    assert response.partial is None


def test_an_answer_that_an_outer_advisor_replaced_is_not_the_output(mode: str) -> None:
    class Censor(Advisor):
        name, order = "censor", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            response = await call_next(request)
            return response.replace(chat_response=ChatResponse(AssistantMessage("I may not say.")))

    response = run(mode, ChatClient(ScriptedChatModel(["3"]), advisors=[Censor()]).prompt("?", output=int))
    with pytest.raises(RuntimeError, match="an advisor replaced the answer"):
        _ = response.output


def test_the_error_and_the_telemetry_contain_no_content(mode: str, telemetry: Telemetry) -> None:
    class Prices(BaseModel):
        by_name: dict[str, Line]

    answer = json.dumps({"by_name": {MARKER: {"item": MARKER, "price": MARKER}}})
    client = ChatClient(ScriptedChatModel([answer, MARKER, answer]), telemetry=telemetry.options)
    with pytest.raises(OutputValidationError) as caught:
        run(mode, client.prompt("?", output=Prices))
    error = caught.value
    assert str(error) == "the output is invalid after 3 attempts: by_name.*.price; see .problems and .response"
    assert error.problems == (f"by_name.{MARKER}.price: must be a number",)
    assert MARKER not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
    for span in telemetry.spans:
        assert MARKER not in everything([span.name, dict(span.attributes or {}), span.status.description])
        assert all(MARKER not in everything(dict(event.attributes or {})) for event in span.events)
    failed = telemetry.one("invoke_agent")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "traced_tools.errors.OutputValidationError"
    assert telemetry.one("advise structured_output").status.description == failed.attributes["error.type"]
    assert sum(span.name.startswith("chat ") for span in telemetry.spans) == 3
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: StructuredOutputAdvisor(int, max_attempts=0), "max_attempts must be at least 1"),
        (lambda: StructuredOutputAdvisor(int, max_attempts=True), "max_attempts must be an int"),
        (lambda: StructuredOutputAdvisor(int, order=0.5), "order must be an int"),  # type: ignore[arg-type]
        (lambda: StructuredOutputAdvisor(int, native="no"), "native must be True"),  # type: ignore[arg-type]
        (lambda: StructuredOutputAdvisor(3), "an object of type int is none"),
        (lambda: ChatClient(ScriptedChatModel([])).prompt("?", output=ChatClient), "ChatClient is none"),
    ],
)
def test_an_invalid_argument_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        attempt()


def test_an_output_and_an_advisor_for_one_request_are_refused() -> None:
    client = ChatClient(ScriptedChatModel([]), advisors=[StructuredOutputAdvisor(int)])
    with pytest.raises(AdvisorChainError, match="pass either output= or a StructuredOutputAdvisor"):
        client.prompt("?", output=int)


# Functions.


def lookup(customer: str) -> str:
    """Return what the model must never reach."""
    raise AssertionError(customer)


class Lookup:
    """An object whose methods are called by nobody but the tool loop."""

    def find(self, customer: str) -> str:
        return lookup(customer)

    def __call__(self, customer: str) -> str:
        return lookup(customer)


async def alookup(customer: str) -> str:
    return lookup(customer)


FUNCTIONS = {
    "a function": lookup,
    "an async function": alookup,
    "a lambda": lambda customer: lookup(customer),
    "a partial": partial(lookup, "Ana"),
    "a method": Lookup().find,
    "a static method": Lookup.find,
    "an object that can be called": Lookup(),
    "a built-in": len,
    "in a list": list[lookup],  # type: ignore[valid-type]
    "in a union": Optional[lookup],  # type: ignore[valid-type]  # noqa: UP045
    "annotated": Annotated[lookup, "x"],  # type: ignore[valid-type]
    "in a mapping": dict[str, lookup],  # type: ignore[valid-type]
    "in a field": TypedDict("Fields", {"field": lookup}),  # type: ignore[misc]
    "a type of functions": Callable[[str], str],
}


def test_a_function_is_not_a_type_and_is_never_called() -> None:
    def check(kind: Any) -> None:
        with pytest.raises(TypeError, match="output must be a type"):
            ChatClient(ScriptedChatModel(['{"customer": "Ana"}'])).prompt("?", output=kind)

    check_each(FUNCTIONS, check)


# Plain words.

PLAIN = [
    (Invoice | str, "I don't know [1]."),
    (str, "I don't know."),
    (str | None, "none of them"),
    (Annotated[int | Annotated[str, Field(min_length=3)], "x"], "twelve"),
]


@pytest.mark.parametrize(("kind", "words"), PLAIN, ids=str)
def test_plain_words_are_a_valid_answer_for_a_text(mode: str, kind: Any, words: str) -> None:
    model = ScriptedChatModel([words])
    response = run(mode, ChatClient(model).prompt("?", output=kind))
    assert (response.output, len(model.requests)) == (words, 1)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Invoice | str, NO_CUSTOMER),
        (Invoice | str, f"Here you are: {NO_CUSTOMER}"),
        (Invoice | str, '{"customer": '),
        (Invoice, "I don't know."),
        (Literal["yes", "no"], "maybe"),
        (Annotated[str, Field(min_length=3)], "no"),
        (date, "2025-01-31"),
    ],
    ids=str,
)
def test_words_that_are_no_text_of_the_type_are_asked_for_again(mode: str, kind: Any, answer: str) -> None:
    with pytest.raises(OutputValidationError):
        run(mode, ChatClient(ScriptedChatModel([answer] * 3)).prompt("?", output=kind))


def test_words_that_are_cut_off_are_asked_for_again(mode: str) -> None:
    cut = ChatResponse(AssistantMessage("I don't"), finish_reason="length")
    response = run(mode, ChatClient(ScriptedChatModel([cut, VALID])).prompt("?", output=Invoice | str))
    assert response.output == ANA


# Types.


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Movie(TypedDict):
    title: str
    year: int


class Tags(RootModel[list[str]]):
    pass


@dataclass
class Point:
    x: int
    y: int = 0


class Place(NamedTuple):
    name: str
    floor: int = 0


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
TYPES: list[tuple[Any, Any]] = [
    (Invoice, ANA),
    (Point, Point(1, 2)),
    (Place, Place("lobby")),
    (Movie, {"title": "Heat", "year": 1995}),
    (Pet, Dog(kind="dog", name="Rex")),
    (list[Pet], [Cat(kind="cat", lives=9)]),
    (Node, Node(name="a", children=[Node(name="b")])),
    (Tags, Tags(["a"])),
    (dict[str, Point], {"a": Point(1)}),
    (int | str, "x"),
    (int | None, None),
    (Literal["yes", "no"], "yes"),
    (Annotated[int, Field(gt=3, json_schema_extra={"examples": [4]})], 4),
    (Color, Color.BLUE),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (date, date(2025, 1, 31)),
    (Decimal, Decimal("1.10")),
    (bool, True),
    (Any, {"value": [1]}),
]


@pytest.mark.parametrize("enforced", [False, True])
@pytest.mark.parametrize(("kind", "value"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_any_type_that_pydantic_validates_can_be_an_output(kind: Any, value: Any, enforced: bool) -> None:
    form: OutputFormat[Any] = OutputFormat(kind, enforced=enforced)
    text = TypeAdapter(kind).dump_json(value).decode()
    written = f'{{"value": {text}}}' if form.is_wrapped else text
    assert form.read(written) == value
    if not enforced:
        assert form.read(f"Here you are [1]:\n```json\n{written}\n```\nAnything else?") == value
        if len(written) > 5 and written[0] in "{[":
            assert form.read(f"Here you are [1]: {written} Anything else?") == value
        return
    assert form.schema["type"] == "object"
    assert isinstance(form.read(f"Here you are: {written}"), InvalidOutput)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
LINES = st.builds(Line, item=st.text(), price=st.floats(allow_nan=False, allow_infinity=False))
OUTPUTS = st.one_of(
    st.tuples(st.just(Any), JSON),
    st.tuples(st.just(list[int]), st.lists(st.integers(-(2**60), 2**60))),
    st.tuples(st.just(str), st.text() | st.text(alphabet='[]{}"a ')),
    st.tuples(st.just(Line), LINES),
    st.tuples(st.just(dict[str, Line]), st.dictionaries(st.text(), LINES, max_size=3)),
)


@given(output=OUTPUTS, enforced=st.booleans(), cut=st.floats(0, 1))
def test_the_json_of_a_value_is_read_as_the_value(output: tuple[Any, Any], enforced: bool, cut: float) -> None:
    kind, value = output
    form: OutputFormat[Any] = OutputFormat(kind, enforced=enforced)
    plain = TypeAdapter(kind).dump_python(value, mode="json")
    text = json.dumps({"value": plain} if form.is_wrapped else plain)
    assert form.read(text) == value
    assert form.read_partial(text) == plain
    form.read_partial(text[: int(len(text) * cut)])  # raises nothing, wherever the text is cut


@given(text=st.text(alphabet='{}[]":,`ab1 \n\ud800'))
def test_any_text_is_an_output_or_has_problems(text: str) -> None:
    for enforced in (False, True):
        form: OutputFormat[list[int]] = OutputFormat(list[int], enforced=enforced)
        found = form.read(text)
        assert isinstance(found, list) or found.problems
        form.read_partial(text)


def test_a_schema_that_the_caller_set_stays_beside_the_instructions() -> None:
    model = ScriptedChatModel(["3"])
    options = ChatOptions(output_schema={"type": "integer"})
    assert ChatClient(model, options=options).prompt("?", output=int).call().output == 3
    assert model.requests[0].options == options
