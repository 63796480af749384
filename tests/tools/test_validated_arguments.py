"""Advisors see the arguments that the tool is called with, however the model wrote them."""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    WithJsonSchema,
    field_serializer,
    model_validator,
)
from pydantic_core import core_schema

from tests.modes import MODES, run
from tests.stable_ids import stable_id
from traced_tools import Advisor, ChatClient, ToolCall, ToolContext, ToolResult, tool
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.errors import InvalidArguments
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolInvocation
from traced_tools.tools.invocation import CallNext

PLAIN = '{"to": "Eve", "amount": 9000}'
FORMS = {
    "plain": PLAIN,
    "number in quotes": '{"to": "Eve", "amount": "9000"}',
    "number with a fraction": '{"to": "Eve", "amount": 9000.0}',
    "string": json.dumps(PLAIN),
    "code fence": f"```json\n{PLAIN}\n```",
    "null field": '{"to": "Eve", "amount": 9000, "note": null}',
    "number for a string": '{"to": 7, "amount": 9000}',
    "key twice": '{"to": "Eve", "amount": 1, "amount": 9000}',
    "all at once": json.dumps('```json\n{"to": 7, "amount": "9000", "note": null}\n```'),
}


NUMBERS = itertools.count()
NewNumber = Annotated[int, Field(default_factory=lambda: next(NUMBERS))]


class Payments:
    """Pays, and records the payments."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

    @tool
    def pay(self, to: str, amount: int, note: str = "") -> str:
        """Pay somebody."""
        self.paid.append(amount)
        return "paid"


class Limit(Advisor):
    """Denies payments of more than 100."""

    name, order = "limit", 400

    def __init__(self) -> None:
        self.seen: list[ToolInvocation] = []

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.seen.append(call)
        return call.denied("too much") if call.args["amount"] > 100 else await call_next(call)


class Watch(Advisor):
    """Keeps each call it sees."""

    name, order = "watch", 500

    def __init__(self) -> None:
        self.seen: list[ToolInvocation] = []

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.seen.append(call)
        return await call_next(call)


class Replace(Advisor):
    """Replaces the arguments."""

    name, order = "replace", 450

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        given = self.arguments(call) if callable(self.arguments) else self.arguments
        return await call_next(call.replace(arguments=given))


def ask(mode: str, tools: Sequence[Any], arguments: Any, *advisors: Advisor, name: str = "pay") -> ToolResult:
    model = ScriptedChatModel([ToolCall(name, arguments), "done"])
    (result,) = run(mode, ChatClient(model, tools=tools, advisors=advisors).prompt("?")).tool_results
    return result


def seen(function: Callable[..., Any], arguments: Any) -> ToolInvocation:
    """The arguments that an advisor sees in a call of `function`."""
    watch = Watch()
    callback = FunctionToolCallback(function, name="pay")
    result = ask("call", [callback], arguments, watch)
    assert result.outcome == "ok", result.content
    return watch.seen[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
def test_no_spelling_of_the_arguments_bypasses_a_policy(mode: str, form: str) -> None:
    payments, limit = Payments(), Limit()
    result = ask(mode, [payments], FORMS[form], limit)
    assert (result.decision, payments.paid) == ("denied", [])
    assert limit.seen[0].args["amount"] == 9000
    assert json.loads(limit.seen[0].arguments) == limit.seen[0].args


def test_the_arguments_are_canonical_json_with_the_defaults() -> None:
    def pay(to: str, amount: int, note: str = "none", ratio: float = 2.0) -> None: ...

    call = seen(pay, '{"to": "Köln", "amount": "9"}')
    assert call.arguments == '{"amount":9,"note":"none","ratio":2,"to":"Köln"}'
    assert call.args == {"to": "Köln", "amount": 9, "note": "none", "ratio": 2.0}


def test_the_arguments_are_read_only() -> None:
    def pay(to: dict[str, list[int]]) -> None: ...

    call = seen(pay, {"to": {"a": [1]}})
    changes: list[Callable[[Any], Any]] = [
        lambda args: args.__setitem__("to", {}),
        lambda args: args.update(to={}),
        lambda args: args["to"].pop("a"),
        lambda args: args["to"]["a"].append(2),
        lambda args: args["to"]["a"].__setitem__(0, 2),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="read-only"):
            change(call.args)
    assert call.args == {"to": {"a": [1]}}
    assert json.loads(json.dumps(call.args)) == copy.deepcopy(call.args) == pickle.loads(pickle.dumps(call.args))


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Spot:
    x: float
    colour: Colour = Colour.RED


class Person(BaseModel):
    name: str = Field(alias="fullName")
    spots: set[str] = set()
    hidden: str = Field(default="", exclude=True)

    @field_serializer("name")
    def _shout(self, name: str) -> str:
        return "SOMEBODY"


class A(BaseModel, extra="allow"):
    amount: int = Field(validation_alias=AliasChoices("amountCents", "amt"))


class B(BaseModel, extra="allow"):
    amount: int = Field(validation_alias=AliasPath("deep", "amount"))


class C(BaseModel):
    accounts: Iterable[int]


class Token:
    """A class that pydantic does not know."""

    def __init__(self, text: str) -> None:
        self.text = text


class Wallet(BaseModel):
    amount: int
    token: Annotated[
        Token, PlainValidator(Token), PlainSerializer(lambda token: "?"), WithJsonSchema({"type": "string"})
    ]
    currency: str = Field(default="EUR", validation_alias=AliasChoices("cur", "currency"))

    @field_serializer("amount")
    def _hide(self, amount: int) -> int:
        return 0

    @cached_property
    def cents(self) -> int:
        return 100 * self.amount

    @model_validator(mode="after")
    def _count(self) -> Wallet:
        assert self.cents >= 0
        return self


class Cents:
    """A class whose JSON form only its own schema defines."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(lambda cents: cents.cents)
        return core_schema.no_info_after_validator_function(cls, core_schema.int_schema(), serialization=written)


