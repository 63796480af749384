"""What the indexes of words do beyond what every index does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import HybridToolIndex, KeywordToolIndex, RegexToolIndex, ToolIndex, VectorToolIndex


def filled(index: ToolIndex, **tools: str) -> ToolIndex:
    index.add(ToolDefinition(name=name, description=description) for name, description in tools.items())
    return index


def names(index: ToolIndex, query: str) -> list[str]:
    return [match.name for match in index.search(query)]


@pytest.mark.parametrize("make", [RegexToolIndex, KeywordToolIndex])
def test_a_word_in_the_name_counts_more_than_one_in_the_description(make: type[ToolIndex]) -> None:
    index = filled(make(), aaa="Convert units of weather.", weather="Convert units of length.")
    assert names(index, "weather") == ["weather", "aaa"]


def test_a_regex_index_finds_parts_of_words_and_everything_without_words() -> None:
    index = filled(RegexToolIndex(), webpage="Read it.", book="Read a page.", clock="Tell the time.")
    assert names(index, "page") == ["webpage", "book"]
    assert names(index, "") == names(index, "the of?!") == ["book", "clock", "webpage"]


TOOLS = {"getWeather": "Return the forecast (°C).", "list_files": "List files; see getWeather.", "pay": "Pay 5.00 $."}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("get.*|list_.*", ["getWeather", "list_files"]),
        ("^GET", ["getWeather"]),
        ("get[A-Z]", ["getWeather", "list_files"]),
        (r"^pay$", ["pay"]),
        (r"\d\.\d\d \$", ["pay"]),
        (r"\(°c\)", ["getWeather"]),
        ("^(list|pay)", ["list_files", "pay"]),
        ("(?-i)^Get", []),
        ("pa.", ["pay"]),
        ("file?s", ["list_files"]),
    ],
)
def test_a_regex_index_finds_a_pattern_in_names_and_descriptions(pattern: str, found: list[str]) -> None:
    index = filled(RegexToolIndex(), **TOOLS)
    assert sorted(names(index, pattern)) == found


def test_a_pattern_in_the_name_counts_more_than_one_in_the_description() -> None:
    index = filled(RegexToolIndex(), aaa="Convert units.", units="Convert lengths.", both="Units.", units_b="Units.")
    assert names(index, "unit.") == ["units_b", "units", "aaa", "both"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("what is the forecast?", ["getWeather"]),
        ("(((((forecast+)+", ["getWeather"]),
        ("forecast.* [", ["getWeather"]),
        (r"(?=forecast)", ["getWeather"]),
        (r"(forecast)\1", ["getWeather"]),
        ("(forecast{1000}){1000}{1000}", ["getWeather"]),
        ("forecast " + "(a|b)*" * 1_000, ["getWeather"]),
        (")|(forecast", ["getWeather"]),
    ],
)
def test_the_words_of_a_query_count_if_it_is_no_pattern_or_finds_nothing(query: str, found: list[str]) -> None:
    assert names(filled(RegexToolIndex(), **TOOLS), query) == found


def test_a_pattern_takes_linear_time() -> None:
    index = filled(RegexToolIndex(), a="a" * 20_000, b="x\ud800")
    assert names(index, "(a|aa)+(a+)+c$|^b$") == ["b"]


@pytest.mark.parametrize("make", [KeywordToolIndex, VectorToolIndex])
def test_tools_below_the_minimum_score_are_left_out(make: Any) -> None:
    tools = {"weather": "The weather forecast.", "mail": "Mail the weather.", "clock": "The time."}
    (best, *others) = filled(make(), **tools).search("weather forecast")
    assert others and best.score > others[0].score
    assert filled(make(min_score=best.score), **tools).search("weather forecast") == [best]
    assert filled(make(min_score=min(1, best.score + 1)), **tools).search("nonsense") == []


def test_a_hybrid_index_leaves_out_what_too_few_of_its_indexes_find() -> None:
    def indexes() -> list[ToolIndex]:
        return [filled(RegexToolIndex(), a="weather", b="weather"), filled(RegexToolIndex(), b="weather")]

    assert [match.name for match in HybridToolIndex(indexes()).search("weather")] == ["b", "a"]
    assert [match.name for match in HybridToolIndex(indexes(), min_score=2 / 20).search("weather")] == ["b"]


@pytest.mark.parametrize("make", [KeywordToolIndex, VectorToolIndex, lambda **given: HybridToolIndex(PAIR, **given)])
@pytest.mark.parametrize("min_score", [-1, float("nan"), float("inf"), "1", None])
def test_a_minimum_score_is_a_number_that_is_not_negative(make: Any, min_score: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="min_score must be a"):
        make(min_score=min_score)


def test_no_cosine_is_above_one() -> None:
    with pytest.raises(ValueError, match="min_score must be from 0 to 1; it is 2"):
        VectorToolIndex(min_score=2)


PAIR = [RegexToolIndex(), RegexToolIndex()]


@pytest.mark.parametrize(
    "make", [KeywordToolIndex, VectorToolIndex, lambda: HybridToolIndex([KeywordToolIndex(), VectorToolIndex()])]
)
@pytest.mark.parametrize("query", ["", "the of?!", "nonsense"])
def test_other_indexes_find_nothing_without_a_word_that_they_know(make: type[ToolIndex], query: str) -> None:
    assert names(filled(make(), weather="The weather."), query) == []


def test_a_keyword_index_finds_other_forms_of_a_word() -> None:
    index = filled(KeywordToolIndex(), convert="Converts images.", other="Nothing.")
    assert names(index, "image conversions, converting an image") == ["convert"]


def test_a_keyword_index_prefers_rare_words_and_finds_files_by_their_kind() -> None:
    index = filled(KeywordToolIndex(), read_excel="Read a spreadsheet.", read_text="Read a text.", read_pdf="Read it.")
    assert names(index, "what is the sum in /data/costs.xlsx?")[0] == "read_excel"


def test_a_keyword_index_orders_many_equal_tools_by_name() -> None:
    index = KeywordToolIndex()
    for start in (200, 0, 100):
        index.add(ToolDefinition(name=f"weather_{'abcdefghij'[n // 100]}{n:03}x") for n in range(start, start + 100))
    found = names(index, "weather")
    assert found == sorted(f"weather_{'abcdefghij'[n // 100]}{n:03}x" for n in range(300))[:5]


def test_latent_semantic_analysis_finds_tools_that_share_no_word_with_the_query() -> None:
    words = [first + second for first in ("bab", "dok", "gum", "lir") for second in ("nat", "pel", "sov")]
    others = {f"{one}{other}": f"{one} {other}" for one, other in itertools.permutations(words, 2)}
    pairs = {f"shop{word}": f"Buy or purchase {word}." for word in words}
    tools = {**others, **pairs, "tickets": "Purchase tickets."}
    found = [match.name for match in filled(VectorToolIndex(), **tools).search("buy", 100)]
    assert {*found[: len(pairs)]} == {*pairs}
    assert found[len(pairs)] == "tickets"
    assert "tickets" not in names(filled(KeywordToolIndex(), **tools), "buy")


def test_a_hybrid_index_prefers_what_several_indexes_rank_high() -> None:
    first = filled(RegexToolIndex(), a="weather", b="weather weathers weathering", c="weather")
    second = filled(RegexToolIndex(), b="weather", c="weather mail")
    found = HybridToolIndex([first, second]).search("weather", 3)
    assert [match.name for match in found] == ["b", "a", "c"] or [match.name for match in found] == ["b", "c", "a"]
    assert found[0].score == pytest.approx(1 / 12 + 1 / 11)


def test_a_hybrid_index_needs_two_indexes() -> None:
    with pytest.raises(ValueError, match="indexes must be at least two"):
        HybridToolIndex([RegexToolIndex()])
    with pytest.raises(TypeError, match=r"indexes\[1\] must be a ToolIndex, not str"):
        HybridToolIndex([RegexToolIndex(), "keyword"])  # type: ignore[list-item]
