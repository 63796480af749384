"""The limits of a run, and the tally that enforces them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from traced_tools.core.checks import expect, expect_positive
from traced_tools.core.conversation import NOT_RUN, exchanges_of_run
from traced_tools.core.enums import StopReason
from traced_tools.core.messages import Message, ToolCall, ToolResultPart, Usage, UsageSum
from traced_tools.core.unwrapping import unwrap_arguments

if TYPE_CHECKING:
    from traced_tools.core.tool_result import ToolResult

_COUNTS = (
    *("max_iterations", "max_tool_calls", "max_calls_per_tool", "max_repeated_calls", "max_tokens"),
    "max_consecutive_errors",
)


@dataclass(frozen=True)
class LoopLimits:
    """The limits of a run; None switches a limit off.

    Args:
        max_iterations: iterations of the loop, each one model call and its tool calls.
        max_tool_calls: tool calls that models request, including those of nested runs so far.
        max_calls_per_tool: calls of any one tool.
        max_repeated_calls: calls of a tool with the same arguments while its result stays the same. Identical calls in
            one answer count as one, and calls of tools with `repeatable=True` do not count.
        max_tokens: input and output tokens, including those of nested runs, if the provider reports them.
        max_seconds: seconds since the run began.
        max_calls_of: limits by tool name that replace `max_calls_per_tool`; None for no limit of that tool's calls.
        on_limit: what happens when the run reaches a limit. `conclude` asks the model once more, without tools, in an
            iteration beyond `max_iterations`; `stop` returns what the run has; `raise` raises
            `LoopLimitExceeded`. A blank concluding answer stays blank.
        max_consecutive_errors: iterations in a row in which every call failed or was refused. An iteration with one
            success restarts the count.

    The response's `stop_reason` names the limit: `max_iterations`, `max_tool_calls`, `max_calls_per_tool`,
    `repeated_call`, `token_budget`, `deadline` or `consecutive_errors`.
    """

    max_iterations: int | None = 50
    max_tool_calls: int | None = 150
    max_calls_per_tool: int | None = 40
    max_repeated_calls: int | None = 3
    max_tokens: int | None = None
    max_seconds: float | None = None
    on_limit: Literal["conclude", "stop", "raise"] = "conclude"
    max_calls_of: Mapping[str, int | None] = field(default_factory=dict, hash=False)
    max_consecutive_errors: int | None = None

    def __post_init__(self) -> None:
        expect_positive("max_seconds", self.max_seconds)
        if self.max_seconds is not None:
            object.__setattr__(self, "max_seconds", float(self.max_seconds))  # the span's attribute is a double
        for name in _COUNTS:
            _expect_count(name, getattr(self, name))
        expect("max_calls_of", self.max_calls_of, Mapping, "a mapping of tools' names to numbers")
        object.__setattr__(self, "max_calls_of", dict(self.max_calls_of))
        for tool, most in self.max_calls_of.items():
            expect("a name in max_calls_of", tool, str, "a str")
            _expect_count(f"max_calls_of[{tool!r}]", most)
        if self.on_limit not in ("conclude", "stop", "raise"):
            raise ValueError("on_limit must be 'conclude', 'stop' or 'raise'")

    def calls_of(self, tool: str) -> int | None:
        """Return how many calls of the tool are allowed; None for no limit."""
        return self.max_calls_of.get(tool, self.max_calls_per_tool)


def _expect_count(argument: str, value: object) -> None:
    expect_positive(argument, value)  # type: ignore[arg-type]  # it raises for anything but a number
    expect(argument, value, (int, type(None)), "an int or None")


DEFAULT_LIMITS = LoopLimits()


class _Repetition:
    """Identical calls since their result last changed: their count, the last answer with one, the last digest."""

    __slots__ = ("answer", "calls", "digest")

    def __init__(self) -> None:
        self.answer: object = None
        self.calls = 0
        self.digest: int | None = None


class LimitTally:
    """Counts the iterations, calls, errors and time of one run against its limits.

    Attributes:
        broken: the first limit that the run reached, or None.
        broken_by: the name of the tool whose call reached it; None for a limit that is not about single tools.
        deadline: when the run's time ends, on the clock of `time.monotonic()`; None without a limit.
    """

    def __init__(self, limits: LoopLimits) -> None:
        self.limits = limits
        self.broken: StopReason | None = None
        self.broken_by: str | None = None
        self._began = time.monotonic()
        self.deadline = None if limits.max_seconds is None else self._began + limits.max_seconds
        self._calls = 0
        self._errors = 0  # iterations in a row in which every call failed or was refused
        self._per_tool: Counter[str] = Counter()
        self._repetitions: dict[
            tuple[str, str], _Repetition
        ] = {}  # by tool name and arguments, as written and canonical

    def admit(
        self,
        call: ToolCall,
        *,
        answer: object = None,
        repeatable: bool = False,
        additional: Collection[str] = (),
        nested: int = 0,
    ) -> StopReason | None:
        """Count a requested call; return the limit that it exceeds, or None if it may run.

        Args:
            call: the requested call.
            answer: identifies the model's answer by identity; identical calls in one answer count once.
            repeatable: whether the tool may be called with the same arguments any number of times.
            additional: the names of arguments that do not make a call another one, such as the model's reason.
            nested: how many calls nested runs have requested so far.
        """
        limits = self.limits
        self._calls += 1
        self._per_tool[call.name] += 1
        max_repeated = None if repeatable else limits.max_repeated_calls
        if max_repeated is not None and self._count_repetitions(call, answer, additional) > max_repeated:
            return self._break("repeated_call", call.name)
        most = limits.calls_of(call.name)
        if most is not None and self._per_tool[call.name] > most:
            return self._break("max_calls_per_tool", call.name)
        if limits.max_tool_calls is not None and self._calls + nested > limits.max_tool_calls:
            return self._break("max_tool_calls")
        return None

    def _count_repetitions(self, call: ToolCall, answer: object, additional: Collection[str]) -> int:
        key = (call.name, call.arguments)
        repetition = self._repetitions.get(key)
        if repetition is None:
            canonical = (call.name, _canonical(call.arguments, additional))
            repetition = self._repetitions[key] = self._repetitions.setdefault(canonical, _Repetition())
        if answer is None or repetition.answer is not answer:
            repetition.answer = answer
            repetition.calls += 1
        return repetition.calls

    def record_seconds(self, seconds: float) -> None:
        """Count time that the run took before, in another process."""
        self._began -= seconds
        if self.deadline is not None:
            self.deadline -= seconds

    def seconds(self) -> float:
        """Return how long the run has taken until now."""
        return time.monotonic() - self._began

    def record_result(self, call: ToolCall, result: ToolResult | ToolResultPart) -> None:
        """Record the result of a call that ran; if it differs from the last one, restart the count of identical calls.

        Only a digest of the result is stored.
        """
        repetition = self._repetitions.get((call.name, call.arguments))
        if repetition is None:  # the limit is off, or the tool is repeatable
            return
        digest = _digest(result)
        if repetition.digest is not None and repetition.digest != digest:
            repetition.calls = 1
        repetition.digest = digest

    def record_iteration(self, failed: bool) -> None:
        """Record the end of an iteration, and whether all its calls failed or were refused."""
        self._errors = self._errors + 1 if failed else 0

    def record_conversation(
        self,
        messages: Sequence[Message],
        repeatable: Container[str],
        additional: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> int:
        """Count the calls since the last user message as if they were admitted; return the number of iterations.

        Args:
            messages: the conversation that was sent.
            repeatable: the names of the tools that may be called with the same arguments any number of times.
            additional: by tool name, the names of arguments that do not make a call another one.
        """
        iterations = 0
        for calls, results in exchanges_of_run(messages):
            iterations += 1
            for call in calls:
                self.admit(
                    call,
                    answer=calls,
                    repeatable=call.name in repeatable,
                    additional=additional.get(call.name, ()),
                )
            for call, result in zip(calls, results, strict=True):
                if result is not None and not (result.is_error and result.content.startswith(NOT_RUN)):
                    self.record_result(call, result)
            self.record_iteration(all(result is not None and result.is_error for result in results))
        self.broken = self.broken_by = None  # the past calls have already run
        return iterations

    def exhausted_budget(self, usage: UsageSum) -> StopReason | None:
        """Return the budget, of tokens or of time, that is used up, or None."""
        max_tokens = self.limits.max_tokens
        if max_tokens is not None and _tokens(usage.total) >= max_tokens:
            return self._break("token_budget")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return self._break("deadline")
        return None

    def limit_before(self, iteration: int, usage: UsageSum) -> StopReason | None:
        """Return the limit that prevents the iteration with this number (from 1), or None."""
        limit = self.limits.max_iterations
        if limit is not None and iteration > limit:
            self._break("max_iterations")
        max_errors = self.limits.max_consecutive_errors
        if max_errors is not None and self._errors >= max_errors:
            self._break("consecutive_errors")
        return self.broken or self.exhausted_budget(usage)

    def _break(self, limit: StopReason, tool: str | None = None) -> StopReason:
        if self.broken is None:
            self.broken, self.broken_by = limit, tool
        return limit


def _tokens(usage: Usage | None) -> int:
    return 0 if usage is None else usage.total_tokens or 0


def _digest(result: ToolResult | ToolResultPart) -> int:
    """Return a 64-bit hash of a result; `hash()` is keyed and fast."""
    if not result.images:
        return hash(result.content)
    return hash((result.content, *((image.data, image.url) for image in result.images)))


def _canonical(arguments: str, additional: Collection[str]) -> str:
    """Return the same text for equal arguments, such as `""` and `{}`, `1` and `1.0`, with or without a code fence.

    The arguments named in `additional` are not in it.
    """
    text, _ = unwrap_arguments(arguments)
    try:
        value = _DECODER.decode(text)
        if additional and isinstance(value, dict):
            value = {name: item for name, item in value.items() if name not in additional}
        return _ENCODER.encode(value)
    except (ValueError, RecursionError):
        return text


def _number(literal: str) -> float:
    number = float(literal)
    return int(number) if number.is_integer() else number


_DECODER = json.JSONDecoder(parse_float=_number)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
