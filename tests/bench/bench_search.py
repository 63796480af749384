"""What a search for tools costs beside a search of each text by itself, and an index beside reading all words."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

from tests.bench.report import Row, Section
from traced_tools.core.patterns import compile_pattern
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import KeywordToolIndex, RegexToolIndex
from traced_tools.search.texts import ToolTexts, texts_of
from traced_tools.search.words import fold, query_words, words_of

WORDS_TARGET = 0.15
PATTERN_TARGET = 1.0
KEYWORD_TARGET = 1.4
_QUERY = "find the weather report of a harbour and mail it to the captain of the ship"
_PATTERN = "mail_.*|ship_.*"
_VOCABULARY = 4_000
_WORDS = 40


def search_section(rounds: int, tools: int) -> Section:
    """Return what searches and indexes of `tools` tools cost."""
    catalogue = _catalogue(tools)
    texts = [texts_of(definition) for definition in catalogue]
    regex = RegexToolIndex()
    regex.add(catalogue)
    times = _times(
        {
            "words": lambda: regex.search(_QUERY),
            "words, each text": lambda: _search_words(texts),
            "pattern": lambda: regex.search(_PATTERN),
            "pattern, each text": lambda: _search_pattern(texts),
            "keyword": lambda: KeywordToolIndex().add(catalogue),
            "reading": lambda: [[*words_of(text)] for item in texts for text in _fields(item)],
        },
        rounds,
    )
    return Section(
        f"tool indexes of {tools:,} tools",
        [
            *_rows("a search for words", "words", "each text", "words, each text", times, WORDS_TARGET),
            *_rows("a search for a pattern", "pattern", "each text", "pattern, each text", times, PATTERN_TARGET),
            *_rows("a keyword index", "keyword", "reading the words", "reading", times, KEYWORD_TARGET),
        ],
    )


def _catalogue(tools: int) -> list[ToolDefinition]:
    """Return tools with random texts of words of a fixed vocabulary, the first words more often."""
    draw = random.Random(0)
    letters = "abcdefghiklmnoprstuwy"
    vocabulary = [*_QUERY.split(), *("".join(draw.choices(letters, k=draw.randint(3, 9))) for _ in range(_VOCABULARY))]
    weights = [1 / (place + 10) for place in range(len(vocabulary))]
    return [
        ToolDefinition(
            name=f"{'_'.join(draw.choices(vocabulary, weights, k=2))}_{number}",
            description=f"{' '.join(draw.choices(vocabulary, weights, k=_WORDS)).capitalize()}.",
            input_schema={"type": "object", "properties": {"place": {"type": "string", "description": "Where it is."}}},
        )
        for number in range(tools)
    ]


def _fields(texts: ToolTexts) -> tuple[str, ...]:
    return texts.name, texts.description, texts.parameters, texts.parameter_descriptions


def _search_words(tools: list[ToolTexts]) -> None:
    pattern = re.compile("|".join(sorted(query_words(_QUERY), key=len, reverse=True)))
    for texts in tools:
        for text in _fields(texts):
            set(pattern.findall(fold(text)))


def _search_pattern(tools: list[ToolTexts]) -> None:
    matches = compile_pattern(f"(?i){_PATTERN}")
    for texts in tools:
        matches(texts.name)
        matches(texts.description)


def _rows(label: str, name: str, floor: str, other: str, times: dict[str, float], at_most: float) -> list[Row]:
    ratio = times[name] / times[other]
    return [Row(label, times[name], "ms"), Row(f"{label} / {floor}", ratio, "x", at_most=at_most, digits=2)]


def _times(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least milliseconds of each way, in processor time of all threads; the first round fills caches."""
    times = dict.fromkeys(ways, float("inf"))
    for turn in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            taken = 1000 * (time.process_time() - began)
            if turn:
                times[name] = min(times[name], taken)
    return times
