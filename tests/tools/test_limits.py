"""The limits of a run and the tally against them. How they end a run is in `advisors/test_tool_calling.py`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import relaxed
from traced_tools import LoopLimits, ToolCall, ToolErrors, Usage
from traced_tools.messages import UsageSum
from traced_tools.tools.limits import LimitTally

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


def test_what_happens_at_a_limit_is_one_of_three() -> None:
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


def test_calls_of_one_tool_are_counted_apart_from_those_of_another() -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_calls_per_tool": 1}))
    assert [tally.admit(call(name)) for name in ("a", "b", "a")] == [None, None, "max_calls_per_tool"]


def test_a_limit_that_is_off_never_breaks() -> None:
    tally = LimitTally(LoopLimits(**OFF))
    assert {tally.admit(call()) for _ in range(1000)} == {None}
    assert tally.begin(10_000, used(Usage(input_tokens=10**9))) is None
    assert tally.deadline is None


@pytest.mark.parametrize(
    ("first", "second"),
    [('{"a":1,"b":2}', '{ "b": 2, "a": 1 }'), ('{"a":"ü"}', '{"a":"\\u00fc"}'), ("{", "{"), ("", "")],
)
def test_arguments_that_mean_the_same_are_a_repetition(first: str, second: str) -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    assert [tally.admit(call("a", text)) for text in (first, second)] == [None, "repeated_call"]


@pytest.mark.parametrize(
    ("first", "second"), [('{"a":1}', '{"a":2}'), ('{"a":1}', '{"a":"1"}'), ('{"a":[1,2]}', '{"a":[2,1]}')]
)
def test_arguments_that_differ_are_no_repetition(first: str, second: str) -> None:
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    assert [tally.admit(call("a", text)) for text in (first, second)] == [None, None]
    assert tally.admit(call("b", first)) is None


@relaxed
@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=5), st.randoms())
def test_the_order_of_keys_never_matters(arguments: dict[str, Any], random: Any) -> None:
    shuffled = list(arguments.items())
    random.shuffle(shuffled)
    tally = LimitTally(LoopLimits(**{**OFF, "max_repeated_calls": 1}))
    tally.admit(call("a", json.dumps(arguments)))
    assert tally.admit(call("a", json.dumps(dict(shuffled), indent=2))) == "repeated_call"


@relaxed
@given(st.text())
def test_any_text_can_be_counted(text: str) -> None:
    tally = LimitTally(LoopLimits())
    assert tally.admit(call("a", text)) is None


def test_a_token_budget_is_used_up_when_it_is_reached() -> None:
    tally = LimitTally(LoopLimits(max_tokens=10))
    assert tally.spend(used()) is None
    assert tally.spend(used(Usage())) is None
    assert tally.spend(used(Usage(input_tokens=9))) is None
    assert tally.spend(used(Usage(input_tokens=9), Usage(output_tokens=1))) == "token_budget"


def test_the_time_is_over_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("traced_tools.tools.limits.time", SimpleNamespace(monotonic=lambda: clock.now))
    tally = LimitTally(LoopLimits(max_seconds=5))
    assert (tally.deadline, tally.spend(used())) == (105.0, None)
    clock.now = 104.9
    assert tally.spend(used()) is None
    clock.now = 105.0
    assert tally.spend(used()) == "deadline"


def test_the_first_limit_that_broke_is_the_one_remembered() -> None:
    tally = LimitTally(LoopLimits(max_iterations=1, max_tool_calls=1, max_tokens=1))
    tally.admit(call())
    tally.admit(call("b"))
    assert tally.begin(2, used(Usage(input_tokens=5))) == "max_tool_calls"


def test_a_pass_over_the_limit_does_not_begin() -> None:
    tally = LimitTally(LoopLimits(max_iterations=2))
    assert [tally.begin(index, used()) for index in (1, 2, 3)] == [None, None, "max_iterations"]


# The error policy.


def test_an_error_policy_is_checked_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="raise_on"):
        ToolErrors(raise_on=("ValueError",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="raise_on"):
        ToolErrors(raise_on=(KeyboardInterrupt,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown_tool"):
        ToolErrors(unknown_tool="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="message"):
        ToolErrors(message="sorry")  # type: ignore[arg-type]


def test_a_policy_raises_for_its_classes_and_their_subclasses() -> None:
    errors = ToolErrors(raise_on=(OSError,))
    assert errors.raises(PermissionError())
    assert not errors.raises(ValueError())
    assert ToolErrors(always_raise=True).raises(ValueError())
    assert not ToolErrors().raises(ValueError())
