"""Whether a text is the recorded content of a call: it matches, it does not match, or this key cannot decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit.made import Chain, write
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.reading.matching import match
from traced_tools.errors import AuditError, ConfigurationError

SECRET = b"a secret of some length"
KEY = AuditKey(SECRET)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    chain = Chain()
    paid = {"arguments": KEY.content('{"amount":9}', True), "requested_arguments": KEY.content('{"amount":"9"}', True)}
    chain.call(call_id="call-0", run_id="run-0", **paid)
    contents: dict[str, Any] = {
        "arguments": KEY.content('{"city": "Oslo", "days": 3}', is_json=True),
        "result": KEY.content("sunny"),
        "reason": KEY.content("the user asks"),
    }
    chain.call(call_id="call-1", run_id="run-1", **contents)
    chain.call(call_id="call-2", run_id="run-1", **contents)
    chain.call(call_id="call-2", run_id="run-2", arguments=KEY.content("{}", is_json=True))
    chain.call(call_id="call-2", run_id="run-2", iteration=2, **contents)
    chain.call(call_id="call-3", run_id="run-3", decision="denied", arguments=KEY.content("no JSON", is_json=True))
    (tmp_path / "audit.db.key").touch(mode=0o600)
    (tmp_path / "audit.db.key").write_bytes(SECRET)
    return write(tmp_path / "audit.db", chain)


@pytest.mark.parametrize("text", ['{"city": "Oslo", "days": 3}', '{"days":3.0,\n"city":"\\u004fslo"}'])
def test_arguments_match_for_all_ways_to_write_their_json(store: Path, text: str) -> None:
    assert match(store, "call-1", text)


@pytest.mark.parametrize("text", ['{"city": "Oslo", "days": 4}', "{}", "", "no JSON", '"\udcff"', "[" * 10_000])
def test_other_arguments_do_not_match(store: Path, text: str) -> None:
    assert not match(store, "call-1", text)


def test_the_arguments_that_ran_and_those_that_the_model_wrote_match_separately(store: Path) -> None:
    assert match(store, "call-0", '{"amount": 9}')
    assert not match(store, "call-0", '{"amount": "9"}')
    assert match(store, "call-0", '{"amount": "9"}', content="requested_arguments")
    assert not match(store, "call-0", '{"amount": 9}', content="requested_arguments")


def test_requested_arguments_default_to_the_arguments_that_ran(store: Path) -> None:
    assert match(store, "call-1", '{"city": "Oslo", "days": 3}', content="requested_arguments")


def test_arguments_that_are_not_json_match_as_text(store: Path) -> None:
    assert match(store, "call-3", "no JSON")
    assert not match(store, "call-3", "no  JSON")


BIG = '{"id":9007199254740993}'


@pytest.fixture
def with_text(tmp_path: Path) -> Path:
    """A store with arguments that are JSON without a canonical form."""
    chain = Chain()
    for number, text in enumerate((BIG, '{"a":1,"a":1}')):
        chain.call(call_id=f"call-{number}", run_id=f"run-{number}", arguments=KEY.content(text, is_json=True))
    (tmp_path / "text.db.key").touch(mode=0o600)
    (tmp_path / "text.db.key").write_bytes(SECRET)
    return write(tmp_path / "text.db", chain)


def test_arguments_without_a_canonical_form_match_by_their_exact_text(with_text: Path) -> None:
    assert match(with_text, "call-0", BIG)
    for call_id, text in (("call-0", BIG.replace(":", ": ")), ("call-1", '{"a":1}')):
        with pytest.raises(AuditError, match="only the exact text can be compared"):
            match(with_text, call_id, text)
    assert not match(with_text, "call-0", "no JSON")


def test_a_call_that_two_audits_recorded_is_one_call(tmp_path: Path) -> None:
    chain = Chain()
    for _ in range(2):
        chain.call(call_id="call-1", arguments=KEY.content("{}", is_json=True))
    store = write(tmp_path / "twice.db", chain)
    assert match(store, "call-1", "{}", key=SECRET)
    assert not match(store, "call-1", "[]", key=SECRET)


@pytest.mark.parametrize("changed", [{"digest": "\xe9"}, {"digest": "\udcff"}, {"form": "\udcff"}], ids=ascii)
def test_an_invalid_digest_does_not_match(tmp_path: Path, changed: dict[str, str]) -> None:
    chain = Chain()
    chain.call(call_id="call-1", arguments={**KEY.content("{}", is_json=True), **changed})
    assert not match(write(tmp_path / "audit.db", chain), "call-1", "{}", key=SECRET)


def test_results_and_reasons_are_matched(store: Path) -> None:
    assert match(store, "call-1", "sunny", content="result")
    assert not match(store, "call-1", "rainy", content="result")
    assert match(store, "call-1", "the user asks", content="reason")
    assert not match(store, "call-1", "sunny", content="reason")


def test_run_and_iteration_select_one_of_several_calls_with_an_id(store: Path) -> None:
    text = '{"city": "Oslo", "days": 3}'
    with pytest.raises(AuditError, match=r"3 calls have the id call-2: run run-1 iteration 1; run run-2 iteration 1"):
        match(store, "call-2", text)
    with pytest.raises(AuditError, match="2 calls"):
        match(store, "call-2", text, run_id="run-2")
    assert match(store, "call-2", text, run_id="run-1")
    assert not match(store, "call-2", text, run_id="run-2", iteration=1)
    assert match(store, "call-2", text, run_id="run-2", iteration=2)


def test_a_missing_call_is_an_error(store: Path) -> None:
    with pytest.raises(AuditError, match=r"no call \\u001b"):
        match(store, "\x1b", "{}")
    with pytest.raises(AuditError, match="no call call-1 in this run"):
        match(store, "call-1", "{}", run_id="run-2")


def test_a_content_that_was_not_recorded_is_an_error(store: Path) -> None:
    with pytest.raises(AuditError, match="this call has no recorded result"):
        match(store, "call-3", "x", content="result")
    with pytest.raises(AuditError, match="this call has no recorded reason"):
        match(store, "call-3", "x", content="reason")


def test_an_unknown_content_is_refused(store: Path) -> None:
    with pytest.raises(ConfigurationError, match="content must be one of"):
        match(store, "call-1", "x", content="secret")  # type: ignore[arg-type]


def test_a_wrong_key_is_an_error_and_not_a_mismatch(store: Path) -> None:
    other = AuditKey(b"another secret of length")
    with pytest.raises(AuditError, match=f"with key {KEY.id}, not key {other.id}"):
        match(store, "call-1", "{}", key=b"another secret of length")


def test_a_missing_key_is_an_error_and_no_key_is_created(store: Path) -> None:
    Path(f"{store}.key").unlink()
    with pytest.raises(ConfigurationError, match="TRACED_TOOLS_AUDIT_KEY"):
        match(store, "call-1", "{}")
    assert not Path(f"{store}.key").exists()


def test_the_key_of_the_environment_is_used(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(f"{store}.key").unlink()
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET.decode())
    assert match(store, "call-1", "sunny", content="result")
