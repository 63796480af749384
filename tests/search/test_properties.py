"""Indexes with any tools, queries and orders of changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from operator import mul
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import livemcp_tools
from tests.otel.processes import in_a_process
from tests.search.deciding import WordEmbeddings
from traced_tools.core.patterns import compile_pattern
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import (
    HybridToolIndex,
    KeywordToolIndex,
    RegexToolIndex,
    ToolIndex,
    ToolMatch,
    VectorToolIndex,
    regex,
)
from traced_tools.search.index import best_matches
from traced_tools.search.texts import texts_of
from traced_tools.search.words import fold, query_words

INDEXES: dict[str, Callable[[], ToolIndex]] = {
    "regex": RegexToolIndex,
    "keyword": KeywordToolIndex,
    "vector, latent": VectorToolIndex,
    "vector, embedded": lambda: VectorToolIndex(WordEmbeddings()),
    "hybrid": lambda: HybridToolIndex([KeywordToolIndex(), VectorToolIndex()]),
}
WEIGHTS = (4, 2, 1, 1)
"""How much a word counts in each text for a `RegexToolIndex`."""
PATTERNS = [
    "^se",
    "l$",
    r"\bof\b",
    "(?m)^a|b$",
    "[^a]e.",
    ".*",
    r"\Aw",
    r"y\z",
    "(?s)a.c",
    "(?x) f i # le",
    "e{2}",
    "(",
    "天?気",
]
every_index = pytest.mark.parametrize("make", INDEXES.values(), ids=INDEXES)

texts = st.text(max_size=40) | st.sampled_from(
    ["weather of a city", "send mail", "天気", "ﬁle \uff21\uff22\uff23", "İ \u017f ß", "a.docx"]
)
names = texts.filter(lambda text: bool(text) and text.isprintable() and text == text.strip())
schemas = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["properties", "description", "anyOf", "$defs", "city"]), inner, max_size=3)
    ),
    max_leaves=8,
)
tools = st.builds(
    lambda name, description, properties: ToolDefinition(
        name=name, description=description, input_schema={"properties": properties}
    ),
    names,
    texts,
    schemas,
)
changes = st.lists(st.tuples(st.booleans(), st.lists(tools, max_size=4)), max_size=6)


def changed(index: ToolIndex, steps: list[tuple[bool, list[ToolDefinition]]]) -> dict[str, ToolDefinition]:
    """Add and remove tools; return those that the index has."""
    present: dict[str, ToolDefinition] = {}
    for adds, some in steps:
        if adds:
            index.add(some)
            present |= {tool.name: tool for tool in some}
        else:
            index.remove([tool.name for tool in some])
            present = {name: tool for name, tool in present.items() if name not in {each.name for each in some}}
    return present


@every_index
@given(steps=changes, query=texts, most=st.integers(1, 5))
def test_a_search_finds_present_tools_once_the_best_first_and_the_same_each_time(
    make: Callable[[], ToolIndex], steps: Any, query: str, most: int
) -> None:
    index, again = make(), make()
    present = changed(index, steps)
    found = index.search(query, most)
    assert len(found) <= most
    assert {match.name for match in found} <= {*present}
    assert len({match.name for match in found}) == len(found)
    assert found == sorted(found, key=lambda match: (-match.score, match.name))
    assert found == index.search(query, most)
    assert found == index.search(query, 100)[:most]
    changed(again, steps)
    assert found == again.search(query, most)
    index.remove(present)
    assert index.search(query, 100) == []


@every_index
@given(first=st.lists(tools, max_size=5), second=st.lists(tools, max_size=5), query=texts)
def test_tools_that_were_added_in_several_steps_are_found_like_tools_that_were_added_at_once(
    make: Callable[[], ToolIndex], first: list[ToolDefinition], second: list[ToolDefinition], query: str
) -> None:
    first = [tool for tool in first if tool.name not in {each.name for each in second}]
    apart, together = make(), make()
    apart.add(first)
    apart.add(second)
    together.add([*second, *first])
    if make is not INDEXES["vector, latent"] and make is not INDEXES["hybrid"]:  # the space is that of the first tools
        assert apart.search(query) == together.search(query)
    assert len(repr(apart)) < 200


@every_index
def test_words_of_a_tool_find_it_among_the_tools_of_real_servers(make: Callable[[], ToolIndex]) -> None:
    index = make()
    index.add(
        ToolDefinition(name=each["id"], description=each["description"], input_schema=each["inputSchema"])
        for each in livemcp_tools()
    )
    assert index.search("current stock price by ticker symbol")
    assert "whois" in index.search("whois information of a domain", 1)[0].name


@every_index
@pytest.mark.slow
def test_ten_thousand_tools_are_searched_and_changed(make: Callable[[], ToolIndex]) -> None:
    index = make()
    words = ["weather", "mail", "stock", "file", "image", "map", "note", "task", "song", "train"]
    index.add(
        ToolDefinition(
            name=f"{words[n % 10]}_{words[n // 10 % 10]}_{n}", description=f"The {words[n // 100 % 10]} tool."
        )
        for n in range(10_000)
    )
    assert len(index.search("weather", 20)) == 20
    index.add([ToolDefinition(name="moon_phase", description="Return the phase of the moon.")])
    index.add([ToolDefinition(name="moon_rise", description="Return when the moon rises.")])
    index.remove([f"weather_weather_{n}" for n in range(0, 10_000, 100)])
    assert not [match for match in index.search("weather", 500) if match.name.startswith("weather_weather_")]


FORK = """
import signal
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import KeywordToolIndex, VectorToolIndex
for index in (KeywordToolIndex(), VectorToolIndex()):
    index.add([ToolDefinition(name="weather")])
    with index._lock if isinstance(index, KeywordToolIndex) else index._vectors._lock:
        if not (child := os.fork()):
            signal.alarm(20)
            index.add([ToolDefinition(name="mail")])
            found = [match.name for query in ("weather", "mail") for match in index.search(query)]
            os._exit(found != ["weather", "mail"])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(index.search("weather")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_changes_its_index_even_if_a_thread_of_its_parent_holds_the_lock() -> None:
    done = in_a_process(FORK)
    assert (done.stdout, done.stderr) == ("0 1\n0 1\n", "")


def expected_of_words(present: dict[str, ToolDefinition], query: str) -> list[ToolMatch]:
    """What a `RegexToolIndex` returns that searches each text of each tool for the words."""
    words = sorted(query_words(query), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, words)))
    matches = []
    for name, definition in present.items():
        parts = texts_of(definition)
        fields = (parts.name, parts.description, parts.parameters, parts.parameter_descriptions)
        counts = [len(set(pattern.findall(fold(text)))) if words else 0 for text in fields]
        if any(counts) or not words:
            matches.append(ToolMatch(name, float(sum(map(mul, WEIGHTS, counts)))))
    return best_matches(matches, 100)


