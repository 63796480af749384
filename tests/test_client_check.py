"""What a client depends on is checked at the start of an application, without tokens and without contents."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.markers import MARKER
from tests.mcp.serving import serving_http
from tests.models.samples import SAMPLES, Sample
from tests.waiting import patiently
from traced_tools import Advisor, AuditAdvisor, ChatClient, MemoryAdvisor
from traced_tools.approvals import PendingStore
from traced_tools.audit import AuditTrail
from traced_tools.core import CheckedPart, PartCheck
from traced_tools.mcp import McpToolset
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory, SqlChatMemoryRepository
from traced_tools.models import FallbackModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel


@pytest.fixture(params=["check", "acheck"])
def check(request: pytest.FixtureRequest) -> Callable[[ChatClient], list[CheckedPart]]:
    """Check a client, blocking or on asyncio."""
    if request.param == "check":
        return lambda client: client.check()
    return lambda client: asyncio.run(patiently(client.acheck()))


Check = Callable[[ChatClient], list[CheckedPart]]


def problems_of(parts: list[CheckedPart]) -> dict[str, str | None]:
    assert all(each.ok is (each.problem is None) for each in parts)
    return {each.part: each.problem for each in parts}


# Models.


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind.__name__)
def test_a_model_is_asked_for_the_list_of_models_with_its_key_and_without_retries(sample: Sample, check: Check) -> None:
    body = {"error": {"message": MARKER}}
    for status, problem in ((200, None), (404, None), (401, "401"), (403, "403"), (500, "500"), (429, "429")):
        with ReplayServer([Reply.json(body, status=status)]) as server, sample.model_at(server.url, retries=3) as model:
            ((part, found),) = problems_of(check(ChatClient(model))).items()
        assert part == f"model: m of {model.provider}"
        assert (found is None) is (problem is None)
        assert found is None or (str(problem) in found and MARKER not in found)
        (request,) = server.requests
        assert (request.method, request.body) == ("GET", b"")
        assert any("k" in request.headers.get(name, "") for name in ("authorization", "x-api-key", "x-goog-api-key"))


def test_a_model_that_cannot_be_reached_is_a_problem_of_each_model_that_may_answer(check: Check) -> None:
    with ReplayServer([]) as server:
        url = server.url
    models = [sample.model_at(url) for sample in SAMPLES[:2]]
    parts = check(ChatClient(FallbackModel([*models, ScriptedChatModel([])])))
    assert [each.problem is not None and "connection" in each.problem for each in parts] == [True, True]


def test_a_model_without_a_check_is_no_part(check: Check) -> None:
    assert check(ChatClient(ScriptedChatModel([]))) == []


# Stores.


def stores(folder: Path) -> tuple[ChatClient, AuditTrail, PendingStore, SqlChatMemoryRepository]:
    trail, pending = AuditTrail(folder / "audit.db"), PendingStore(folder / "pending.db")
    repository = SqlChatMemoryRepository(folder / "memory.db")
    memory = MemoryAdvisor(MessageWindowChatMemory(repository))
    client = ChatClient(ScriptedChatModel([]), advisors=[AuditAdvisor(trail), memory], pending_store=pending)
    return client, trail, pending, repository


def test_stores_that_can_be_used_have_no_problem_and_get_no_record(tmp_path: Path, check: Check) -> None:
    client, trail, pending, repository = stores(tmp_path)
    with trail, pending, repository:
        for _ in range(2):
            assert problems_of(check(client)) == {
                f"audit: {tmp_path / 'audit.db'}": None,
                "memory: SqlChatMemoryRepository": None,
                f"pending_store: sqlite:///{tmp_path / 'pending.db'}": None,
            }
        assert [*trail.query()] == []
        assert [*repository.conversations()] == []
    with closing(sqlite3.connect(tmp_path / "audit.db")) as connection:
        assert connection.execute("SELECT count(*) FROM audit_records").fetchone() == (0,)


def test_stores_in_a_folder_that_does_not_exist_are_problems(tmp_path: Path, check: Check) -> None:
    client, trail, pending, repository = stores(tmp_path / "none")
    with pending, repository:
        found = problems_of(check(client))
    trail.close()
    assert len(found) == 3
    assert all(found.values())


def test_files_that_are_no_databases_are_problems_without_their_contents(tmp_path: Path, check: Check) -> None:
    for name in ("audit.db", "memory.db", "pending.db"):
        (tmp_path / name).write_text(MARKER * 200)
    (tmp_path / "audit.db.key").write_bytes(b"0" * 32)
    (tmp_path / "audit.db.key").chmod(0o600)
    client, trail, pending, repository = stores(tmp_path)
    with pending, repository:
        found = problems_of(check(client))
    trail.close()
    assert all(found.values())
    assert MARKER not in str(found)


def test_tables_of_a_later_version_are_a_problem(tmp_path: Path, check: Check) -> None:
    client, trail, pending, repository = stores(tmp_path)
    with trail, pending, repository:
        check(client)
    for name, table in (("memory.db", "chat_memory_schema"), ("pending.db", "pending_schema")):
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute(f"UPDATE {table} SET version = 999")
    client, trail, pending, repository = stores(tmp_path)
    with trail, pending, repository:
        found = [each for each in problems_of(check(client)).values() if each is not None]
    assert len(found) == 2
    assert all("version" in each for each in found)


def test_a_memory_in_this_process_has_no_problem(check: Check) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), name="chats")
    client = ChatClient(ScriptedChatModel([]), advisors=[memory])
    assert check(client) == [CheckedPart("chats: InMemoryChatMemoryRepository")]


# MCP servers.


def echo(text: str) -> str:
    """Return the text."""
    return text


def test_each_mcp_server_lists_its_tools_now_even_if_runs_can_do_without_it(check: Check) -> None:
    with ReplayServer([]) as gone:
        shop = McpToolset.http(gone.url, name="shop", required=False)
    with serving_http([echo]) as url:
        bank = McpToolset.http(url, name="bank")
        with McpToolset(bank, shop) as toolset:
            client = ChatClient(ScriptedChatModel([]), tools=[toolset])
            for _ in range(2):
                found = problems_of(check(client))
                assert [*found] == ["mcp: bank", "mcp: shop"]
                assert found["mcp: bank"] is None and "shop" in str(found["mcp: shop"])
    assert all("is not open" in str(each) for each in problems_of(check(client)).values())


def test_a_server_that_is_gone_is_a_problem_although_its_tools_are_known(check: Check) -> None:
    with serving_http([echo]) as url:
        toolset = McpToolset.http(url, name="bank", timeout=5)
        toolset.__enter__()
        client = ChatClient(ScriptedChatModel(["a"]), tools=[toolset])
        client.prompt("?").call()
    try:
        assert "bank" in str(problems_of(check(client))["mcp: bank"])
    finally:
        toolset.__exit__(None, None, None)


# Parts of an application.


class Own(Advisor):
    """An advisor with parts of its own."""

    name, order = "own", 0

    def checks(self) -> list[PartCheck]:
        async def works() -> None:
            return None

        async def on_a_loop() -> None:
            await asyncio.sleep(0)

        async def fails() -> Awaitable[None]:
            raise OSError(MARKER)

        return [PartCheck("own: a", works), PartCheck("own: b", on_a_loop), PartCheck("own: c", fails)]


def test_an_application_can_add_parts_and_texts_of_other_errors_are_not_shown() -> None:
    client: Any = ChatClient(ScriptedChatModel([]), advisors=[Own()])
    found = problems_of(asyncio.run(patiently(client.acheck())))
    assert found == {"own: a": None, "own: b": None, "own: c": "OSError"}
