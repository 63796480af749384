"""The limits of a run and their tally. How they end a run is in `test_limit_endings.py`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools import LoopLimits, ToolCall, Usage
from traced_tools.core.limits import LimitTally
from traced_tools.core.messages import UsageSum

FIELDS = ("max_iterations", "max_tool_calls", "max_calls_per_tool", "max_repeated_calls", "max_tokens", "max_seconds")
OFF: dict[str, Any] = dict.fromkeys(FIELDS)


def used(*usages: Usage) -> UsageSum:
    total = UsageSum()
    for usage in usages:
        total.add(usage)
    return total


def call(name: str = "a", arguments: Any = "{}") -> ToolCall:
    return ToolCall(name, arguments)


def test_the_defaults_are_those_of_the_contract() -> None:
    limits = LoopLimits()
    assert [getattr(limits, field) for field in FIELDS] == [50, 150, 40, 3, None, None]
    assert limits.on_limit == "conclude"


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_is_above_zero(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        LoopLimits(**{field: value})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["5", True, [1]])
def test_a_limit_is_a_number(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} must be a number or None"):
        LoopLimits(**{field: value})


def test_a_limit_is_a_number_that_can_be_compared() -> None:
    with pytest.raises(ValueError, match="max_seconds"):
        LoopLimits(max_seconds=float("nan"))


def test_on_limit_is_one_of_three_values() -> None:
    with pytest.raises(ValueError, match="'conclude', 'stop' or 'raise'"):
        LoopLimits(on_limit="explode")  # type: ignore[arg-type]


def test_limits_cannot_be_changed() -> None:
    limits: Any = LoopLimits()
    with pytest.raises(AttributeError):
        limits.max_tokens = 5


@pytest.mark.parametrize("field", ["max_tool_calls", "max_calls_per_tool", "max_repeated_calls"])
def test_a_limit_of_n_calls_allows_n(field: str) -> None:
    tally = LimitTally(LoopLimits(**{**OFF, field: 3}))
    assert [tally.admit(call()) is None for _ in range(5)] == [True] * 3 + [False] * 2
    assert tally.broken == {"max_repeated_calls": "repeated_call"}.get(field, field)


def test_the_calls_of_each_tool_are_counted_separately() -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_calls_per_tool": 1}))
    assert [tally.admit(call(name)) for name in ("a", "b", "a")] == [None, None, "max_calls_per_tool"]


def test_a_limit_that_is_off_is_never_reached() -> None:
    tally = LimitTally(LoopLimits(**OFF))
    assert {tally.admit(call()) for _ in range(1000)} == {None}
    assert tally.limit_before(10_000, used(Usage(input_tokens=10**9))) is None
    assert tally.deadline is None


# Single tools.


def test_single_tools_have_limits_of_their_own() -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_calls_per_tool": 2, "max_calls_of": {"a": 1, "b": 3}}))
    counts = {name: [tally.admit(call(name)) is None for _ in range(5)].count(True) for name in "abc"}
    assert counts == {"a": 1, "b": 3, "c": 2}


def test_a_tool_without_a_limit_of_its_own_counts_toward_the_total() -> None:
    limits = LoopLimits(**{**OFF, "max_tool_calls": 4, "max_calls_per_tool": 1, "max_calls_of": {"a": None}})
    tally = LimitTally(limits)
    assert [tally.admit(call("a")) for _ in range(5)] == [None] * 4 + ["max_tool_calls"]
    assert limits.calls_of("a") is None
    assert limits.calls_of("b") == 1


def test_a_single_tool_is_limited_where_others_are_not() -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_calls_of": {"a": 1}}))
    assert {tally.admit(call("b")) for _ in range(100)} == {None}
    assert [tally.admit(call("a")) for _ in range(2)] == [None, "max_calls_per_tool"]
    assert tally.broken_by == "a"


def test_later_changes_of_the_mapping_do_not_change_the_limits() -> None:
    most: dict[str, int | None] = {"a": 1}
    limits = LoopLimits(max_calls_of=most)
    most["a"] = None
    assert limits.calls_of("a") == 1
    assert limits == LoopLimits(max_calls_of={"a": 1})
    assert hash(limits) == hash(LoopLimits(max_calls_of={"b": 1}))


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_is_switched_off_by_none_and_not_by_a_number(most: int) -> None:
    for settings in ({"max_calls_of": {"a": most}}, {"max_calls_per_tool": most}, {"max_tool_calls": most}):
        with pytest.raises(ValueError, match="must be above 0, or None for no limit"):
            LoopLimits(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ({"a": "5"}, r"max_calls_of\['a'\] must be a number or None"),
        ({"a": 1.5}, r"max_calls_of\['a'\] must be an int or None"),
        ({"a": True}, r"max_calls_of\['a'\]"),
        ({5: 1}, "a name in max_calls_of must be a str"),
        (["a"], "max_calls_of must be a mapping"),
        (None, "max_calls_of must be a mapping"),
    ],
    ids=repr,
)
def test_limits_of_single_tools_are_numbers_by_name(value: Any, argument: str) -> None:
    with pytest.raises(TypeError, match=argument):
        LoopLimits(max_calls_of=value)


@pytest.mark.parametrize("field", ["max_iterations", "max_tool_calls", "max_calls_per_tool", "max_repeated_calls"])
def test_limits_of_counts_are_integers(field: str) -> None:
    with pytest.raises(TypeError, match=f"{field} must be an int or None"):
        LoopLimits(**{field: 2.5})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_calls_per_tool", "max_tool_calls"])
def test_each_limit_of_calls_can_be_switched_off(field: str) -> None:
    other = {"max_calls_per_tool": "max_tool_calls", "max_tool_calls": "max_calls_per_tool"}[field]
    tally = LimitTally(LoopLimits(**{field: None, "max_repeated_calls": None}))
    assert {tally.admit(call()) for _ in range(200)} == {None, other}


def test_the_tool_that_reached_a_limit_is_named_only_for_limits_of_single_tools() -> None:
    for field, name in (("max_calls_per_tool", "a"), ("max_repeated_calls", "a"), ("max_tool_calls", None)):
        tally = LimitTally(LoopLimits(**{**OFF, field: 1}))
        tally.admit(call("a"))
        tally.admit(call("a"))
        tally.admit(call("a"))
        assert tally.broken_by == name


# The same call again.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }'),
        ('{"a":{"x":1,"y":[{"p":1,"q":2}]}}', '{"a":{"y":[{"q":2,"p":1}],"x":1}}'),
        ('{"a":"ü"}', '{"a":"\\u00fc"}'),
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":100}', '{"a":1e2}'),
        ('{"a":0}', '{"a":-0.0}'),
        ('{"a":0.5}', '{"a":5e-1}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ("", ""),
        ("", "{}"),
        (" \n", "null"),
        ("null", "{ }"),
        ('{"a":1}', '"{\\"a\\": 1}"'),
        ('{"a":1}', '```json\n{"a": 1}\n```'),
        ('```{"a":1}```', '"```{\\"a\\":1}```"'),
        ("{", "{"),
        ("{", " {\n"),
        ('{"a":1e999}', '{"a": 1e999}'),
        ('{"a":' + "9" * 5_000 + "}", '{"a":' + "9" * 5_000 + "}"),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=lambda text: text[:40],
)
def test_equal_arguments_in_different_forms_are_a_repetition(first: str, second: str) -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    assert [tally.admit(call("a", text)) for text in (first, second)] == [None, "repeated_call"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"a":1}', '{"a":2}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":0}', '{"a":false}'),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":"x"}', '{"a":"X"}'),
        ('{"a":"x"}', '{"a":"x "}'),
        ('{"a":"é"}', '{"a":"e\u0301"}'),
        ('{"a":{}}', '{"a":null}'),
        ('{"a":"{}"}', '{"a":{}}'),
        ('{"a":1}', '{"a":1,"b":null}'),  # whether b may be left out, only its tool knows
        ("{", "}"),
        ("{}", "[]"),
        ('{"a":12345678901234567890}', '{"a":12345678901234567891}'),
    ],
)
def test_different_arguments_are_not_a_repetition(first: str, second: str) -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    assert [tally.admit(call("a", text)) for text in (first, second)] == [None, None]
    assert tally.admit(call("b", first)) is None


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=5), st.randoms())
def test_the_order_of_keys_never_matters(arguments: dict[str, Any], random: Any) -> None:
    shuffled = list(arguments.items())
    random.shuffle(shuffled)
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    tally.admit(call("a", json.dumps(arguments)))
    assert tally.admit(call("a", json.dumps(dict(shuffled), indent=2))) == "repeated_call"


@given(st.text())
def test_arguments_of_any_text_can_be_counted(text: str) -> None:
    tally = LimitTally(LoopLimits())
    assert tally.admit(call("a", text)) is None


def test_a_token_budget_is_used_up_when_it_is_reached() -> None:
    tally = LimitTally(LoopLimits(max_tokens=10))
    assert tally.exhausted_budget(used()) is None
    assert tally.exhausted_budget(used(Usage())) is None
    assert tally.exhausted_budget(used(Usage(input_tokens=9))) is None
    assert tally.exhausted_budget(used(Usage(input_tokens=9), Usage(output_tokens=1))) == "token_budget"


def test_the_time_limit_is_reached_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("traced_tools.core.limits.time", SimpleNamespace(monotonic=lambda: clock.now))
    tally = LimitTally(LoopLimits(max_seconds=5))
    assert (tally.deadline, tally.exhausted_budget(used())) == (105.0, None)
    clock.now = 104.9
    assert tally.exhausted_budget(used()) is None
    clock.now = 105.0
    assert tally.exhausted_budget(used()) == "deadline"


def test_the_first_limit_that_was_reached_is_recorded() -> None:
    tally = LimitTally(LoopLimits(max_iterations=1, max_tool_calls=1, max_tokens=1))
    tally.admit(call())
    tally.admit(call("b"))
    assert tally.limit_before(2, used(Usage(input_tokens=5))) == "max_tool_calls"


def test_an_iteration_over_the_limit_does_not_start() -> None:
    tally = LimitTally(LoopLimits(max_iterations=2))
    assert [tally.limit_before(index, used()) for index in (1, 2, 3)] == [None, None, "max_iterations"]
