"""Indexes with any tools, queries and orders of changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import livemcp_tools
from tests.otel.processes import in_a_process
from tests.search.deciding import WordEmbeddings
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import HybridToolIndex, KeywordToolIndex, RegexToolIndex, ToolIndex, VectorToolIndex

INDEXES: dict[str, Callable[[], ToolIndex]] = {
    "regex": RegexToolIndex,
    "keyword": KeywordToolIndex,
    "vector, latent": VectorToolIndex,
    "vector, embedded": lambda: VectorToolIndex(WordEmbeddings()),
    "hybrid": lambda: HybridToolIndex([KeywordToolIndex(), VectorToolIndex()]),
}
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
