"""The result of a tool: read, converted, cut, or returned unchanged."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import arun, run
from tests.tools.batches import attributes, client_of, function_tool, recorded
from tests.waiting import patiently
from traced_tools import Advisor, ToolResult, tool
from traced_tools.core.messages import ImagePart, ToolMessage
from traced_tools.core.result_conversion import MOST_ITEMS
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
CUT = "traced_tools.tool.result.cut"
SIZE = "traced_tools.tool.result.size"


def result_of(mode: str, function: Callable[..., Any], telemetry: Telemetry, **metadata: Any) -> ToolResult:
    """Run one tool and return its result."""
    made = function_tool(function, **metadata)
    (result,) = run(mode, client_of([made.definition.name], [made], telemetry).prompt("?")).tool_results
    telemetry.check_each_ended_once()
    (span,) = attributes(telemetry)
    assert span[SIZE] == result.size
    return result


# Iterators.


class Counted:
    """Generators that record the thread or loop that reads them, and that they were closed."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.places: set[Any] = set()
        self.closed = 0

    def numbers(self) -> Iterator[int]:
        """Count."""
        number = 0
        try:
            while number != self.length:
                self.places.add(threading.current_thread())
                yield number
                number += 1
        finally:
            self.closed += 1

    async def anumbers(self) -> AsyncIterator[int]:
        """Count."""
        try:
            for number in self.numbers():
                self.places.add(asyncio.get_running_loop())
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed += 1

    async def eventually(self) -> Iterator[int]:
        """Count, in the end."""
        return self.numbers()

    def indirectly(self) -> AsyncIterator[int]:
        """Count, by somebody else."""
        return self.anumbers()


SOURCES = pytest.mark.parametrize("source", ["numbers", "anumbers", "eventually", "indirectly"])


@SOURCES
@pytest.mark.parametrize("length", [0, MOST_ITEMS])
def test_iterators_are_read(mode: str, source: str, length: int, telemetry: Telemetry) -> None:
    result = result_of(mode, getattr(Counted(length), source), telemetry)
    assert result.value == list(range(length))
    assert json.loads(result.content) == list(range(length))
    assert not result.cut


@SOURCES
def test_an_endless_iterator_is_read_up_to_a_limit_and_closed(mode: str, source: str, telemetry: Telemetry) -> None:
    counted = Counted(None)
    result = result_of(mode, getattr(counted, source), telemetry)
    shown, mark = result.content.split("\n")
    assert json.loads(shown) == result.value == list(range(MOST_ITEMS))
    assert mark == "[cut: only the first 1,000 items are shown]"
    assert counted.closed >= 1


def test_a_generator_is_read_in_the_tools_own_thread_and_on_the_callers_loop(
    async_mode: str, telemetry: Telemetry
) -> None:
    plain, asynchronous = Counted(3), Counted(3)

    async def main() -> asyncio.AbstractEventLoop:
        client = client_of(["numbers", "anumbers"], [plain.numbers, asynchronous.anumbers], telemetry)
        await arun(async_mode, client.prompt("?"))
        return asyncio.get_running_loop()

    loop = asyncio.run(patiently(main()))
    assert threading.main_thread() not in plain.places
    assert len(plain.places) == 1
    assert loop in asynchronous.places
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_generator_that_raises_midway_fails_the_tool(mode: str, colour: str, telemetry: Telemetry) -> None:
    def plain() -> Iterator[str]:
        yield MARKER
        raise LookupError("half-way")

    async def asynchronous() -> AsyncIterator[str]:
        yield MARKER
        raise LookupError("half-way")

    result = result_of(mode, plain if colour == "plain" else asynchronous, telemetry)
    assert (result.outcome, result.error_type, result.value) == ("error", "LookupError", None)
    assert MARKER not in result.content