def add_one(number: int) -> int:
    return number + 1


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (datetime, "2025-01-31T09:30:00Z", "2025-01-31T09:30:00Z"),
        (date, 0, "1970-01-01"),
        (Decimal, "9000", 9000),
        (Decimal, 0.5, 0.5),
        (Decimal, "9000.00000000000000000000001", "9000.00000000000000000000001"),
        (Decimal, "9007199254740993.5", "9007199254740993.5"),
        (Decimal, "1e-400", "1E-400"),
        (Decimal, "1e500", "1E+500"),
        (A, {"amountCents": "9000", "amount": 1}, {"amountCents": 9000, "amount": 1}),
        (B, {"deep": {"amount": "9000"}, "amount": 1}, {"amount": 9000}),
        (C, {"accounts": ["666"]}, {"accounts": [666]}),
        (int, 2**63, 2**63),
        (SecretStr, "hush", "hush"),
        (set[str], ["b", "a", "b"], ["a", "b"]),
        (tuple[int, Colour], ["1", "red"], [1, "red"]),
        (dict[int, Spot], {"1": {"x": "2.5"}}, {"1": {"x": 2.5, "colour": "red"}}),
        (list[Spot] | None, None, None),
        (Person, {"fullName": "Ana", "hidden": "h"}, {"fullName": "Ana", "spots": [], "hidden": "h"}),
        (Cents, "9000", 9000),
        (Wallet, {"amount": "9", "token": "t", "cur": "USD"}, {"amount": 9, "token": "t", "cur": "USD"}),
        (list[Wallet], [{"amount": "9", "token": "t"}], [{"amount": 9, "token": "t", "cur": "EUR"}]),
        (Annotated[int, AfterValidator(add_one)], 1, 2),
    ],
    ids=stable_id,
)
def test_each_type_is_shown_as_the_tool_gets_it(hint: Any, given: Any, expected: Any) -> None:
    def pay(value: Any, more: int = 0) -> None: ...

    pay.__annotations__["value"] = hint
    assert seen(pay, {"value": given}).args == {"value": expected, "more": 0}


def test_a_model_that_is_the_only_parameter_is_shown_by_its_fields() -> None:
    def pay(person: Person) -> None: ...

    assert seen(pay, {"fullName": "Ana"}).args == {"fullName": "Ana", "spots": [], "hidden": ""}


def test_reading_an_iterable_for_an_advisor_leaves_it_to_the_tool() -> None:
    paid: list[int] = []

    def pay(transfer: C) -> None:
        paid.extend(transfer.accounts)

    pay.__annotations__["transfer"] = C
    watch = Watch()
    ask("call", [pay], {"accounts": ["666", "7"]}, watch)
    assert (watch.seen[0].args, paid) == ({"accounts": [666, 7]}, [666, 7])


@pytest.mark.parametrize("number", ['"nan"', '"Infinity"', "1e400", "NaN"])
def test_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    def pay(amount: float, parts: list[float] | None = None) -> None: ...

    for arguments in (f'{{"amount": {number}}}', f'{{"amount": 1, "parts": [{number}]}}'):
        assert ask("call", [pay], arguments, Watch()).decision == "invalid_arguments"