def expected_of_pattern(present: dict[str, ToolDefinition], query: str) -> list[ToolMatch]:
    try:
        is_match = compile_pattern(f"(?i){query}")
    except ValueError:
        return []
    scores = {
        name: 2 * is_match(name) + is_match(definition.description[:20_000]) for name, definition in present.items()
    }
    return best_matches([ToolMatch(name, float(score)) for name, score in scores.items() if score], 100)


@given(
    changes, st.lists(texts | st.sampled_from(["ea the weath her", "eat a heat", "ile fil file", "0 00"]), max_size=3)
)
def test_a_regex_index_finds_words_as_a_search_of_each_text_does(
    steps: list[tuple[bool, list[ToolDefinition]]], queries: list[str]
) -> None:
    index = RegexToolIndex()
    present: dict[str, ToolDefinition] = {}
    for step in [*steps, (True, [])]:
        present = {
            name: tool for name, tool in present.items() if step[0] or name not in {tool.name for tool in step[1]}
        }
        present |= changed(index, [step])
        for query in queries:
            if not regex._OPERATOR.search(query):
                assert index.search(query, 100) == expected_of_words(present, query)


@given(changes, st.sampled_from(PATTERNS) | texts)
def test_a_regex_index_finds_patterns_as_a_search_of_each_text_does(
    steps: list[tuple[bool, list[ToolDefinition]]], query: str
) -> None:
    index = RegexToolIndex()
    present = changed(index, steps)
    if regex._OPERATOR.search(query):
        expected = expected_of_pattern(present, query)
        if not expected and query_words(query):
            expected = expected_of_words(present, query)
        assert index.search(query, 100) == expected


def test_a_regex_index_forgets_what_was_replaced_and_searches_each_run_of_letters_once() -> None:
    index = RegexToolIndex()
    for number in range(50):
        index.add([ToolDefinition(name=f"tool_{place}", description=f"Read file {number}.") for place in range(20)])
        assert len(index.search("file", 100)) == 20
    assert len(index._postings.names) <= 60
    assert index._postings._vocabulary.split("\n").count("file") == 1
