"""A run with a key goes on where it was, in any process, and does nothing twice."""

from __future__ import annotations

import asyncio
import json
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert, inspect, text, update

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from traced_tools import (
    Approve,
    AuditAdvisor,
    ChatClient,
    LoopLimits,
    ToolCall,
    ToolContext,
    ToolMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.approvals.pending_schema import RUN_RECORDS
from traced_tools.approvals.run_logs import MAX_LIVES
from traced_tools.core import InputRequest, PendingInput, Provide, ToolAnnotations, ToolCallback
from traced_tools.durable_run import DurableRun
from traced_tools.errors import (
    ConfigurationError,
    InputRequired,
    KeyInUse,
    LoopLimitExceeded,
    ModelError,
    ResumeError,
    RunTaken,
    UnknownRun,
)
from traced_tools.flow.flow import call
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.state import text_digest
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, tool_callbacks

LOOK, POST, PAY = (ToolCall(name, {}, id=name) for name in ("look", "post", "pay"))


class World:
    """A store, what has happened in its runs, and clients as of several processes."""

    def __init__(self, store: PendingStore) -> None:
        self.store, self.trail, self.telemetry = store, KeptTrail(), Telemetry()
        self.ran: list[str] = []
        self.while_posting: list[Callable[[], object]] = []
        self.models: list[ScriptedChatModel] = []

    def client(self, *turns: Any, **settings: Any) -> ChatClient:
        @tool(annotations=ToolAnnotations(idempotent=True))
        def look() -> str:
            """Look something up."""
            self.ran.append("look")
            return "seen"

        @tool
        def post() -> str:
            """Post something."""
            self.ran.append("post")
            while self.while_posting:
                elsewhere(self.while_posting.pop())
            return "posted"

        @tool(requires_approval=True)
        def pay() -> str:
            """Pay."""
            self.ran.append("pay")
            return "paid"

        self.models.append(ScriptedChatModel([*turns]))
        settings = {"tools": [look, post, pay], "advisors": [AuditAdvisor(self.trail)], **settings}
        settings = {"pending_store": self.store, "telemetry": self.telemetry.options, **settings}
        return ChatClient(self.models[-1], name="desk", **settings)

    def submitted(self, *turns: Any, **settings: Any) -> ChatClient:
        client = self.client(*turns, **settings)
        client.submit("Go.", key="k", principal="ana")
        return client

    def status(self) -> str:
        [run] = self.store.run_logs.runs()
        return run.status


class Died(BaseException):
    """The process of a run ends."""


def dies(*_: object) -> Any:
    raise Died


def fails(*_: object) -> Any:
    raise ModelError("down")


def dying(name: str, annotations: ToolAnnotations | None = None) -> ToolCallback:
    """Return a tool whose process dies while it runs."""

    @tool(name=name, annotations=annotations or ToolAnnotations())
    def die() -> str:
        """Die."""
        raise Died

    [callback] = tool_callbacks(die)
    return callback


def elsewhere(function: Callable[[], object]) -> None:
    thread = Thread(target=function)
    thread.start()
    thread.join()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with PendingStore(tmp_path / "runs.db") as store:
        yield World(store)


@pytest.fixture(params=["drive", "adrive"])
def drive(request: pytest.FixtureRequest) -> Callable[..., DurableRun]:
    def driven(client: ChatClient, **settings: Any) -> DurableRun:
        if request.param == "drive":
            return client.drive("k", **settings)
        return asyncio.run(client.adrive("k", **settings))

    return driven


def test_a_run_is_submitted_once(world: World) -> None:
    client = world.submitted("done")
    other_release = client.replace(system="Be brief.")
    other_release.submit("Go.", key="k", principal="ana", attributes={"request": 2})
    asyncio.run(client.asubmit("Go.", key="k", principal="ana"))
    assert world.store.interrupted(agent="desk") == ["k"]
    assert client.drive("k").content == "done"
    assert world.models[0].requests[0].messages[-1].text == "Go."
    assert (world.store.interrupted(), client.drive("k").content) == ([], "done")


@pytest.mark.parametrize(
    ("question", "difference"),
    [
        ({"user": "Go.", "principal": "bob"}, "on behalf of another principal"),
        ({"user": "Go."}, "on behalf of another principal"),
        ({"user": "Something else.", "principal": "ana"}, "and another question"),
        ({"user": "Go.", "principal": "ana", "conversation_id": "c"}, "of another conversation"),
    ],
)
def test_a_key_is_of_one_question_of_one_principal(world: World, question: dict[str, Any], difference: str) -> None:
    client = world.submitted("done")
    for _ in range(2):
        with pytest.raises(KeyInUse, match=f"has a run with the key 'k' {difference}: pass another key") as caught:
            client.submit(key="k", **question)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        client.drive("k")


def test_a_key_is_of_one_agent_also_when_its_log_is_deleted(world: World) -> None:
    client = world.submitted("done")
    client.drive("k")
    for _ in range(2):
        with pytest.raises(KeyInUse, match="the key 'k' of the agent 'desk'"):
            client.replace(name="other").submit("Go.", key="k", principal="ana")
        world.store.delete_principal("ana")
    client.submit("Go.", key="k", principal="ana")
    assert client.drive("k").status == "finished"


def test_a_life_that_is_cancelled_is_interrupted(world: World) -> None:
    began = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    async def cancel(client: ChatClient) -> None:
        task = asyncio.create_task(client.adrive("k"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel(world.submitted([ToolCall("wait", {}, id="w")], tools=[wait])))
    assert world.status() == "interrupted"
    assert world.client("done", tools=[wait]).drive("k").content == "done"
    message = world.models[-1].requests[-1].messages[-1]
    assert isinstance(message, ToolMessage)
    [result] = message.results
    assert "it may have run: its run was cut off while the tool ran" in result.content


def test_a_life_that_is_interrupted_from_the_keyboard_is_interrupted(world: World) -> None:
    def interrupts(*_: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.submitted(interrupts).drive("k")
    assert world.status() == "interrupted"


def test_a_run_that_failed_because_its_tool_was_gone_goes_on_after_a_retry(world: World) -> None:
    world.submitted([PAY]).drive("k")
    world.store.decide("pay", Approve())
    with pytest.raises(ResumeError):
        world.client("done", tools=[]).drive("k")
    assert (world.status(), world.store.decided()) == ("failed", [])
    [waiting] = world.store.refused()
    assert world.store.retry(waiting.run_id)
    assert (world.status(), world.store.decided()) == ("waiting", ["k"])
    assert world.client("done").drive("k").content == "done"
    assert world.ran == ["pay"]


def test_a_run_whose_log_was_altered_is_set_apart(world: World) -> None:
    world.submitted([PAY]).drive("k")
    world.store.decide("pay", Approve())
    with world.store.due_runs.database.transaction() as connection:
        connection.execute(update(RUN_RECORDS).values(body="{}").where(RUN_RECORDS.c.number == 1))
    with pytest.raises(ResumeError, match="record 1 of the run 'k' was altered or is missing"):
        world.client("done").drive("k")
    assert (world.status(), world.store.decided()) == ("failed", [])
    assert [waiting.refusal for waiting in world.store.refused()] == ["state_invalid"]


def test_a_release_that_cannot_read_a_log_leaves_the_run_to_others(world: World) -> None:
    world.submitted([PAY]).drive("k")
    world.store.decide("pay", Approve())
    body = json.dumps({"kind": "of_a_later_release"})
    digest = text_digest(json.dumps(["k", 0, "", body]))
    with world.store.due_runs.database.transaction() as connection:
        connection.execute(update(RUN_RECORDS).values(body=body, digest=digest).where(RUN_RECORDS.c.number == 0))
    with pytest.raises(ResumeError, match="record 0 of the run 'k' is of another release") as caught:
        world.client("done").drive("k")
    assert (caught.value.lasting, world.store.decided()) == (None, ["k"])


def test_a_client_without_the_key_of_a_log_leaves_the_run_to_others(world: World) -> None:
    world.submitted([PAY], approval_key="k" * 16).drive("k")
    world.store.decide("pay", Approve())
    with pytest.raises(ResumeError, match="is not signed with a configured key") as caught:
        world.client("done").drive("k")
    assert caught.value.lasting is None
    assert world.client("done", approval_key="k" * 16).drive("k").content == "done"


def test_a_run_that_waits_goes_on_in_another_process_when_its_calls_are_decided(
    world: World, drive: Callable[..., DurableRun]
) -> None:
    assert drive(world.submitted([LOOK, PAY])).status == "waiting"
    assert (drive(world.client()).status, world.store.decided(), world.store.ready()) == ("waiting", [], [])
    world.store.decide("pay", Approve(by="eva"))
    assert (world.store.decided(agent="desk"), world.store.ready()) == (["k"], [])
    run = drive(world.client("done"))
    assert (run.status, run.content, world.ran) == ("finished", "done", ["look", "pay"])
    assert run.response is not None
    assert [result.decision for result in run.response.tool_results] == ["approved"]


def test_the_keys_of_runs_to_drive_are_read_on_asyncio_too(world: World) -> None:
    async def go_on(*agents: str) -> list[tuple[list[str], list[str]]]:
        store = world.store
        return [(await store.ainterrupted(agent=agent), await store.adecided(agent=agent)) for agent in agents]

    client = world.submitted([PAY])
    assert asyncio.run(go_on("desk", "shop")) == [(["k"], []), ([], [])]
    client.drive("k")
    world.store.decide("pay", Approve(by="eva"))
    assert asyncio.run(go_on("desk", "shop")) == [([], ["k"]), ([], [])]


def test_the_state_of_a_run_with_a_key_is_not_resumed_beside_its_log(world: World) -> None:
    run = world.submitted([PAY]).drive("k")
    assert run.response is not None
    state = run.response.state or ""
    with pytest.raises(ResumeError, match="drive"):
        world.client("done").resume(state, {"pay": Approve()}).call()
    assert world.ran == []


def test_a_failed_model_call_interrupts_a_run_and_nothing_is_asked_or_run_again(
    world: World, drive: Callable[..., DurableRun]
) -> None:
    with pytest.raises(ModelError):
        drive(world.submitted([LOOK, POST], fails))
    assert (world.status(), world.store.interrupted()) == ("interrupted", ["k"])
    assert drive(world.client("done")).content == "done"
    assert sorted(world.ran) == ["look", "post"]


def test_a_tool_that_had_begun_has_an_unknown_outcome_which_is_told_once(
    world: World, drive: Callable[..., DurableRun]
) -> None:
    with pytest.raises(Died):
        drive(world.submitted([POST], tools=[dying("post")]))
    with pytest.raises(ModelError):
        drive(world.client(fails))
    assert drive(world.client("done")).content == "done"
    [request] = world.models[-1].requests
    [result] = request.messages[-1].results
    assert result.content.startswith("The outcome of the call is unknown, and it may have run: its run was cut off")
    assert world.ran == []
    outcomes = [draft.fields["outcome"] for draft in world.trail.drafts if draft.kind == "outcome"]
    assert outcomes.count("unknown") == 1
    assert not any(draft.fields.get("intent_late") for draft in world.trail.drafts)
    told = [span for span in world.telemetry.named("execute_tool post") if "unknown" in str(span.attributes)]
    assert len(told) == 1


def test_a_run_goes_on_after_a_tool_that_had_begun_also_if_nothing_listens(
    world: World, drive: Callable[..., DurableRun]
) -> None:
    silent: dict[str, Any] = {"telemetry": None, "advisors": []}
    with pytest.raises(Died):
        drive(world.submitted([POST], tools=[dying("post")], **silent))
    assert drive(world.client("done", **silent)).content == "done"


def test_an_idempotent_tool_that_had_begun_runs_again(world: World, drive: Callable[..., DurableRun]) -> None:
    with pytest.raises(Died):
        drive(world.submitted([LOOK], tools=[dying("look", ToolAnnotations(idempotent=True))]))
    assert drive(world.client("done")).content == "done"
    assert world.ran == ["look"]


def test_a_process_that_was_overtaken_stops_before_its_next_step(world: World) -> None:
    client = world.submitted([POST], [PAY], "first")
    world.while_posting.append(lambda: world.client("second").drive("k"))
    with pytest.raises(RunTaken, match="'k'"):
        client.drive("k")
    assert (world.client().drive("k").content, world.ran) == ("second", ["post"])
    assert len(world.models[0].requests) == 1


def test_a_run_that_dies_before_its_first_answer_begins_again(world: World, drive: Callable[..., DurableRun]) -> None:
    with pytest.raises(Died):
        drive(world.submitted(dies))
    assert world.status() == "running"
    run = drive(world.client("done"))
    assert run.content == "done"
    spans = world.telemetry.named("invoke_agent desk")
    lives = [
        (attributes.get("run.key"), attributes.get("run.life")) for span in spans if (attributes := span.attributes)
    ]
    assert lives == [("k", 1), ("k", 2)]
    assert [len(span.links) for span in spans] == [0, 1]


def test_calls_of_all_lives_count_against_the_limits(world: World, drive: Callable[..., DurableRun]) -> None:
    limits = LoopLimits(max_tool_calls=2, on_limit="raise")
    with pytest.raises(ModelError):
        drive(world.submitted([LOOK, POST], fails, limits=limits))
    again = [ToolCall("look", {}, id="again")]
    with pytest.raises(LoopLimitExceeded):
        drive(world.client(again, "never", limits=limits))
    assert (sorted(world.ran), world.status()) == (["look", "post"], "failed")


def test_the_time_at_work_of_all_lives_counts_and_the_time_between_them_does_not(
    world: World, drive: Callable[..., DurableRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, limits = [0.0], LoopLimits(max_seconds=15, on_limit="stop")
    monkeypatch.setattr("traced_tools.core.limits.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def answers(call_id: str) -> Callable[..., Any]:
        def answer(_: object) -> list[ToolCall]:
            clock[0] += 10
            return [ToolCall("look", {}, id=call_id)]

        return answer

    with pytest.raises(ModelError):
        drive(world.submitted(answers("look"), fails, limits=limits))
    clock[0] += 1_000
    run = drive(world.client(answers("again"), limits=limits))
    assert (run.stop_reason, world.ran) == ("deadline", ["look"])


def test_a_run_whose_tool_is_gone_fails_at_once_and_keeps_its_log(world: World) -> None:
    world.submitted([PAY]).drive("k")
    world.store.decide("pay", Approve())
    with pytest.raises(ResumeError):
        world.client("done", tools=[]).drive("k")
    assert (world.status(), world.store.decided(), world.store.pending()) == ("failed", [], [])
    assert [call.refusal for call in world.store.refused()] == ["tool_missing"]
    assert world.client("done").drive("k").content == "done"


def test_a_run_fails_after_ten_lives_and_can_be_driven_by_hand(world: World) -> None:
    world.submitted()
    for _ in range(MAX_LIVES):
        assert world.store.interrupted() == ["k"]
        with pytest.raises(Died):
            world.client(dies).drive("k")
    assert (world.store.interrupted(), world.status()) == ([], "failed")
    assert world.client("done").drive("k").content == "done"


@pytest.mark.parametrize("key", [None, b"0" * 16])
def test_a_log_that_was_altered_is_refused(world: World, key: bytes | None) -> None:
    with pytest.raises(ModelError):
        world.submitted([LOOK], fails, approval_key=key).drive("k")
    forged = update(RUN_RECORDS).where(RUN_RECORDS.c.number == 0).values(body='{"kind": "submitted", "request": []}')
    with world.store._database.transaction() as connection:
        connection.execute(forged)
    with pytest.raises(ResumeError, match="record 0 of the run 'k' was altered"):
        world.client("done", approval_key=key).drive("k")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run_records SET body = body || ' ' WHERE key = 'k' AND number = :number",
        "UPDATE run_records SET digest = substr(digest, 1, 30) || '0' WHERE key = 'k' AND number = :number",
        "DELETE FROM run_records WHERE key = 'k' AND number = :number",
        "UPDATE run_records SET body = (SELECT body FROM run_records WHERE key = 'k' AND number = (:number + 3) % 8) "
        "WHERE key = 'k' AND number = :number",
        "UPDATE run_records SET (body, digest) = (SELECT body, digest FROM run_records WHERE key = 'k2' "
        "AND number = :number) WHERE key = 'k' AND number = :number",
    ],
    ids=["altered", "signed otherwise", "dropped", "reordered", "spliced"],
)
def test_a_signed_log_with_another_record_is_refused_and_nothing_runs(world: World, change: str) -> None:
    key = b"0" * 16
    for run in ("k", "k2"):
        client = world.client([LOOK], [POST], fails, approval_key=key)
        client.submit("Go.", key=run, principal="ana")
        with pytest.raises(ModelError):
            client.drive(run)
    loaded = world.store.run_logs.load("k")
    assert loaded is not None
    assert len(loaded.records) > 8
    with world.store._database.transaction() as connection:
        kept = connection.execute(text("SELECT * FROM run_records WHERE key = 'k'")).mappings().all()
    for number in range(len(kept)):
        with world.store._database.transaction() as connection:
            connection.execute(text(change), {"number": number})
        with pytest.raises(ResumeError, match="'k'"):
            world.client("never", approval_key=key).drive("k")
        with world.store._database.transaction() as connection:
            connection.execute(text("DELETE FROM run_records WHERE key = 'k'"))
            connection.execute(insert(RUN_RECORDS), [dict(row) for row in kept])
    assert world.ran == ["look", "post"] * 2
    assert world.client("done", approval_key=key).drive("k").content == "done"


def test_a_client_with_a_key_refuses_a_log_without_signatures(world: World) -> None:
    world.submitted("done")
    with pytest.raises(ResumeError, match="not signed with a configured key"):
        world.client("done", approval_key=b"0" * 16).drive("k")


def test_a_run_that_is_withdrawn_never_goes_on(world: World) -> None:
    run = world.submitted([PAY]).drive("k")
    assert run.response is not None
    assert world.store.withdraw(run.response.run_id)
    assert (world.client().drive("k").status, world.store.decided()) == ("withdrawn", [])


@pytest.mark.parametrize(("method", "error"), [("append", RunTaken), ("claim", ResumeError)])
def test_a_run_that_is_withdrawn_while_a_process_begins_to_drive_it_stays_withdrawn(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]
) -> None:
    run, logs = world.submitted([PAY]).drive("k"), world.store.run_logs
    assert run.response is not None
    run_id, write = run.response.run_id, getattr(logs, method)

    def withdrawn_before(*arguments: Any) -> Any:
        world.store.withdraw(run_id)
        return write(*arguments)

    world.store.decide("pay", Approve())
    monkeypatch.setattr(logs, method, withdrawn_before)
    with pytest.raises(error):
        world.client("never").drive("k")
    monkeypatch.undo()
    assert (world.status(), world.store.interrupted(), world.ran) == ("withdrawn", [], [])
    assert world.client("never").drive("k").status == "withdrawn"


def test_a_call_that_has_asked_for_input_waits_on_if_its_process_dies_in_another_call(
    world: World, drive: Callable[..., DurableRun]
) -> None:
    question = {"message": "?", "requestedSchema": {"type": "object", "properties": {"cm": {"type": "number"}}}}

    @tool
    def order(context: ToolContext) -> str:
        """Order something."""
        world.ran.append("order")
        if context.input is None:
            raise InputRequired(
                PendingInput(requests=(InputRequest(key="k", method="elicitation/create", params=question),))
            )
        return "ordered"

    tools = [order, *tool_callbacks(dying("die"))]
    last = ToolCall("die", {}, id="die")
    limit = ToolCallingAdvisor(ToolCallingManager(max_concurrency=1))
    with pytest.raises(Died):
        drive(world.submitted([ToolCall("order", {}, id="order"), last], tools=tools, tool_calling_advisor=limit))
    assert drive(world.client(tools=tools)).status == "waiting"
    assert [(waiting.call_id, bool(waiting.input)) for waiting in world.store.pending()] == [("order", True)]
    world.store.decide("order", Provide({"k": None}))
    assert drive(world.client("done", tools=tools)).content == "done"
    ordered, died = world.models[-1].requests[0].messages[-1].results
    assert (ordered.content, died.content[:27]) == ("ordered", "The outcome of the call is ")
    assert world.ran == ["order", "order"]


def test_deleted_logs_leave_their_keys(world: World) -> None:
    world.submitted("done").drive("k")
    world.store.delete_spent()
    assert (world.submitted().drive("k").status, world.ran) == ("finished", [])
    world.store.delete_principal("ana")
    world.client().submit("Go.", key="k2", principal="ana")
    world.store.delete_principal("ana")
    assert world.client().drive("k2").status == "withdrawn"
    assert {run.principal for run in world.store.run_logs.runs()} == {None}


def test_the_log_of_a_principal_that_is_deleted_stops_the_process_that_drives_it(world: World) -> None:
    client = world.submitted([POST], "never")
    world.while_posting.append(lambda: world.store.delete_principal("ana"))
    with pytest.raises(RunTaken):
        client.drive("k")


@pytest.mark.parametrize(("priority", "problem"), [(1_000_001, "at most 1,000,000"), (-1_000_001, "at least -1000000")])
def test_a_priority_has_bounds(world: World, priority: int, problem: str) -> None:
    with pytest.raises(ValueError, match=f"priority must be {problem}"):
        world.client("done").submit("Go.", key="k", priority=priority)


def test_nothing_of_a_principal_is_left_while_a_process_drives_its_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "runs.db", "mArKeR"
    with PendingStore(path) as store:
        world = World(store)
        waits = world.client([ToolCall("pay", {}, id=mark)], mark)
        client = world.client(mark, [ToolCall("post", {}, id=mark)], "never")
        for key in ("finished", "k"):
            client.submit(mark, key=key, principal=mark, attributes={"tenant": mark})
        waits.submit(mark, key="waiting", principal=mark)
        assert waits.drive("waiting").status == "waiting"
        store.decide(mark, Approve(by=mark))
        assert client.drive("finished").content == mark
        world.while_posting.append(lambda: store.delete_principal(mark))
        with pytest.raises(RunTaken):
            client.drive("k")
        with store._database.transaction() as connection:
            for name in inspect(connection).get_table_names():
                assert mark not in str(connection.execute(text(f'SELECT * FROM "{name}"')).all())
        assert {run.status for run in store.run_logs.runs()} == {"finished", "withdrawn"}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # until then, a file of SQLite has what was deleted in pages that it reuses
    assert mark.encode() not in path.read_bytes()


def test_a_state_that_is_deleted_after_its_claim_is_not_needed_any_more(world: World) -> None:
    world.submitted([POST, PAY]).drive("k")
    world.store.decide("pay", Approve())

    def deletes_and_dies(*_: object) -> Any:
        elsewhere(world.store.delete_spent)
        raise Died

    with pytest.raises(Died):
        world.client(deletes_and_dies).drive("k")
    assert (world.status(), world.store.pending()) == ("running", [])
    assert world.client("done").drive("k").content == "done"
    assert world.ran == ["post", "pay"]


@pytest.mark.parametrize("key", ["", " ", "a\nb", "x" * 201])
def test_a_key_is_short_and_printable(world: World, key: str) -> None:
    with pytest.raises(ValueError, match="key must have 1 to 200 printable characters"):
        world.client().submit("Go.", key=key)


def test_a_run_needs_a_store_a_known_key_and_known_arguments(world: World) -> None:
    with pytest.raises(ConfigurationError, match="pending_store"):
        world.client(pending_store=None).submit("Go.", key="k")
    with pytest.raises(UnknownRun, match="submit it first"):
        world.client().drive("k")
    with pytest.raises(TypeError, match="unexpected keyword argument 'tools'"):
        world.client().submit("Go.", key="k", tools=[])  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="status must be one of"):
        world.store.run_logs.runs(status="lost")  # type: ignore[arg-type]


def test_no_repr_of_a_run_shows_what_it_is_asked_or_who_asks(world: World) -> None:
    client = world.client("mArKeR")
    client.submit("mArKeR", key="k", principal="mArKeR")
    opened = call(world.store.open_run("k", "desk", ()))
    values: list[object] = [opened, opened.life, opened.life and opened.life.question, world.store.run_logs.load("k")]
    values += [client.drive("k"), call(world.store.open_run("k", "desk", ())), world.store.run_logs.runs()]
    assert "mArKeR" not in repr(values)