def test_a_generator_that_raises_midway_is_retried_if_retries_are_set(
    mode: str, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    attempts: list[int] = []

    def flaky() -> Iterator[str]:
        attempts.append(1)
        yield "first"
        if len(attempts) == 1:
            raise ConnectionError
        yield "second"

    assert result_of(mode, flaky, telemetry, retries=1).value == ["first", "second"]


def test_an_open_file_is_not_a_valid_result(mode: str, tmp_path: Path, telemetry: Telemetry) -> None:
    path = tmp_path / "lines"
    path.write_text(f"{MARKER}\n")
    with path.open() as file:
        result = result_of(mode, lambda: file, telemetry)
        assert file.tell() == 0
    assert (result.outcome, result.error_type) == ("error", "TypeError")
    assert MARKER not in result.content


def test_an_object_that_cannot_be_converted_is_a_failure_and_the_loop_continues(
    mode: str, telemetry: Telemetry
) -> None:
    def closes() -> object:
        return object()

    response = run(mode, client_of(["closes"], [closes], telemetry).prompt("?"))
    assert (response.content, response.tool_results[0].error_type) == ("done", "TypeError")
    telemetry.check_each_ended_once()


# Images.


def picture() -> bytes:
    """Paint."""
    return PNG


def described_picture() -> list[Any]:
    """Paint and describe."""
    return ["a cat", ImagePart(data=PNG)]


@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.parametrize(
    ("value", "text"),
    [(PNG, "[image/png, 15 bytes]"), (ImagePart(data=PNG), "[image/png, 15 bytes]"), (described_picture(), "a cat")],
    ids=["bytes", "part", "parts"],
)
def test_an_image_reaches_the_model_as_an_image(
    mode: str, value: Any, text: str, colour: str, telemetry: Telemetry
) -> None:
    def plain() -> Any:
        return value

    async def asynchronous() -> Any:
        return value

    made = function_tool(plain if colour == "plain" else asynchronous)
    response = run(mode, client_of([made.definition.name], [made], telemetry).prompt("?"))
    (message,) = [each for each in response.messages if isinstance(each, ToolMessage)]
    (part,) = message.results
    assert (part.content, part.images) == (text, (ImagePart(data=PNG, media_type="image/png"),))
    assert response.tool_results[0].value is value
    (span,) = attributes(telemetry)
    assert span[SIZE] == len(text) + len(PNG)
    telemetry.check_each_ended_once()


def test_a_direct_image_is_part_of_the_answer(mode: str, telemetry: Telemetry) -> None:
    made = function_tool(described_picture, return_direct=True)
    response = run(mode, client_of(["described_picture"], [made], telemetry).prompt("?"))
    assert (response.stop_reason, response.content) == ("return_direct", "a cat")
    assert ImagePart(data=PNG) in response.message.parts
    telemetry.check_each_ended_once()


# Direct results.


class Report:
    """An object that JSON cannot represent."""


def test_the_value_of_a_direct_tool_is_available_unchanged(mode: str, telemetry: Telemetry) -> None:
    report = Report()

    @tool(return_direct=True, result_converter=lambda value: "a report")
    def reports() -> Report:
        return report

    response = run(mode, client_of(["reports"], [reports], telemetry).prompt("?"))
    assert response.tool_results[0].value is report
    assert (response.content, response.stop_reason) == ("a report", "return_direct")
    telemetry.check_each_ended_once()


# The limit of size.


@tool(return_direct=True)
def long_answer() -> str:
    """Answer at length."""
    return "x" * 500


def long_text() -> str:
    """Say much."""
    return "y" * 500


@tool(return_direct=True)
def broken() -> str:
    """Fail."""
    raise LookupError("z" * 500)


def limited(mode: str, calls: list[str], telemetry: Telemetry, most: int | None = 100, **settings: Any) -> Any:
    manager = ToolCallingManager(max_result_characters=most)
    client = client_of(calls, [long_answer, long_text, broken, picture], telemetry, manager, **settings)
    response = run(mode, client.prompt("?"))
    telemetry.check_each_ended_once()
    return response


def test_a_long_result_is_cut_with_a_notice_and_its_value_is_not(mode: str, telemetry: Telemetry) -> None:
    (result,) = limited(mode, ["long_text"], telemetry).tool_results
    text, mark = result.content.split("\n")
    assert len(result.content) <= 100
    assert mark == f"[cut: {len(text)} of 500 characters are shown]"
    assert (result.value, result.cut, result.ok) == ("y" * 500, True, True)
    (span,) = attributes(telemetry)
    assert (span[SIZE], span[CUT]) == (len(result.content), True)


@pytest.mark.parametrize("most", [500, 100_000, None])
def test_a_result_within_the_limit_is_whole(mode: str, most: int | None, telemetry: Telemetry) -> None:
    (result,) = limited(mode, ["long_text"], telemetry, most).tool_results
    assert (result.content, result.cut) == ("y" * 500, False)
    (span,) = attributes(telemetry)
    assert span[SIZE] == 500
    assert CUT not in span


@pytest.mark.parametrize("times", [1, 2])
def test_a_result_that_is_the_answer_is_never_cut(mode: str, times: int, telemetry: Telemetry) -> None:
    response = limited(mode, ["long_answer"] * times, telemetry)
    assert response.content == "\n".join(["x" * 500] * times)
    assert all(CUT not in span for span in attributes(telemetry))


@pytest.mark.parametrize("others", [["long_text"], ["nowhere"], ["long_text", "nowhere"]], ids=" ".join)
def test_a_direct_result_beside_others_is_cut_with_a_notice(mode: str, others: list[str], telemetry: Telemetry) -> None:
    response = limited(mode, ["long_answer", *others], telemetry)
    assert response.content == "done"
    assert all(len(each.content) <= 100 for each in response.tool_results)
    span = attributes(telemetry)[0]
    assert (span[SIZE], span[CUT]) == (len(response.tool_results[0].content), True)


def test_a_direct_result_beside_a_failed_one_is_cut(mode: str, telemetry: Telemetry) -> None:
    response = limited(mode, ["long_answer", "broken"], telemetry)
    assert response.content == "done"
    assert [(each.cut, len(each.content) <= 100) for each in response.tool_results] == [(True, True)] * 2


def test_the_error_text_of_a_failed_tool_is_cut_too(mode: str, telemetry: Telemetry) -> None:
    (result,) = limited(mode, ["broken"], telemetry).tool_results
    assert (result.outcome, result.cut) == ("error", True)
    assert "z" * 500 in str(result.error)


def test_an_image_is_not_cut(mode: str, telemetry: Telemetry) -> None:
    (result,) = limited(mode, ["picture"], telemetry, most=30).tool_results
    assert (result.images[0].data, result.cut) == (PNG, False)


class Cached(Advisor):
    """Answers in place of every tool."""

    name, order = "cached", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Answer."""
        return call.answered("w" * 500, value="the value")


def test_an_advisors_answer_is_cut_too(mode: str, telemetry: Telemetry) -> None:
    (result,) = limited(mode, ["long_text"], telemetry, advisors=[Cached()]).tool_results
    assert (len(result.content) <= 100, result.cut, result.value) == (True, True, "the value")
    (span,) = attributes(telemetry, "refuse_tool")
    assert (span[SIZE], span[CUT]) == (len(result.content), True)
    assert recorded(telemetry, "gen_ai.execute_tool.duration") == 0