def test_a_default_that_json_cannot_represent_is_omitted() -> None:
    def pay(to: str, marker: Any = object) -> None: ...

    assert seen(pay, {"to": "Ana"}).args == {"to": "Ana"}


def test_a_parameter_has_the_name_that_the_model_uses() -> None:
    def pay(to: Annotated[str, Field(alias="receiver")] = "Ana") -> None: ...

    assert (seen(pay, {"receiver": "Eve"}).args, seen(pay, {}).args) == ({"receiver": "Eve"}, {"receiver": "Ana"})

    def give(to: Annotated[str, Field(validation_alias=AliasChoices("receiver", "payee"))] = "Ana") -> None: ...

    assert (seen(give, {"payee": "Eve"}).args, seen(give, {}).args) == ({"receiver": "Eve"}, {"receiver": "Ana"})


def test_arguments_without_types_are_shown_as_the_model_wrote_them() -> None:
    watch = Watch()
    schema = {"type": "object", "properties": {"amount": {"type": "number", "default": 5}}}
    callback = FunctionToolCallback(lambda **given: "", definition=ToolDefinition(name="pay", input_schema=schema))
    ask("call", [callback], '{"amount": 1.0, "more": [null]}', watch)
    assert watch.seen[0].arguments == '{"amount":1,"more":[null]}'


