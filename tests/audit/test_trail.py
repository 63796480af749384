"""The trail as its users see it: what it stores of drafts, how it waits, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.trails import (
    KEY,
    SECRET,
    awrite,
    bodies,
    calls,
    intent,
    of_kind,
    write,
    write_each_way,
)
from tests.helpers import relaxed
from tests.support import PATIENCE, in_time
from traced_tools.audit import writer
from traced_tools.audit.contents import MOST_CONTENT, MOST_NAME
from traced_tools.audit.records import Content, Draft, Subject, timestamp
from traced_tools.audit.schema import REPEATED
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditError, AuditUnavailable, ConfigurationError

WAYS = ("blocking", "asyncio")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


def columns(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM audit_records ORDER BY chain_id, sequence")]


# What is stored.


def test_a_record_says_what_its_draft_says(path: Path) -> None:
    draft = intent(conversation_id="c-1", trace_id="0" * 31 + "1", span_id="0" * 15 + "1")
    with AuditTrail(path, key=KEY, service="travel", tags={"region": "eu"}) as trail:
        write(trail, draft)
        key_id = of_kind(path, "intent")[0]["arguments"]["key_id"]
    (record, _) = bodies(path)
    assert record == {
        "schema_version": 1,
        "kind": "intent",
        "chain_id": record["chain_id"],
        "sequence": 1,
        "previous": "0" * 64,
        "time": timestamp(draft.time),
        "service": "travel",
        "tags": {"region": "eu"},
        "agent": "planner",
        "run_id": "run-1",
        "call_id": "call_1",
        "tool": "get_weather",
        "iteration": 1,
        "batch_index": 0,
        "conversation_id": "c-1",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "source": "local",
        "argument_names": ["city"],
        "batch_size": 1,
        "arguments": {"digest": record["arguments"]["digest"], "form": "json", "size": 16, "key_id": key_id},
    }


def test_columns_repeat_what_the_body_says(path: Path) -> None:
    decision = Draft("decision", 5, intent().subject, {"decision": "allowed", "advisor": "policy"})
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent())
        trail.submit(decision)
    for row in columns(path):
        fields = json.loads(row["body"])
        assert {name: row[name] for name in REPEATED} == {name: fields.get(name) for name in REPEATED}
        assert (row["chain_id"], row["sequence"], row["kind"]) == (
            fields["chain_id"],
            fields["sequence"],
            fields["kind"],
        )
        assert timestamp(row["time"]) == fields["time"]


def test_what_is_unknown_is_left_out(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent())
    assert not {"service", "tags", "conversation_id", "trace_id", "span_id"} & set(of_kind(path, "intent")[0])


def stored(path: Path, told: Content, /, **options: Any) -> dict[str, Any]:
    """What a trail stores of a content."""
    with AuditTrail(path, key=KEY, **options) as trail:
        write(trail, Draft("intent", 1, intent().subject, contents={"arguments": told}))
    found: dict[str, Any] = of_kind(path, "intent")[0]["arguments"]
    return found


def test_nothing_but_a_digest_is_stored_by_default(path: Path) -> None:
    stored(path, Content(json.dumps({"city": SECRET}), True, True))
    for each in path.parent.iterdir():
        assert SECRET.encode() not in each.read_bytes()


def test_all_of_a_content_is_stored_on_request(path: Path) -> None:
    told = stored(path, Content('{"city":  "Oslo"}', True, True), content="full")
    assert told["text"] == '{"city":  "Oslo"}'
    assert "cut" not in told


def test_a_redactor_is_given_the_value_and_says_what_is_stored(path: Path) -> None:
    seen: list[tuple[str, object]] = []

    def redact(name: str, value: Any) -> object:
        seen.append((name, value))
        return {**value, "city": "***"}

    told = stored(path, Content('{"city": "Oslo", "days": 2}', True, True), content="redacted", redactor=redact)
    assert seen == [("arguments", {"city": "Oslo", "days": 2})]
    assert json.loads(told["text"]) == {"city": "***", "days": 2}


@pytest.mark.parametrize("left", [None, 1 / 2, "a text", [1], {"a": None}])
def test_a_redactor_may_return_anything(path: Path, left: object) -> None:
    told = stored(path, Content("words", True), content="redacted", redactor=lambda name, value: left)
    text = left if left is None or isinstance(left, str) else json.dumps(left)
    assert told.get("text") == text


@pytest.mark.parametrize("text", ["{", "\ud800", '{"a": 1}'])
def test_a_redactor_that_fails_leaves_the_digest(path: Path, text: str) -> None:
    def fail(name: str, value: object) -> object:
        raise SystemError(SECRET)

    told = stored(path, Content(text, True, True), content="redacted", redactor=fail)
    assert set(told) == {"digest", "form", "size", "key_id"}


def test_a_redactor_may_return_what_cannot_be_stored(path: Path) -> None:
    told = stored(path, Content("{}", True, True), content="redacted", redactor=lambda name, value: object())
    assert "text" not in told


@pytest.mark.parametrize("content", ["full", "redacted"])
def test_of_a_silent_tool_only_the_digest_is_stored(path: Path, content: Any) -> None:
    redactor = (lambda name, value: value) if content == "redacted" else None
    stored(path, Content(SECRET, False), content=content, redactor=redactor)
    assert SECRET.encode() not in path.read_bytes() + Path(f"{path}.checkpoints").read_bytes()


def test_a_long_content_is_cut_and_says_so(path: Path) -> None:
    told = stored(path, Content("x" * (MOST_CONTENT + 1), True), content="full")
    assert told["text"] == "x" * MOST_CONTENT
    assert told["cut"] is True
    assert told["size"] == MOST_CONTENT + 1


# Odd drafts.

hostile = st.text(st.characters()) | st.sampled_from(["\0", "\ud800", "'; DROP TABLE audit_records; --", "\x1b[2J", "‮"])


@relaxed
@given(st.lists(hostile, min_size=5, max_size=5), hostile)
def test_any_text_goes_through(tmp_path_factory: pytest.TempPathFactory, names: list[str], text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "audit.db"
    agent, run_id, call_id, tool, conversation = names
    with AuditTrail(path, key=KEY, content="full", service=text, tags={text: text}) as trail:
        subject = Subject(agent, run_id, call_id, tool, 1, 0, conversation)
        write(trail, Draft("intent", 1, subject, {"model": text}, {"reason": Content(text, True)}))
    (record,) = of_kind(path, "intent")
    assert record["reason"]["text"] == text
    assert record["model"] == text
    expected = [
        each.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd") for each in names
    ]
    assert [record[name] for name in ("agent", "run_id", "call_id", "tool", "conversation_id")] == expected


@pytest.mark.parametrize(
    "odd",
    [
        intent("odd", tool="t" * 10_000_000),
        intent("odd", tool="\U00020000" * 300, conversation_id="\u3042" * 600, agent="\ud800" * 300),
        intent("odd", arguments=json.dumps({"a": "x" * 10_000_000})),
        intent("odd", arguments="\ud800" * 1000),
        intent("odd", iteration=2**80, batch_index="one"),
        intent("odd", tool=17, agent=b"bytes", conversation_id=["a", "list"]),
        Draft("intent", 1, intent("odd").subject, {"model": object(), "duration": float("nan"), "attempts": 2**5000}),
        Draft("intent", 1, intent("odd").subject, {"x": {"y" * 100_000: [[[[[{}]]]]] * 10_000}}),
    ],
    ids=["long name", "long characters", "10 MB", "surrogates", "numbers", "types", "no JSON", "a lot"],
)
def test_an_odd_draft_is_recorded_and_does_not_disturb_its_neighbours(path: Path, odd: Draft) -> None:
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent("before"))
        trail.submit(odd)
        write(trail, intent("after"))
    assert calls(path) == ["before", "odd", "after"]
    assert not of_kind(path, "gap")
    assert path.stat().st_size < 1_000_000
    for row in columns(path):
        assert all(len(str(row[name]).encode()) <= MOST_NAME for name in REPEATED)


def circular() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    fields["again"] = fields
    return fields


def test_a_circular_draft_is_cut(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, Draft("intent", 1, intent().subject, circular()))
    assert calls(path) == ["call_1"]


@pytest.mark.parametrize("time", [None, "now", 2**80, -(2**80)])
def test_a_time_that_is_none_becomes_that_of_the_record(path: Path, time: Any) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, Draft("intent", time, intent().subject))
    (record, _) = bodies(path)
    assert record["time"][:2] == "20"


def test_a_draft_that_no_record_can_be_made_of_is_lost_alone_and_counted(path: Path) -> None:
    impossible = Draft("intent", 1, "nobody")  # type: ignore[arg-type]
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent("before"))
        with pytest.raises(AuditUnavailable):
            write(trail, impossible)
        write(trail, intent("after"))
    assert calls(path) == ["before", "after"]
    (gap,) = of_kind(path, "gap")
    assert (gap["late"], gap["lost"]) == (0, 1)


# How it waits.


@pytest.mark.parametrize("way", WAYS)
def test_what_was_waited_for_is_in_the_store(path: Path, way: str) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(5):
            write_each_way(trail, intent(f"call_{number}"), way)
            assert calls(path)[-1] == f"call_{number}"


def test_submitting_keeps_the_order(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(3000):
            trail.submit(intent(f"call_{number}"))
        assert trail.flush()
        assert calls(path) == [f"call_{number}" for number in range(3000)]


def test_many_threads_write_one_chain(path: Path) -> None:
    def work(thread: int) -> None:
        for number in range(25):
            write(trail, intent(f"{thread}-{number}"))

    with AuditTrail(path, key=KEY) as trail, ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    found = calls(path)
    assert sorted(found) == sorted(f"{thread}-{number}" for thread in range(16) for number in range(25))
    for thread in range(16):
        assert [each for each in found if each.startswith(f"{thread}-")] == [f"{thread}-{n}" for n in range(25)]


def test_many_event_loops_write_one_chain(path: Path) -> None:
    async def all_of(loop: int) -> None:
        await asyncio.gather(*(awrite(trail, intent(f"{loop}-{number}")) for number in range(50)))

    with AuditTrail(path, key=KEY) as trail, ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda loop: asyncio.run(all_of(loop)), range(6)))
        asyncio.run(all_of(6))
        asyncio.run(all_of(7))
    assert sorted(calls(path)) == sorted(f"{loop}-{number}" for loop in range(8) for number in range(50))


def test_concurrent_writes_share_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def many() -> None:
        await asyncio.gather(*(awrite(trail, intent(f"call_{number}")) for number in range(500)))

    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent("first"))
        commits: list[int] = []
        monkeypatch.setattr(trail._writer, "_on_stored", lambda batch: commits.append(len(batch.rows)))
        asyncio.run(many())
    assert sum(commits) >= 500
    assert len(commits) <= 20


def test_a_record_is_written_though_nobody_waits_for_it_any_more(path: Path) -> None:
    async def leave() -> None:
        waiting = asyncio.create_task(awrite(trail, intent("left")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with AuditTrail(path, key=KEY) as trail:
        asyncio.run(leave())
    assert calls(path) == ["left"]


def test_an_event_loop_that_is_gone_disturbs_nobody(path: Path) -> None:
    loop = asyncio.new_event_loop()
    with AuditTrail(path, key=KEY) as trail:
        waiting = trail.write(intent("gone")).arun()
        loop.run_until_complete(first_step(waiting))
        loop.close()
        write(trail, intent("after"))
        waiting.close()
    assert calls(path) == ["gone", "after"]


async def first_step(coroutine: Any) -> None:
    coroutine.send(None)


# How it begins and ends.


def test_nothing_is_made_before_the_first_record(path: Path) -> None:
    trail = AuditTrail(path)
    trail.checkpoint()
    assert trail.flush()
    trail.close()
    assert list(path.parent.iterdir()) == []


def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    mask = os.umask(0)
    try:
        trail = AuditTrail(path)
        write(trail, intent())
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        trail.close()
    finally:
        os.umask(mask)
    assert {*modes} >= {"audit.db", "audit.db-wal", "audit.db.key"}
    assert {*modes.values()} == {0o600}
    assert stat.S_IMODE(Path(f"{path}.checkpoints").stat().st_mode) == 0o600


def test_a_trail_goes_on_with_its_store_after_a_change_of_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    trail = AuditTrail("audit.db", key=KEY)
    monkeypatch.chdir("/")
    with trail:
        write(trail, intent())
    assert calls(path) == ["call_1"]


def test_closing_writes_all_that_waits(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    for number in range(2000):
        trail.submit(intent(f"call_{number}"))
    trail.close()
    assert len(calls(path)) == 2000
    assert bodies(path)[-1]["kind"] == "checkpoint"


def test_closing_twice_is_closing_once(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    write(trail, intent())
    trail.close()
    trail.close()
    assert len(of_kind(path, "checkpoint")) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_trail_takes_nothing(path: Path, way: str, caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail(path, key=KEY)
    trail.close()
    trail.submit(intent())
    with pytest.raises(AuditUnavailable, match="closed"):
        write_each_way(trail, intent(), way)
    assert not trail._writer.started
    assert [each.getMessage() for each in caplog.records if "lost" in each.getMessage()] != []
    assert not path.exists()


def test_a_trail_that_nobody_holds_writes_what_it_has_and_ends(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    trail.submit(intent())
    thread, gone = trail._writer._thread, weakref.ref(trail)
    assert thread is not None
    del trail
    gc.collect()
    assert gone() is None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint"]


def test_the_end_of_the_process_closes_open_trails(path: Path) -> None:
    code = """
