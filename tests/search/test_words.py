"""The words by which queries and tools are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import stems
from traced_tools.search.stems import query_stems, stems_of
from traced_tools.search.texts import texts_of
from traced_tools.search.words import query_words, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("getWeather", "get weather"),
        ("HTTPServer", "http server"),
        ("user IDs and URLs", "user ids and urls"),
        ("snake_case-kebab.dot/slash", "snake case kebab dot slash"),
        ("base64Encode2D", "base 64 encode 2 d"),
        ("Ünïcode STRASSE straße", "ünïcode strasse strasse"),
        ("使用必应search", "使 用 必 应 search"),
        ("ﬁle \uff21\uff22\uff23", "file abc"),
        ("🌧 ?!", ""),
        ("", ""),
    ],
)
def test_words_are_split_at_case_underscores_and_digits_and_folded(text: str, words: str) -> None:
    assert " ".join(words_of(text)) == words


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("Can you please tell me the weather in Oslo?", "weather oslo"),
        ("weather weather WEATHER", "weather"),
        ("a b c 天", "天"),
        ("summarize /data/reports/costs.xlsx", "summarize file xlsx excel spreadsheet"),
        ("open notes.MD and ~/todo.rst", "open file md markdown rst"),
        ("list ./src and /var/log", "list directory"),
        ("fetch https://example.com/a/b.html?c=d now", "fetch url"),
        ("version 12 of node.js, read/write", "version 12 file js code read write"),
        (r"open C:\temp\a.docx", "open temp file docx word document"),
    ],
)
def test_a_query_has_no_stop_words_and_words_for_what_paths_are(query: str, words: str) -> None:
    assert " ".join(query_words(query)) == words


def test_words_are_compared_by_their_stems() -> None:
    assert query_stems("converting conversions of files") == query_stems("convert conversion file")
    assert stems_of(ToolDefinition(name="read_files", description="Reading a file.")).count("file") == 4


@given(st.text() | st.text("aA1 _\u0301\u3000\xa0ﬁ天.IDs\n", max_size=30))
def test_a_piece_between_spaces_has_the_same_words_alone(text: str) -> None:
    assert [word for piece in text.split() for word in words_of(piece)] == [*words_of(text)]


def test_stems_are_counted_in_long_pieces_and_in_more_pieces_than_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    definition = ToolDefinition(name="read_files", description=f"Read {'file/' * 99} a filing of files.")
    all_stems = stems_of(definition)
    assert all_stems.count("file") == 3 + 99 + 2
    monkeypatch.setattr(stems, "_MOST_PIECES", 2)
    stems._PIECES.clear()
    assert stems_of(definition) == all_stems
    assert len(stems._PIECES) <= 2


@given(st.text())
def test_any_text_has_words_without_white_space(text: str) -> None:
    for word in [*words_of(text), *query_words(text)]:
        assert word
        assert not any(character.isspace() for character in word)
        word.encode()  # a lone surrogate is no word


def test_a_long_query_is_read_up_to_a_bound() -> None:
    assert len(query_words("x" * 10_000 + " weather")) == 1
    assert len(query_words(" ".join(map(str, range(10, 10_000))))) < 2_000


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city."},
        "days": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"first": {"description": "From."}}}]},
        "place": {"$ref": "#/$defs/Place"},
        "any": True,
    },
    "$defs": {"Place": {"properties": {"street": {"type": "string", "description": "The street."}}}},
}


def test_the_parameters_of_a_tool_are_those_of_nested_schemas_too() -> None:
    texts = texts_of(ToolDefinition(name="t", input_schema=SCHEMA))
    assert texts.parameters.split("\n") == ["city", "days", "place", "any", "street", "first"]
    assert texts.parameter_descriptions.split("\n") == ["The city.", "The street.", "From."]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": None},
        {"properties": [1, "x"]},
        {"properties": {"a": None, "b": 7, "c": {"description": ["no text"]}}},
        {"properties": {"a": {"properties": {"a": {"properties": "deep"}}}}, "required": "a"},
        {"allOf": [[[{"properties": {"deep": {}}}]]]},
    ],
)
def test_an_invalid_schema_yields_what_can_be_read_of_it(schema: dict[str, object]) -> None:
    texts_of(ToolDefinition(name="t", input_schema=schema))


def test_a_schema_without_end_is_read_up_to_a_bound() -> None:
    endless: dict[str, object] = {}
    endless["properties"] = {"again": endless, "description": endless}
    definition = ToolDefinition.model_construct(name="t", description="", input_schema=endless)
    assert len(texts_of(definition).parameters) <= 20_000
