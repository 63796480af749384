"""The vectors of an embedding model, in all four modes, and those of latent semantic analysis as tools change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.search.deciding import WordEmbeddings
from traced_tools import Advisor, ChatClient, ModelError
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.models import EmbeddingResponse
from traced_tools.search import InMemoryVectorStore, ToolIndex, ToolVector, VectorToolIndex
from traced_tools.testing import ScriptedChatModel

TOOLS = [
    ToolDefinition(name="getWeather", description="Return the weather.", input_schema={"properties": {"city": {}}}),
    ToolDefinition(name="send_email", description="Send a message."),
]


@pytest.mark.parametrize("mode", MODES)
def test_a_search_in_a_run_is_observed_by_the_run_and_without_the_query(mode: str) -> None:
    index, telemetry, found = VectorToolIndex(WordEmbeddings()), Telemetry(), []
    index.add(TOOLS)

    class Searching(Advisor):
        name, order = "searching", 100

        async def advise(self, request: Any, call_next: Any) -> Any:
            found.extend(await index.search_in_run(request.run, f"weather {MARKER}"))
            return await call_next(request)

    client = ChatClient(ScriptedChatModel(["Done."]), advisors=[Searching()], telemetry=telemetry.options)
    run(mode, client.prompt("Go."))
    assert [match.name for match in found] == ["getWeather"]
    assert [span.name for span in telemetry.spans].count("embeddings words") == 1
    for text in (*(span.to_json() for span in telemetry.spans), everything(telemetry.metrics)):
        assert MARKER not in text


def test_the_text_of_a_tool_has_the_words_of_its_name_its_description_and_its_parameters() -> None:
    model = WordEmbeddings()
    VectorToolIndex(model).add(TOOLS)
    assert model.texts == ["get weather\nReturn the weather.\ncity", "send email\nSend a message."]


class Noting(InMemoryVectorStore):
    """Notes how it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[str] = []

    def digests(self, names: Collection[str]) -> Mapping[str, str]:
        self.uses.append("digests")
        return super().digests(names)

    def put(self, vectors: Sequence[ToolVector]) -> None:
        self.uses.append(f"put {len(vectors)}")
        super().put(vectors)

    def remove(self, names: Collection[str]) -> None:
        self.uses.append("remove")
        super().remove(names)


def test_a_batch_of_tools_is_embedded_and_stored_at_once_and_an_empty_one_asks_nobody() -> None:
    class Noted(WordEmbeddings):
        def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
            store.uses.append(f"embed {len(texts)}")
            return super().call(texts)

    store = Noting()
    index = VectorToolIndex(Noted(), store)
    index.add(TOOLS)
    index.add([])
    index.remove([])
    assert store.uses == ["digests", "embed 2", "put 2"]


def test_a_blank_query_is_not_embedded() -> None:
    model = WordEmbeddings()
    index = VectorToolIndex(model)
    assert index.search(" \n") == []
    assert model.texts == []


def test_an_error_of_the_model_is_raised_and_the_tools_can_be_added_again() -> None:
    class Down(WordEmbeddings):
        is_up = False

        def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
            if not self.is_up:
                raise ModelError("the provider is down", provider="test")
            return super().call(texts)

    model = Down()
    index = VectorToolIndex(model)
    with pytest.raises(ModelError, match="the provider is down"):
        index.add(TOOLS)
    model.is_up = True
    index.add(TOOLS)
    model.is_up = False
    with pytest.raises(ModelError) as caught:
        index.search(MARKER)
    assert MARKER not in repr(caught.value)


def test_it_needs_an_embedding_model() -> None:
    with pytest.raises(TypeError, match="model must be an EmbeddingModel or None, not ScriptedChatModel"):
        VectorToolIndex(ScriptedChatModel([]))  # type: ignore[arg-type]


@pytest.mark.slow
def test_latent_vectors_have_the_words_of_tools_that_are_added_and_removed_one_by_one() -> None:
    index: ToolIndex = VectorToolIndex()
    for number in range(300):
        word = "".join("abcdefghij"[int(digit)] * 2 for digit in f"{number:03}")
        index.add([ToolDefinition(name=f"tool{word}", description=f"Does {word} things.")])
        assert index.search(f"things {word}", 1)[0].name == f"tool{word}"
        if number % 3 == 0:
            index.remove([f"tool{word}"])
    assert len(index.search("things", 1_000)) == 200