import sys
from tests.audit.trails import KEY, intent
from traced_tools.audit.trail import AuditTrail
trail = AuditTrail(sys.argv[1], key=KEY)
for number in range(500):
    trail.submit(intent(f"call_{number}"))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(path)], check=True, timeout=60)
    assert len(calls(path)) == 500
    assert bodies(path)[-1]["kind"] == "checkpoint"


def test_a_record_made_by_the_garbage_collector_is_written(path: Path) -> None:
    class Loop:
        def __init__(self, trail: AuditTrail, name: str) -> None:
            self.trail, self.name, self.me = trail, name, self

        def __del__(self) -> None:
            self.trail.submit(intent(self.name))

    with AuditTrail(path, key=KEY) as trail:
        for number in range(200):
            Loop(trail, f"call_{number}")
            write(trail, intent("by hand"))
        in_time(gc.collect)
    found = calls(path)
    assert len(found) == 400
    assert {f"call_{number}" for number in range(200)} <= {*found}


@pytest.mark.parametrize("runs", [True, False])
def test_an_interrupt_while_the_thread_starts_leaves_a_trail_that_works(
    path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    real, interrupts = threading.Thread.start, [True]

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != "traced_tools-audit" or not interrupts:
            return real(thread)
        interrupts.pop()
        if runs:
            real(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_TO_BEGIN", PATIENCE if runs else 0.01)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    trail = AuditTrail(path, key=KEY)
    with pytest.raises(KeyboardInterrupt):
        trail.submit(intent("first"))
    assert trail._writer.started is runs
    for number in range(200):
        trail.submit(intent(f"call_{number}"))
    assert trail.flush(PATIENCE)
    assert len(calls(path)) == 201
    trail.submit(intent("last"))
    trail.close()
    assert calls(path)[-1] == "last"
    assert bodies(path)[-1].get("final") is True
    assert trail._writer._thread is not None and not trail._writer._thread.is_alive()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer to interrupt with")
def test_an_interrupt_at_any_instant_of_the_first_record_leaves_a_trail_that_works(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(60):
            path = tmp_path / f"{number}.db"
            trail = AuditTrail(path, key=KEY)
            with suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00001 + number * 0.000005)
                    trail.submit(intent("first"))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)  # else it has struck, and strikes once
            in_time(lambda trail=trail: write(trail, intent("second")))  # type: ignore[misc]
            trail.close()
            assert calls(path)[-1] == "second"
            assert trail._writer._thread is not None and not trail._writer._thread.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Settings.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"content": "all"}, "content must be"),
        ({"content": "redacted"}, "needs a redactor"),
        ({"content": "full", "redactor": print}, "needs a redactor"),
        ({"signing_key": b"short"}, "Ed25519"),
        ({"signing_key": "missing.pem"}, "FileNotFoundError"),
        ({"signing_key": 5}, "bytes or a path"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        AuditTrail(path, key=KEY, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"checkpoint_every": 0}, ValueError),
        ({"checkpoint_interval": 0}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"timeout": "5"}, TypeError),
        ({"service": 5}, TypeError),
        ({"tags": {"a": 1}}, TypeError),
        ({"tags": {1: "a"}}, TypeError),
        ({"tags": "a"}, TypeError),
        ({"redactor": "a", "content": "redacted"}, TypeError),
    ],
)
def test_a_setting_of_another_type_is_refused(path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        AuditTrail(path, key=KEY, **options)


@pytest.mark.parametrize("store", ["sqlite://", "sqlite:///:memory:", ":memory:", "mysql://me:pAsS@host/db", "://", ""])
def test_a_store_that_cannot_be_used_is_refused(store: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AuditTrail(store, key=KEY)
    assert "pAsS" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["password=pAsS", "sslmode=disable&sslpassword=pAsS", "options=-c%20pAsS", "host=127.0.0.1&password=pAsS"]
)
def test_a_password_in_the_query_of_a_url_is_shown_nowhere(query: str, caplog: pytest.LogCaptureFixture) -> None:
    trail = AuditTrail(f"postgresql://me@127.0.0.1:1/audit?{query}", key=KEY, timeout=0.1)
    with pytest.raises(AuditUnavailable) as unavailable:
        write(trail, intent())
    with pytest.raises(AuditError) as unreadable:
        trail.query()
    trail.close(0.1)
    for text in (repr(trail), repr(trail.store), str(unavailable.value), str(unreadable.value), caplog.text):
        assert "pAsS" not in text
        assert "me@127.0.0.1:1/audit" in text


def test_a_url_may_name_the_file(path: Path) -> None:
    with AuditTrail(f"sqlite:///{path}", key=KEY) as trail:
        write(trail, intent())
    assert calls(path) == ["call_1"]
    assert repr(trail) == f"AuditTrail('{path}')"


# Reading through the trail.


def test_what_was_taken_can_be_read_at_once(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent())
        assert [call.run_id for call in trail.query(tool="get_weather")] == ["run-1"]
        assert len(trail.run("run-1").calls) == 1
        assert trail.verify().ok
        assert trail.match("call_1", '{ "city": "Oslo" }')
        assert not trail.match("call_1", '{"city": "Bergen"}')


def test_threads_that_wait_are_woken_together(path: Path) -> None:
    """Each waits for its own record, whatever else is in the batch."""
    with AuditTrail(path, key=KEY) as trail:
        barrier = threading.Barrier(8)

        def work(number: int) -> bool:
            barrier.wait(PATIENCE)
            write(trail, intent(f"call_{number}"))
            return f"call_{number}" in calls(path)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))