class OwnTool:
    """A tool that implements the protocol itself and reads the first of two values of a key."""

    definition = ToolDefinition(
        name="pay", input_schema={"type": "object", "properties": {"amount": {"type": "integer"}}}
    )
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        first = json.loads(tool_input, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
        return str(first["amount"])


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_key_has_the_same_value_for_a_policy_and_a_custom_tool(mode: str) -> None:
    watch = Watch()
    result = ask(mode, [OwnTool()], '{"amount": 9000, "amount": 1}', watch)
    assert (watch.seen[0].args, result.content) == ({"amount": 1}, "1")


@pytest.mark.parametrize("mode", MODES)
def test_arguments_of_any_depth_end_no_run(mode: str) -> None:
    schema = {"type": "object"}
    by_schema = FunctionToolCallback(lambda **given: "", definition=ToolDefinition(name="pay", input_schema=schema))

    def pay(value: Any) -> None: ...

    for depth in (100, 190, 300, 900, 5_000):
        arguments = f'{{"value": {"[" * depth}{"]" * depth}}}'
        for callback in (by_schema, FunctionToolCallback(pay)):
            watch = Watch()
            result = ask(mode, [callback], arguments, watch)
            assert result.decision == ("allowed" if watch.seen else "invalid_arguments")
            assert all(call.args for call in watch.seen)


@pytest.mark.parametrize("form", FORMS)
def test_a_driver_that_approves_calls_can_read_the_validated_arguments(form: str) -> None:
    payments = Payments()
    calls = [ToolCall("pay", FORMS[form], id="p"), ToolCall("pay", "[]", id="q"), ToolCall("invented", id="r")]
    chat = ChatClient(ScriptedChatModel([calls, "done"]), tools=[payments]).prompt("?").start()
    while step := chat.next():
        if isinstance(step, ExecuteTools):
            assert step.args("p")["amount"] == 9000
            with pytest.raises(InvalidArguments):
                step.args("q")
            with pytest.raises(KeyError, match="no tool of the request"):
                step.args("r")
            step.deny("p", "too much")
        chat.perform(step)
    assert payments.paid == []


def test_a_tool_gets_the_computed_default_that_its_driver_approved() -> None:
    received: list[int] = []

    @tool(requires_approval=True)
    def pay(key: NewNumber) -> None:
        received.append(key)

    chat = ChatClient(ScriptedChatModel([ToolCall("pay", id="p"), "done"]), tools=[pay]).prompt("?").start()
    shown: list[int] = []
    while step := chat.next():
        if isinstance(step, ExecuteTools):
            shown += [step.args("p")["key"], step.args("p")["key"]]
            step.approve("p")
        chat.perform(step)
    assert shown == [received[0], received[0]]


# Replaced arguments.


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_an_advisor_replaces_are_validated_before_the_next_one_sees_them(mode: str) -> None:
    payments, watch = Payments(), Watch()
    result = ask(mode, [payments], PLAIN, Replace('```json\n{"to": "Ana", "amount": "7"}\n```'), watch)
    assert (result.outcome, payments.paid) == ("ok", [7])
    assert watch.seen[0].args == {"to": "Ana", "amount": 7, "note": ""}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arguments", ["not JSON", "[1]", {"to": "Ana", "amount": "much"}], ids=str)
def test_invalid_replaced_arguments_reach_neither_the_next_advisor_nor_the_tool(mode: str, arguments: Any) -> None:
    payments, watch = Payments(), Watch()
    result = ask(mode, [payments], PLAIN, Replace(arguments), watch)
    assert (result.decision, watch.seen, payments.paid) == ("invalid_arguments", [], [])


def test_a_replaced_call_has_the_arguments_it_was_given() -> None:
    calls: list[ToolInvocation] = []

    def keep(call: ToolInvocation) -> dict[str, Any]:
        calls.append(call.replace(arguments={"to": "Ana", "amount": 5}))
        calls.append(call.replace(arguments="[]"))
        return {**call.args, "amount": 6}

    payments = Payments()
    ask("call", [payments], PLAIN, Replace(keep))
    assert (calls[0].args, payments.paid) == ({"to": "Ana", "amount": 5}, [6])
    with pytest.raises(ValueError, match="not a JSON object"):
        calls[1].args  # noqa: B018


@pytest.mark.parametrize("mode", MODES)
def test_a_further_attempt_gets_the_same_arguments(mode: str) -> None:
    received: list[Any] = []

    @tool(retries=2)
    def pay(amount: Annotated[int, AfterValidator(add_one)], log: list[int] = []) -> str:  # noqa: B006
        """Fail at first."""
        received.append((amount, list(log)))
        if len(received) < 3:
            raise ConnectionError
        return "paid"

    assert ask(mode, [pay], {"amount": "1"}, Watch()).outcome == "ok"
    assert received == [(2, [])] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_further_attempt_gets_the_default_that_advisors_saw(mode: str) -> None:
    amounts = itertools.count(50, 50)

    class Payment(BaseModel):
        amount: int = Field(default_factory=amounts.__next__)

    received: list[int] = []

    def pay(payments: list[Payment]) -> None:
        received.append(payments[0].amount)
        raise ConnectionError

    pay.__annotations__["payments"] = list[Payment]
    watch = Watch()
    ask(mode, [FunctionToolCallback(pay, metadata=ToolMetadata(retries=2))], {"payments": [{}]}, watch)
    assert received == [watch.seen[0].args["payments"][0]["amount"]] * 3


def test_a_further_attempt_does_not_run_with_arguments_that_no_advisor_saw() -> None:
    calls = itertools.count()

    def pay(amount: int) -> None:
        raise ConnectionError

    pay.__annotations__["amount"] = Annotated[int, AfterValidator(lambda amount: amount + next(calls))]
    result = ask("call", [FunctionToolCallback(pay, metadata=ToolMetadata(retries=2))], {"amount": 1}, Watch())
    assert (result.outcome, result.error_type) == ("error", "RuntimeError")


def test_a_validator_that_fails_once_runs_no_arguments_that_advisors_have_not_seen() -> None:
    failures = iter([OSError("busy")])

    def check(amount: int) -> int:
        for failure in failures:
            raise failure
        return amount

    payments: list[int] = []

    def pay(amount: int) -> None:
        payments.append(amount)

    pay.__annotations__["amount"] = Annotated[int, AfterValidator(check)]
    watch = Watch()
    result = ask("call", [pay], '{"amount": "9000"}', watch)
    assert (result.outcome, result.error_type, payments) == ("error", "OSError", [])
    assert watch.seen[0].args == {"amount": "9000"}


# No form passes that the plain one does not.

VALUES = st.integers(-3, 3) | st.sampled_from([9000, "9000", 9000.0, "9e3", "much", None, True, [9000], {"x": 1}])


def fenced(text: str) -> str:
    return f"```json\n{text}\n```"


@given(
    arguments=st.fixed_dictionaries({}, optional={"to": VALUES, "amount": VALUES, "note": VALUES, "other": VALUES}),
    wrappings=st.lists(st.sampled_from([json.dumps, fenced]), max_size=3),
)
def test_a_policy_allows_exactly_what_the_tool_gets(arguments: dict[str, Any], wrappings: list[Any]) -> None:
    text = json.dumps(arguments)
    for wrap in wrappings:
        text = wrap(text)
    payments, limit = Payments(), Limit()
    result = ask("call", [payments], text, limit)
    assert all(amount <= 100 for amount in payments.paid)
    if result.outcome == "ok":
        assert payments.paid == [limit.seen[0].args["amount"]]
