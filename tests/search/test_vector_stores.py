"""Stores of vectors: what every store does, and the SQL of the one in PostgreSQL."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from tests.markers import MARKER
from tests.search.deciding import WordEmbeddings
from traced_tools import ConfigurationError
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.errors import ToolIndexError
from traced_tools.search import (
    InMemoryVectorStore,
    PgVectorStore,
    ToolMatch,
    ToolVector,
    VectorStore,
    VectorToolIndex,
)
from traced_tools.search.pgvector import VECTORS, deletion, digests_of, nearest_to, upsert

NOWHERE = "postgresql+psycopg://somebody:hidden@127.0.0.1:1/vectors"
EAST, NORTH = ToolVector("east", "1", (2.0, 0.0)), ToolVector("north", "2", (0.0, 0.5))
NORTH_EAST = ToolVector("north_east", "3", (1.0, 1.0))


@pytest.fixture(params=["memory", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> Iterator[VectorStore]:
    if request.param == "memory":
        yield InMemoryVectorStore()
        return
    made = PgVectorStore(request.getfixturevalue("postgresql_url"))
    yield made
    made.close()


def test_an_empty_store_has_nothing(store: VectorStore) -> None:
    assert store.nearest((1.0, 0.0), 5) == []
    assert store.digests(["east"]) == {}
    store.put([])
    store.remove(["east"])


def test_the_nearest_vectors_come_first_by_cosine(store: VectorStore) -> None:
    store.put([NORTH, EAST, NORTH_EAST])
    found = store.nearest((3.0, 0.0), 5)
    assert [match.name for match in found] == ["east", "north_east", "north"]
    assert [match.score for match in found] == pytest.approx([1, math.sqrt(0.5), 0], abs=1e-6)
    assert [match.name for match in store.nearest((3.0, 0.0), 1)] == ["east"]


def test_equally_near_vectors_are_ordered_by_name(store: VectorStore) -> None:
    store.put([ToolVector(name, "", (1.0, 3.0)) for name in "cadb"])
    assert [match.name for match in store.nearest((1.0, 2.0), 3)] == ["a", "b", "c"]


def test_a_vector_replaces_an_earlier_one_and_its_digest(store: VectorStore) -> None:
    store.put([EAST, NORTH])
    store.put([ToolVector("north", "4", (1.0, 0.0))])
    assert store.digests(["north", "east", "west"]) == {"north": "4", "east": "1"}
    assert store.nearest((1.0, 0.0), 5) == [ToolMatch("east", 1.0), ToolMatch("north", 1.0)]


def test_removed_vectors_are_gone(store: VectorStore) -> None:
    store.put([EAST, NORTH])
    store.remove(["east", "west"])
    assert store.digests(["east", "north"]) == {"north": "2"}
    assert [match.name for match in store.nearest((1.0, 0.1), 5)] == ["north"]
    store.remove(["north"])
    assert store.nearest((1.0, 0.1), 5) == []


def test_a_vector_of_zeros_is_near_to_nothing(store: VectorStore) -> None:
    store.put([EAST, ToolVector("nowhere", "", (0.0, 0.0))])
    assert store.nearest((1.0, 0.0), 1) == [ToolMatch("east", 1.0)]
    assert all(match.score <= 0 for match in store.nearest((0.0, 0.0), 5))


def test_vectors_of_another_length_are_refused_and_nothing_changes(store: VectorStore) -> None:
    if isinstance(store, PgVectorStore):
        pytest.skip("PostgreSQL refuses them when it compares them")
    store.put([EAST])
    with pytest.raises(ValueError, match="the vectors have 3 dimensions, and the store has vectors with 2"):
        store.put([ToolVector("other", "", (1.0, 2.0, 3.0))])
    assert store.nearest((1.0, 0.0), 5) == [ToolMatch("east", 1.0)]


def test_an_index_embeds_only_texts_that_its_store_does_not_have(store: VectorStore) -> None:
    tools = [ToolDefinition(name=name, description=f"The {name} tool.") for name in ("weather", "mail")]
    first, second = WordEmbeddings(), WordEmbeddings()
    VectorToolIndex(first, store).add(tools)
    assert len(first.texts) == 2
    index = VectorToolIndex(second, store)
    index.add([*tools, ToolDefinition(name="map", description="Draw a map.")])
    assert [text.splitlines()[0] for text in second.texts] == ["map"]
    index.add([tools[0].replace(description="Something else.")])
    assert [text.splitlines()[0] for text in second.texts] == ["map", "weather"]
    assert index.search("mail", 1)[0].name == "mail"


# PostgreSQL.


def sql(statement: Any) -> str:
    text = " ".join(str(statement.compile(dialect=postgresql.dialect())).split())
    return re.sub(r"::[A-Z]+", "", text)  # casts that drivers may add


def test_the_statements_are_those_of_pgvector() -> None:
    assert "embedding vector NOT NULL" in sql(CreateTable(VECTORS))
    assert "PRIMARY KEY (catalogue, name)" in sql(CreateTable(VECTORS))
    assert sql(nearest_to("c", (1.0, 2.0), 3)) == (
        "SELECT anon_1.name, anon_1.distance FROM (SELECT tool_vectors.name AS name, "
        "tool_vectors.embedding <=> CAST(%(embedding_1)s AS vector) AS distance FROM tool_vectors "
        "WHERE tool_vectors.catalogue = %(catalogue_1)s) AS anon_1 "
        "WHERE anon_1.distance != %(distance_1)s "
        "ORDER BY anon_1.distance, anon_1.name LIMIT %(param_1)s"
    )
    assert "CAST(%(embedding)s AS vector)" in sql(upsert())
    assert "ON CONFLICT (catalogue, name) DO UPDATE SET digest = excluded.digest" in sql(upsert())
    assert sql(deletion("c", ["n"])).startswith("DELETE FROM tool_vectors WHERE tool_vectors.catalogue =")
    assert "tool_vectors.name IN" in sql(digests_of("c", ["n"]))


def test_a_vector_is_sent_as_text() -> None:
    bind = VECTORS.c.embedding.type.bind_processor(postgresql.dialect())
    assert bind is not None
    assert bind([1, 0.5, -1e-9]) == "[1.0,0.5,-1e-09]"


def test_a_database_that_is_down_is_an_error_without_contents() -> None:
    store = PgVectorStore(NOWHERE)
    for use in (
        lambda: store.nearest((1.0,), 1),
        lambda: store.digests([MARKER]),
        lambda: store.put([ToolVector(MARKER, "", (1.0,))]),
        lambda: store.remove([MARKER]),
    ):
        with pytest.raises(ToolIndexError, match="OperationalError") as caught:
            use()
        assert caught.value.original is not None
        assert caught.value.__context__ is None
        for text in (str(caught.value), repr(caught.value)):
            assert MARKER not in text
            assert "hidden" not in text


def test_it_needs_a_catalogue_and_postgresql() -> None:
    with pytest.raises(ValueError, match="catalogue must be a name"):
        PgVectorStore(NOWHERE, "\n")
    with pytest.raises(TypeError, match="catalogue must be a str, not int"):
        PgVectorStore(NOWHERE, 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a vector store needs PostgreSQL"):
        PgVectorStore("sqlite:///vectors.db")
    with pytest.raises(ConfigurationError, match="a store of vectors needs an embedding model: pass model="):
        VectorToolIndex(store=InMemoryVectorStore())


@pytest.mark.slow
def test_processes_that_change_the_same_tools_in_other_orders_wait_for_each_other(postgresql_url: str) -> None:
    stores = [PgVectorStore(postgresql_url) for _ in range(3)]  # each has connections of its own, like a process
    names = [f"tool_{number}" for number in range(400)]

    def change(store: PgVectorStore, order: list[str]) -> None:
        for number in range(3):
            store.put([ToolVector(name, f"{number}", (1.0, 0.0)) for name in order])
            store.remove(order[:100])

    orders = (names, names[::-1], [*names[200:], *names[:200]])
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(change, store, order) for store, order in zip(stores, orders, strict=True)]:
            done.result()
    for store in stores:
        store.close()


@pytest.mark.slow
def test_catalogues_are_apart_and_processes_share_them(postgresql_url: str) -> None:
    ours, theirs, others = (PgVectorStore(postgresql_url, name) for name in ("a", "a", "b"))
    ours.put([EAST])
    others.put([NORTH])
    assert theirs.digests(["east", "north"]) == {"east": "1"}
    others.remove(["east"])
    assert [match.name for match in theirs.nearest((1.0, 1.0), 5)] == ["east"]
    for store in (ours, theirs, others):
        store.close()
