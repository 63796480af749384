"""What every tool index does."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.search.deciding import DecidingModel, WordEmbeddings
from traced_tools import tool
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import (
    DecisionToolIndex,
    HybridToolIndex,
    KeywordToolIndex,
    RegexToolIndex,
    ToolIndex,
    ToolMatch,
    VectorToolIndex,
)
from traced_tools.tools.selection import tool_callbacks

INDEXES: dict[str, Callable[[], ToolIndex]] = {
    "regex": RegexToolIndex,
    "keyword": KeywordToolIndex,
    "vector, latent": VectorToolIndex,
    "vector, embedded": lambda: VectorToolIndex(WordEmbeddings()),
    "decision": lambda: DecisionToolIndex(DecidingModel(), KeywordToolIndex(), max_candidates=1_000),
    "hybrid": lambda: HybridToolIndex([KeywordToolIndex(), VectorToolIndex()]),
}


@pytest.fixture(params=INDEXES)
def index(request: pytest.FixtureRequest) -> ToolIndex:
    return INDEXES[request.param]()


def defined(name: str, description: str = "", **properties: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": properties}
    return ToolDefinition(name=name, description=description, input_schema=schema)


WEATHER = defined("get_weather", "Return the weather forecast of a city.", city={"type": "string"})
STOCKS = defined("get_stock_price", "Return the price of a share.", ticker={"description": "The ticker symbol"})
MAIL = defined("sendEmail", "Send a message to a person.", recipient={"type": "string"})
CATALOGUE = (WEATHER, STOCKS, MAIL)


def names(found: list[ToolMatch]) -> list[str]:
    return [match.name for match in found]


def scores(found: list[ToolMatch]) -> dict[str, float]:
    return {match.name: match.score for match in found}


def test_it_finds_the_tool_that_fits_best_first(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    found = index.search("weather forecast for tomorrow")
    assert found[0].name == "get_weather"
    scores = [match.score for match in found]
    assert scores == sorted(scores, reverse=True)


def test_it_finds_words_inside_names_in_camel_case(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    assert index.search("email")[0].name == "sendEmail"


def test_it_finds_tools_by_their_parameters(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    assert index.search("ticker")[0].name == "get_stock_price"


def test_it_takes_callbacks_and_iterators(index: ToolIndex) -> None:
    @tool
    def book_flight(destination: str) -> str:
        """Book a flight to a destination."""
        return destination

    index.add(iter([*tool_callbacks(book_flight), *CATALOGUE]))
    assert index.search("flight")[0].name == "book_flight"


def test_an_empty_index_finds_nothing(index: ToolIndex) -> None:
    assert index.search("weather") == []
    index.add([])
    index.remove(["get_weather"])
    assert index.search("weather") == []


def test_results_respect_the_maximum(index: ToolIndex) -> None:
    index.add(defined(f"weather_{number}", "Weather forecast.") for number in range(20))
    assert len(index.search("weather")) == 5
    assert len(index.search("weather", max_results=1)) == 1
    assert len(index.search("weather", max_results=100)) == 20


def test_equal_scores_are_ordered_by_name_however_the_tools_were_added(index: ToolIndex) -> None:
    same = [defined(name, "Return the weather forecast.") for name in ("weather_cat", "weather_ant", "weather_dog")]
    index.add(same)
    index.add([defined("weather_bee", "Return the weather forecast.")])
    assert names(index.search("weather forecast", 3)) == ["weather_ant", "weather_bee", "weather_cat"]


def test_removed_tools_are_not_found(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    index.remove(["get_weather", "unknown"])
    assert "get_weather" not in names(index.search("weather forecast"))
    assert index.search("share price")[0].name == "get_stock_price"


def test_a_tool_that_is_added_again_replaces_the_earlier_one(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    before = scores(index.search("forecast"))["get_weather"]
    index.add([defined("get_weather", "Paint a picture of the sky.")])
    assert index.search("picture")[0].name == "get_weather"
    assert scores(index.search("forecast")).get("get_weather", 0) < before
    assert len(index.search("picture price message", 100)) == len(CATALOGUE)


def test_a_search_needs_a_text_and_a_positive_maximum(index: ToolIndex) -> None:
    with pytest.raises(TypeError, match="query must be a str, not int"):
        index.search(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_results must be at least 1; it is 0"):
        index.search("weather", 0)
    with pytest.raises(TypeError, match="max_results must be an int, not str"):
        index.search("weather", "5")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["weather", WEATHER, [7], 7, None])
def test_add_refuses_what_is_no_tool(index: ToolIndex, wrong: Any) -> None:
    with pytest.raises(TypeError, match="tools"):
        index.add(wrong)


@pytest.mark.parametrize("wrong", ["get_weather", [7], 7, None])
def test_remove_refuses_what_are_no_names(index: ToolIndex, wrong: Any) -> None:
    with pytest.raises(TypeError, match="names"):
        index.remove(wrong)


def test_threads_add_remove_and_search_at_once(index: ToolIndex) -> None:
    errors: list[BaseException] = []
    numbers: Iterator[int] = count()

    def work() -> None:
        try:
            for _ in range(10):
                number = next(numbers)
                index.add([defined(f"kept_{number}", "Weather"), defined(f"gone_{number}", "Weather")])
                assert index.search("weather")
                index.remove([f"gone_{number}"])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(names(index.search("weather", 1000))) == sorted(f"kept_{number}" for number in range(40))


def test_its_repr_shows_the_number_of_tools_and_no_text(index: ToolIndex) -> None:
    index.add(CATALOGUE)
    index.search("a secret query")
    assert re.search(r"\b3 (tools|vectors)", repr(index))
    assert "secret" not in repr(index)
    assert "weather" not in repr(index)
