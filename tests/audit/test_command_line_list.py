"""`traced-tools audit list`, as a person runs it: which calls are listed, and with which columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from tests.audit.commanded import RUN, TRACE, complaint, make_store, printed, story
from tests.audit.made import Chain, Row, content, insert
from traced_tools.audit import AuditReader, AuditTrail
from traced_tools.cli.audit.options import parse_period, parse_time


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_store(tmp_path, monkeypatch)


def test_list_shows_a_row_for_each_call(store: Path) -> None:
    lines = [line.split() for line in printed("list").splitlines()]
    assert lines[0] == ["time", "(UTC)", "run", "agent", "tool", "decision", "by", "outcome", "duration"]
    assert lines[1][2:] == ["0197a3b9-1111-7f12", "clerk", "mail", "allowed", "UNFINISHED"]
    assert lines[2][2:] == ["0197a3b2-4c5d-7f12", "planner", "book", "allowed", "error", "250.0", "ms"]
    assert lines[3][2:] == ["0197a3b2-4c5d-7f12", "planner", "refund", "denied", "(needs_a_person)", "policy", "-"]
    assert lines[4][:2] == ["2026-01-01", "12:00:01"]
    assert lines[-1] == ["4", "calls,", "1", "refused,", "0", "pending,", "1", "unfinished"]


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_list_fits_the_screen_and_always_shows_agent_tool_and_outcome(
    store: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed("list")
    assert max(map(len, text.splitlines())) <= columns
    words = ("0197a3b9-1111-7f12", "12:00:01", "2026-01-01", "clerk", "mail", "UNFINISHED")
    assert not [word for word in words if word not in text]


def test_list_on_a_narrow_screen_shows_the_whole_decision(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    chain = story()
    refusal = {"decision": "denied", "by": "ana of compliance", "advisor": "rules version 2", "reason_code": "over 100"}
    chain.call("refund", run_id=RUN, iteration=9, agent="treasurer", outcome=None, **refusal)
    insert(store.with_name("refused.db"), chain.rows)
    text = printed("list", "--agent", "treasurer", "--store", store.with_name("refused.db"))
    assert max(map(len, text.splitlines())) <= 80
    words = ("denied", "ana", "compliance", "via", "rules", "version", "over", "100")
    assert not [word for word in words if word not in text]


def test_list_into_a_pipe_truncates_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    chain = story()
    chain.call("t" * 150, run_id=RUN, iteration=9, agent="a" * 150)
    insert(store.with_name("wide.db"), chain.rows)
    text = printed("list", "--store", store.with_name("wide.db"))
    assert "t" * 150 in text
    assert "a" * 150 in text


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        (["--tool", "mail"], ["mail"]),
        (["--agent", "planner"], ["book", "refund", "search"]),
        (["--decision", "denied"], ["refund"]),
        (["--outcome", "unfinished"], ["mail"]),
        (["--outcome", "error"], ["book"]),
        (["--conversation", "c-4711", "--limit", "1"], ["book"]),
        (["--call", "call_3"], ["book"]),
        (["--call", "call_3", "--outcome", "unfinished"], []),
        (["--since", "2026-01-01T12:00:05Z"], ["mail", "book"]),
        (["--until", "2026-01-01T13:00:05+01:00"], ["refund", "search"]),
        (["--until", "2026-01-01"], []),
        (["--since", "1s"], []),
    ],
    ids=str,
)
def test_list_takes_filters_and_prints_json(store: Path, options: list[str], tools: list[str]) -> None:
    assert [call["tool"] for call in json.loads(printed("list", "--json", *options))] == tools


def test_json_has_the_fields_of_a_call(store: Path) -> None:
    assert json.loads(printed("list", "--json", "--tool", "book")) == [
        {
            "time": "2026-01-01T12:00:06+00:00",
            "run_id": RUN,
            "iteration": 2,
            "batch_index": 1,
            "call_id": "call_3",
            "agent": "planner",
            "tool": "book",
            "conversation_id": "c-4711",
            "parent_run_id": None,
            "attributes": None,
            "trace_id": TRACE,
            "span_id": None,
            "principal": None,
            "actors": [],
            "state": "error",
            "decision": "allowed",
            "decided_by": None,
            "by": None,
            "reason_code": None,
            "rule": None,
            "policy_digest": None,
            "outcome": "error",
            "error_type": "OSError",
            "duration": 0.25,
            "late": False,
            "conflicting": 0,
        }
    ]


@pytest.fixture
def marked(store: Path) -> Path:
    """A store of runs with attributes: two of one tenant, one of another, and one that is unfinished."""
    chain = Chain()
    given = ({"tenant": "acme", "seats": 3, "tags": ["a", "b"]}, {"tenant": "acme", "beta": True}, {"tenant": "other"})
    for tool, attributes in zip(("one", "two", "three"), given, strict=True):
        chain.call(tool, run_id=f"run-{tool}", attributes=attributes, parent_run_id=RUN)
    chain.call("four", run_id="run-four", attributes={"tenant": "acme"}, outcome=None)
    chain.call("five", run_id="run-five", outcome=None)
    insert(store.with_name("marked.db"), chain.rows)
    return store.with_name("marked.db")


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        (["--attribute", "tenant=acme"], ["four", "two", "one"]),
        (["--attribute", "tenant=acme", "--limit", "1"], ["four"]),
        (["--attribute", "tenant=acme", "--outcome", "ok"], ["two", "one"]),
        (["--attribute", "tenant=acme", "--outcome", "unfinished"], ["four"]),
        (["--attribute", "tenant=acme", "--attribute", "seats=3"], ["one"]),
        (["--attribute", "tags=b"], ["one"]),
        (["--attribute", "beta=true"], ["two"]),
        (["--attribute", "tenant="], []),
    ],
    ids=str,
)
def test_list_and_export_filter_by_run_attributes(marked: Path, options: list[str], tools: list[str]) -> None:
    listed = json.loads(printed("list", "--json", "--store", marked, *options))
    assert [call["tool"] for call in listed] == tools
    if "--limit" not in options:
        lines = printed("export", "--format", "jsonl", "--store", marked, *options).splitlines()
        assert {json.loads(line)["tool"] for line in lines} == set(tools)


def test_json_and_show_have_the_attributes_and_the_parent_run(marked: Path) -> None:
    (call,) = json.loads(printed("list", "--json", "--tool", "one", "--store", marked))
    assert (call["attributes"], call["parent_run_id"]) == ({"tenant": "acme", "seats": 3, "tags": ["a", "b"]}, RUN)
    shown = [line.strip("├─└│ ") for line in printed("show", "run-one", "--store", marked).splitlines()]
    assert shown[2:6] == [f"parent run   {RUN}", "attributes   seats=3", 'tags=["a", "b"]', "tenant=acme"]


@pytest.mark.parametrize("given", ["tenant", "=acme", ""])
def test_an_attribute_without_a_key_or_a_value_is_an_error(marked: Path, given: str) -> None:
    assert "KEY=VALUE" in complaint("list", "--attribute", given, "--store", marked)


def test_list_and_show_name_the_person_the_advisor_and_the_code(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    refused = {"decision": "denied", "advisor": "desk", "by": "ana", "reason_code": "rule-7"}
    chain.call("refund", run_id=RUN, **refused)
    chain.call("pay", run_id=RUN, batch_index=1, decision="approved", by="bob")
    insert(store.with_name("people.db"), chain.rows)
    place = ("--store", store.with_name("people.db"))
    approved, denied = json.loads(printed("list", "--json", *place))
    assert (denied["by"], denied["decided_by"], denied["reason_code"]) == ("ana", "desk", "rule-7")
    assert (approved["by"], approved["decided_by"], approved["reason_code"]) == ("bob", None, None)
    shown = printed("show", RUN, *place)
    assert "denied by ana via desk (rule-7)" in shown
    assert "approved by bob" in shown
    wide = printed("list", *place)
    assert "denied (rule-7)  ana via desk" in wide
    monkeypatch.setenv("COLUMNS", "109")
    narrow = printed("list", *place)
    assert "denied by ana via desk (rule-7)" in narrow
    assert "ok (approved by bob)" in narrow


def test_list_filters_by_the_policy_that_decided(store: Path) -> None:
    chain = Chain()
    for index, digest in enumerate(["a1" * 8, "b2" * 8, None]):
        chain.call("pay", run_id=RUN, batch_index=index, policy_digest=digest)
    insert(store.with_name("policies.db"), chain.rows)
    place = ("--store", store.with_name("policies.db"))
    [found] = json.loads(printed("list", "--policy-digest", "b2" * 8, "--json", *place))
    assert (found["batch_index"], found["policy_digest"]) == (1, "b2" * 8)
    assert "16 hexadecimal digits" in complaint("list", "--policy-digest", "b2", *place)


def test_list_reports_that_no_call_matches(store: Path) -> None:
    assert printed("list", "--tool", "nothing") == "no matching calls\n"


@pytest.mark.parametrize(
    ("filters", "counts"),
    [
        ([], "the newest 2 of 4 calls, 0 refused, 0 pending, 1 unfinished; list more with --limit 20"),
        (
            ["--agent", "planner"],
            "the newest 2 of 3 calls, 1 refused, 0 pending, 0 unfinished; list more with --limit 20",
        ),
        (["--outcome", "ok"], "1 call, 0 refused, 0 pending, 0 unfinished"),
    ],
)
def test_the_last_line_of_a_list_that_is_cut_says_of_how_many_calls(
    store: Path, filters: list[str], counts: str
) -> None:
    *_, last = printed("list", "--limit", "2", *filters).splitlines()
    assert last == counts


def test_a_list_says_that_there_are_more_calls_where_counting_takes_reading_them(store: Path) -> None:
    chain = Chain()
    for number in range(3):
        chain.call("pay", call_id=f"call_{number}", batch_index=number)
    insert(store.with_name("paid.db"), chain.rows)
    *_, last = printed("list", "--limit", "2", "--outcome", "ok", "--store", store.with_name("paid.db")).splitlines()
    assert last.startswith("the newest 2 of more than 2 calls, ")


def test_json_and_readers_have_all_calls_without_a_limit(store: Path) -> None:
    chain = Chain()
    for number in range(250):
        chain.call("pay", call_id=f"call_{number}", batch_index=number)
    many = store.with_name("many.db")
    insert(many, chain.rows)
    assert len(json.loads(printed("list", "--json", "--store", many))) == 250
    assert printed("list", "--store", many).splitlines()[-1].startswith("the newest 100 of 250 calls, ")
    for options in ({}, {"outcome": "ok"}, {"decision": "allowed"}, {"tool": "pay"}):
        assert len(AuditReader(many).calls(**options)) == 250  # type: ignore[arg-type]  # mypy: not by name
    with AuditTrail(many, key=b"k" * 16) as trail:
        assert len(trail.query()) == 250
        assert len(trail.query(limit=7)) == 7


def test_the_run_id_in_a_list_is_unique_and_show_accepts_it(store: Path) -> None:
    chain = Chain()
    runs = ("0197a3b2-4c5d-7f12-9a31-5be1c09d77aa", "0197a3b2-4c5d-7e00-9a31-5be1c09d77aa")
    for run in runs:
        chain.call(run_id=run)
    insert(store.with_name("same.db"), chain.rows)
    place = ("--store", store.with_name("same.db"))
    shown = [line.split()[2] for line in printed("list", *place).splitlines()[1:3]]
    assert sorted(printed("show", each, *place).splitlines()[0] for each in shown) == sorted(
        f"run {run}" for run in runs
    )


def test_the_last_line_counts_refused_and_pending_calls(store: Path) -> None:
    chain = Chain()
    for place, refused in enumerate(("denied", "unknown_tool", "invalid_arguments", "limited", "answered", "pending")):
        chain.call(run_id=RUN, batch_index=place, decision=refused)
    chain.add("outcome", run_id=RUN, iteration=1, batch_index=2, outcome="invalid_arguments")
    chain.call(run_id=RUN, iteration=2, outcome="error")
    insert(store.with_name("refused.db"), chain.rows)
    last = printed("list", "--store", store.with_name("refused.db")).splitlines()[-1]
    assert last == "7 calls, 4 refused, 1 pending, 0 unfinished"


def test_a_repeated_call_is_found_as_repeated_and_as_limited(store: Path) -> None:
    chain = Chain()
    refusal = {"decision": "limited", "outcome": None}
    chain.call("over", run_id=RUN, reason_code="max_tool_calls", **refusal)
    chain.call("again", run_id=RUN, batch_index=1, reason_code="repeated_call", **refusal)
    chain.call("fine", run_id=RUN, batch_index=2, reason=content('"reason_code":"repeated_call"', stored=True))
    insert(store.with_name("limited.db"), chain.rows)
    place = ("--store", store.with_name("limited.db"))

    def found(*options: str) -> list[str]:
        return [call["tool"] for call in json.loads(printed("list", "--json", *options, *place))]

    assert found("--decision", "repeated") == ["again"]
    assert found("--decision", "limited") == ["again", "over"]
    assert found("--decision", "repeated", "--outcome", "ok") == []
    assert found("--decision", "allowed", "--outcome", "ok") == ["fine"]
    exported = printed("export", "--format", "jsonl", "--decision", "repeated", *place)
    assert {json.loads(line)["tool"] for line in exported.splitlines()} == {"again"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--since", "yesterday"], "--since"),
        (["--until", "yesterday"], "--until"),
        (["--since", "1h", "--until", "2h"], "--since"),
        (["--since", "2026-02-01", "--until", "2026-01-31"], "--since"),
        (["--limit", "0"], "--limit"),
        (["--outcome", "fine"], "outcome"),
        (["--store", ""], "--store"),
        (["--nothing"], "--nothing"),
    ],
    ids=str,
)
def test_an_invalid_filter_exits_with_2_and_names_the_option(store: Path, options: list[str], named: str) -> None:
    assert named in complaint("list", *options)


def test_help_names_the_zone_of_times_without_a_zone(store: Path) -> None:
    for command in ("list", "export"):
        assert "UTC without a zone" in " ".join(printed(command, "--help").replace("│", "").split())


def test_times_are_durations_before_now_or_times_in_utc() -> None:
    now = datetime.now(UTC)
    for text, span in (("90s", 90), ("5m", 300), ("2h", 7200), ("7d", 604_800), ("1w", 604_800)):
        time = parse_time(text, "--since")
        assert time is not None
        assert abs((now - time) - timedelta(seconds=span)) < timedelta(seconds=30)
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert parse_period("2026-07-01T12:00", "2026-07-01T12:00Z") == (noon, noon)
    assert parse_period(None, None) == (None, None)
    for text in ("999999w", "-2h", "2 h", "2y", "", "2026-13-01"):
        with pytest.raises(typer.BadParameter):
            parse_time(text, "--since")


def paused(number: int, *, then: str | None, **others: object) -> list[Row]:
    """Return the records of a call that waits and, unless `then` is None, of the run that decides about it."""
    chain = Chain(f"chain-{number}")
    named = {"call_id": f"call_{number}", "agent": "desk", "arguments": content(f"[{number}]")}
    chain.call("pay", run_id=f"run-{number}", decision="pending", outcome=None, **named)
    if then is not None:
        chain.call("pay", run_id=f"resumed-{number}", decision=then, **{"outcome": None, **named, **others})
    return chain.rows


@pytest.mark.parametrize("then", ["approved", "rejected", "denied", "allowed", "answered"])
def test_a_call_that_a_later_run_has_decided_no_longer_counts_as_pending(tmp_path: Path, then: str) -> None:
    path = tmp_path / "audit.db"
    insert(path, [*paused(1, then=then), *paused(2, then=None)])
    *_, last = printed("list", "--store", path).splitlines()
    assert f"{3} calls" in last
    assert ", 1 pending, " in last
    *_, last = printed("list", "--decision", "pending", "--store", path).splitlines()
    assert last == "2 calls, 0 refused, 1 pending, 0 unfinished"


def test_a_call_that_waits_again_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    insert(path, paused(1, then="pending"))
    assert ", 1 pending, " in printed("list", "--store", path)


@pytest.mark.parametrize("other", [{"agent": "shop"}, {"conversation_id": "other"}, {"call_id": "call_7"}, "arguments"])
def test_a_call_of_another_run_with_the_same_id_decides_nothing(tmp_path: Path, other: object) -> None:
    changes = {"arguments": content("[2]")} if isinstance(other, str) else other
    path = tmp_path / "audit.db"
    insert(path, paused(1, then="approved", **changes))  # type: ignore[arg-type]
    assert ", 1 pending, " in printed("list", "--store", path)
