"""Stored texts are erased on request: what is recorded, what is left, and that a mere deletion does not pass as one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.commanded import audit, complaint, printed
from tests.audit.made import COLUMNS, Chain, content
from tests.audit.made import write as write_store
from tests.audit.tampered import by_hand
from tests.audit.trails import KEY, SECRET, bodies, of_kind, write
from tests.waiting import PATIENCE
from traced_tools.audit import erasing, match, verify
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.erasing import Erasure, remove, targets
from traced_tools.audit.reading.read_connection import parsed
from traced_tools.audit.records import Content, Draft, Subject, body_of, is_hash_of_erasable
from traced_tools.audit.store import Store
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.erasures import Erasures
from traced_tools.audit.writing.chain import Chain as Sealed
from traced_tools.audit.writing.record_builder import RecordMaker
from traced_tools.errors import AuditError, AuditUnavailable, ConfigurationError

ASKED = {"requested_by": "ticket 4711", "reason": "Article 17 GDPR"}
SIGNING_KEY = bytes(range(32))
PRIVATE_KEY = Ed25519PrivateKey.from_private_bytes(SIGNING_KEY)
PUBLIC_KEY = PRIVATE_KEY.public_key().public_bytes_raw()


def subject(call_id: str, run_id: str = "run-1") -> Subject:
    return Subject("planner", run_id, call_id, "mail", 1, int(call_id[-1]))


def call(trail: AuditTrail, call_id: str, run_id: str = "run-1") -> None:
    """A call with all contents, each of which holds the secret."""
    contents = {
        "arguments": Content(json.dumps({"to": f"{SECRET}-arguments-{call_id}"}), True, True),
        "reason": Content(f"{SECRET}-reason-{call_id}", True),
    }
    write(trail, Draft("intent", 0, subject(call_id, run_id), {}, contents))
    write(trail, Draft("decision", 0, subject(call_id, run_id), {"decision": "allowed"}))
    result = {"result": Content(f"{SECRET}-result-{call_id}", True)}
    write(trail, Draft("outcome", 0, subject(call_id, run_id), {"outcome": "ok"}, result))


@pytest.fixture
def full(path: Path) -> Iterator[AuditTrail]:
    """A trail that stores texts: two calls of a run, and one of another."""
    with AuditTrail(path, key=KEY, content="full") as trail:
        call(trail, "call_1")
        call(trail, "call_2")
        call(trail, "call_3", "run-2")
        trail.checkpoint()
        yield trail


def held(path: Path, text: str) -> list[str]:
    """The files of a store that hold a text."""
    files = sorted(path.parent.glob(f"{path.name}*"))
    return [each.name for each in files if text.encode() in each.read_bytes()]


def test_texts_are_erased_and_the_chain_still_verifies(path: Path, full: AuditTrail) -> None:
    assert full.erase("run-1", **ASKED) == Erasure("run-1", 6, 4, **ASKED)
    found = full.verify()
    assert found.ok
    assert found.erased == 6
    assert any("ticket 4711" in note and "Article 17 GDPR" in note for note in found.notes)
    run_1 = [each for each in bodies(path) if each.get("run_id") == "run-1"]
    assert SECRET not in json.dumps(run_1)
    assert {"digest", "form", "key_id", "size", "text_hash"} == set(run_1[0]["arguments"])


def test_only_the_requested_contents_are_erased(path: Path, full: AuditTrail) -> None:
    assert full.erase("run-1", call_id="call_2", contents=["result"], **ASKED).texts == 1
    assert ["text" in each["result"] for each in of_kind(path, "outcome")] == [True, False, True]
    assert ["text" in each["reason"] for each in of_kind(path, "intent")] == [True, True, True]
    assert full.verify().erased == 1


def test_the_erasure_record_lists_the_texts_the_requester_and_the_reason(path: Path, full: AuditTrail) -> None:
    full.erase("run-2", **ASKED)
    (record,) = of_kind(path, "erasure")
    named = [(each["sequence"], each["contents"]) for each in record["erased"]]
    assert named == [(7, ["arguments", "reason"]), (9, ["result"])]
    assert (record["requested_by"], record["erasure_reason"], record["erased_run"]) == (*ASKED.values(), "run-2")
    assert SECRET not in json.dumps(record)


def test_no_byte_of_an_erased_text_is_left_in_the_files(path: Path, full: AuditTrail) -> None:
    assert held(path, f"{SECRET}-reason-call_1") != []
    full.erase("run-1", **ASKED)
    for name in ("arguments", "reason", "result"):
        for number in (1, 2):
            assert held(path, f"{SECRET}-{name}-call_{number}") == []
        assert held(path, f"{SECRET}-{name}-call_3") == ["audit.db"]


def test_the_digest_of_an_erased_text_still_proves_it(path: Path, full: AuditTrail) -> None:
    full.erase("run-1", **ASKED)
    assert match(path, "call_1", f"{SECRET}-reason-call_1", content="reason", key=KEY)
    assert not match(path, "call_1", "something else", content="reason", key=KEY)


def test_the_trail_keeps_recording_and_erases_later_texts_too(path: Path, full: AuditTrail) -> None:
    full.erase("run-1", **ASKED)
    call(full, "call_4")
    assert full.erase("run-1", **ASKED).texts == 3
    assert full.verify().erased == 9


def test_when_nothing_is_left_to_erase_nothing_is_recorded(path: Path, full: AuditTrail) -> None:
    full.erase("run-1", **ASKED)
    assert full.erase("run-1", **ASKED) == Erasure("run-1", 0, 0, **ASKED)
    assert len(of_kind(path, "erasure")) == 1


def test_the_model_s_own_arguments_are_erased_with_the_arguments(path: Path) -> None:
    with AuditTrail(path, key=KEY, content="full") as trail:
        contents = {name: Content(f"{SECRET}-{name}", True) for name in ("arguments", "requested_arguments", "reason")}
        write(trail, Draft("intent", 0, subject("call_1"), {}, contents))
        write(trail, Draft("intent", 0, subject("call_2"), {}, contents))
        assert trail.erase("run-1", contents=["requested_arguments"], call_id="call_1", **ASKED).texts == 1
        assert trail.erase("run-1", contents=["arguments"], **ASKED).texts == 3
    assert held(path, f"{SECRET}-arguments") == held(path, f"{SECRET}-requested_arguments") == []
    assert held(path, f"{SECRET}-reason") == ["audit.db"]


def test_an_erasure_does_not_undo_another_one_of_the_same_record(path: Path, full: AuditTrail) -> None:
    found = targets(path, "run-1", contents=["reason"])
    full.erase("run-1", contents=["arguments"], **ASKED)
    remove(Store(path), found, PATIENCE)
    for name in ("arguments", "reason"):
        assert held(path, f"{SECRET}-{name}-call_1") == []


def test_a_record_that_changes_during_its_erasure_is_not_erased(path: Path, full: AuditTrail) -> None:
    found = targets(path, "run-1")
    by_hand(path, "UPDATE audit_records SET body = replace(body, 'sEcReT', 'hArMlEsS') WHERE sequence = 3")
    with pytest.raises(AuditError, match=r"record 3 .* is not what was written"):
        remove(Store(path), found, PATIENCE)
    assert of_kind(path, "intent")[0]["reason"]["text"] == f"{SECRET}-reason-call_1"


def test_nothing_is_erased_while_a_record_of_the_run_is_still_pending(path: Path, full: AuditTrail) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        full.submit(Draft("outcome", 0, subject("call_1"), {"outcome": "ok"}, {"result": Content(SECRET, True)}))
        with pytest.raises(AuditUnavailable, match="could not record"):
            full.erase("run-1", **ASKED, timeout=0.05)
    assert full.flush(PATIENCE)
    assert of_kind(path, "erasure") == []
    assert full.erase("run-1", **ASKED).texts == 7


def test_an_erasure_of_many_texts_is_split_into_several_records(
    path: Path, full: AuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_BATCH", 3)
    full.erase("run-1", **ASKED)
    assert [len(each["erased"]) for each in of_kind(path, "erasure")] == [3, 1]
    assert full.verify().erased == 6


def test_nothing_is_erased_unless_its_record_is_outside_the_store(path: Path, full: AuditTrail) -> None:
    def fail(line: object) -> None:
        raise OSError

    with AuditTrail(path, key=KEY, checkpoints=fail) as other:
        with pytest.raises(AuditUnavailable):
            other.erase("run-1", **ASKED, timeout=0.05)
        other.close(0.01)
    assert held(path, f"{SECRET}-reason-call_1") != []
    found = full.verify()
    assert found.ok
    assert found.erased == 0
    assert "texts named by an erasure but still stored: 6; run erase again" in found.notes


# What is not an erasure.


def erase_by_hand(path: Path, *sequences: int) -> None:
    """Take all texts out of records as an attacker does who knows the form."""
    with closing(sqlite3.connect(path)) as store, store:
        for sequence in sequences:
            fields = json.loads(
                store.execute("SELECT body FROM audit_records WHERE sequence = ?", [sequence]).fetchone()[0]
            )
            for each in fields.values():
                if isinstance(each, dict):
                    each.pop("text", None)
                    each.pop("salt", None)
            body = json.dumps(fields, sort_keys=True, separators=(",", ":"))
            store.execute("UPDATE audit_records SET body = ? WHERE sequence = ?", [body, sequence])


@pytest.fixture
def closed(path: Path) -> Path:
    with AuditTrail(path, key=KEY, content="full", signing_key=SIGNING_KEY) as trail:
        call(trail, "call_1")
    return path


def problem(path: Path, **options: Any) -> tuple[str, int | None, str] | None:
    found = verify(path, **options).problem
    return None if found is None else (found.finding, found.sequence, found.text)


def test_a_missing_text_that_no_erasure_lists_is_a_problem(closed: Path) -> None:
    erase_by_hand(closed, 1)
    finding, sequence, text = problem(closed) or ("", 0, "")
    assert (finding, sequence) == ("changed", 1)
    assert text == "its text of arguments is missing, and no erasure on record names it"


def test_an_erasure_that_an_attacker_writes_into_the_store_counts_for_nothing(closed: Path) -> None:
    erase_by_hand(closed, 1, 3)
    with closing(sqlite3.connect(closed)) as store:
        rows = store.execute("SELECT chain_id, sequence, hash FROM audit_records").fetchall()
    erased = [
        {"chain_id": chain, "sequence": number, "hash": hash_, "contents": NAMES} for chain, number, hash_ in rows
    ]
    fields = {"schema_version": 2, "erased": erased, "requested_by": "me", "erasure_reason": "mine"}
    with AuditTrail(closed, key=KEY, checkpoints=lambda line: None) as forged:
        write(forged, Draft("erasure", 0, fields=fields))
    finding, sequence, text = problem(closed) or ("", 0, "")
    assert (finding, sequence) == ("changed", 1)
    assert "no trusted checkpoint of that chain covers that record" in text


NAMES = ["arguments", "reason", "result"]


def forge(path: Path, *chains: Chain) -> None:
    """Insert the records of chains into the store."""
    columns, marks = ", ".join(COLUMNS), ", ".join(f":{name}" for name in COLUMNS)
    by_hand(path, *((f"INSERT INTO audit_records ({columns}) VALUES ({marks})", row) for c in chains for row in c.rows))


def forged_erasure(path: Path, chain: Chain) -> None:
    """Add a record to a chain that says that the texts of all records were erased."""
    with closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT chain_id, sequence, hash FROM audit_records").fetchall()
    erased = [
        {"chain_id": chain_id, "sequence": sequence, "hash": hash_, "contents": NAMES}
        for chain_id, sequence, hash_ in rows
    ]
    fields = {"erased": erased, "erased_run": "run-1", "requested_by": "me", "erasure_reason": "mine"}
    chain.add("erasure", schema_version=2, **fields)


def test_an_erasure_forged_among_records_that_were_archived_counts_for_nothing(path: Path) -> None:
    with AuditTrail(path, key=KEY, content="full") as trail:
        call(trail, "call_1")
        call(trail, "call_2")
        trail.checkpoint()
        trail.erase("run-1", call_id="call_2", contents=["result"], **ASKED)
    by_hand(path, "DELETE FROM audit_records WHERE sequence < 4 AND kind IN ('intent', 'decision', 'outcome')")
    now = datetime.now(UTC)
    honest = verify(path, archived_before=now)
    assert honest.ok
    assert honest.erased == 1
    with closing(sqlite3.connect(path)) as store:
        chain_id = store.execute("SELECT chain_id FROM audit_records WHERE kind = 'intent'").fetchone()[0]
    chain = Chain(chain_id)
    forged_erasure(path, chain)
    forge(path, chain)
    assert verify(path, archived_before=now).ok
    erase_by_hand(path, 4)
    finding, sequence, text = problem(path, archived_before=now) or ("", 0, "")
    assert (finding, sequence) == ("changed", 4)
    assert "no trusted checkpoint" in text


def test_an_archived_month_verifies_with_the_chain_of_the_command_that_erased_its_texts(path: Path) -> None:
    with AuditTrail(path, key=KEY, content="full") as trail:
        call(trail, "call_1")
    now = datetime.now(UTC)
    with AuditTrail(path, key=KEY) as command:
        command.erase("run-1", **ASKED)
    Path(f"{path}.checkpoints").unlink()
    assert verify(path, archived_before=now).erased == 3
    by_hand(
        path, "DELETE FROM audit_records WHERE chain_id IN (SELECT chain_id FROM audit_records WHERE kind = 'erasure')"
    )
    assert problem(path, archived_before=now) is not None


def test_an_erasure_that_only_another_chain_attests_does_not_count(path: Path) -> None:
    with AuditTrail(path, key=KEY, content="full", signing_key=SIGNING_KEY, checkpoints=lambda line: None) as trail:
        call(trail, "call_1")
    left, end, named = Chain("left"), Chain("left-by"), Chain("named-by", signing_key=PRIVATE_KEY)
    forged_erasure(path, left)
    left.add("gap", late=0, lost=0)
    end.add("gap", late=0, lost=0, abandoned={"chain_id": "left", "sequence": 2, "hash": left.head})
    named.checkpoint(left)
    erase_by_hand(path, 1)
    forge(path, left, end, named)
    for options in ({"public_key": PUBLIC_KEY}, {}):
        finding, sequence, text = problem(path, **options) or ("", 0, "")
        assert (finding, sequence) == ("changed", 1)
        assert "no trusted checkpoint" in text


@pytest.mark.parametrize(
    "statement",
    [
        "replace(body, 'sEcReT', 'hArMlEsS')",
        "json_set(body, '$.reason.text', 'another')",
        "json_set(body, '$.reason.salt', 'another')",
        "json_set(body, '$.reason.cut', json('true'))",
        "json_remove(body, '$.reason.text')",
        "json_set(body, '$.reason.size', 3)",
        "json_set(body, '$.agent', 'another')",
        "json_set(body, '$.reason.more', 1)",
        "replace(body, '\"agent\"', ' \"agent\"')",
        'replace(body, \'"agent":\', \'"agent":"x","agent":\')',
    ],
)
def test_a_change_to_a_record_with_texts_is_found(closed: Path, statement: str) -> None:
    by_hand(closed, f"UPDATE audit_records SET body = {statement} WHERE sequence = 1")
    found = verify(closed).problem
    assert found is not None
    assert (found.finding, found.sequence) == ("changed", 1)


def test_an_erasure_hides_no_change_to_the_rest_of_the_record(path: Path, full: AuditTrail) -> None:
    full.erase("run-1", **ASKED)
    full.close()
    by_hand(path, "UPDATE audit_records SET body = replace(body, '\"allowed\"', '\"denied\"') WHERE sequence = 2")
    assert verify(path).problem is not None


@pytest.mark.parametrize("name", ["salt", "cut"])
def test_an_erased_content_with_an_added_field_is_changed(path: Path, full: AuditTrail, name: str) -> None:
    full.erase("run-1", **ASKED)
    full.close()
    fields = bodies(path)[0]
    fields["reason"][name] = "anything"
    where = [fields["chain_id"], fields["sequence"]]
    by_hand(path, ("UPDATE audit_records SET body = ? WHERE chain_id = ? AND sequence = ?", [body_of(fields), *where]))
    finding, sequence, text = problem(path) or ("", 0, "")
    assert (finding, sequence) == ("changed", 1)
    assert text.startswith("its text of reason is missing, but ")


def test_a_record_that_was_changed_is_not_erased(path: Path, full: AuditTrail) -> None:
    by_hand(path, "UPDATE audit_records SET body = replace(body, 'sEcReT', 'hArMlEsS') WHERE sequence = 1")
    with pytest.raises(AuditError, match="run verify first"):
        full.erase("run-1", **ASKED)
    assert of_kind(path, "outcome")[0]["result"]["text"] == f"{SECRET}-result-call_1"


def test_nothing_is_erased_if_the_table_has_a_trigger(path: Path, full: AuditTrail) -> None:
    by_hand(
        path,
        "CREATE TABLE kept (body)",
        "CREATE TRIGGER t AFTER UPDATE ON audit_records BEGIN INSERT INTO kept VALUES (old.body); END",
    )
    with pytest.raises(AuditError, match="nothing is erased: run verify, which reports the difference"):
        full.erase("run-1", **ASKED)
    assert of_kind(path, "erasure") == []


def test_a_record_of_an_earlier_version_verifies_and_is_not_erased(tmp_path: Path) -> None:
    chain = Chain()
    chain.call(run_id="run-1", reason=content("to find a flight", stored=True))
    store = write_store(tmp_path / "audit.db", chain)
    assert verify(store).ok
    with AuditTrail(store, key=KEY) as trail, pytest.raises(AuditError, match="earlier version"):
        trail.erase("run-1", **ASKED)
    assert verify(store).ok


def test_signed_erasures_verify_with_the_public_key(path: Path) -> None:
    options: dict[str, Any] = {"key": KEY, "content": "full", "signing_key": SIGNING_KEY}
    with AuditTrail(path, **options) as trail:
        call(trail, "call_1")
        trail.erase("run-1", **ASKED)
        found = trail.verify(public_key=PUBLIC_KEY)
    assert found.ok
    assert found.erased == 3


@given(text=st.text(st.characters(codec=None, exclude_categories=())) | st.just("\ud83d\ude00\0"), mark=st.booleans())
def test_the_text_hash_of_a_record_verifies_for_any_text(text: str, mark: bool) -> None:
    maker = RecordMaker(AuditKey(KEY), "full", None, {})
    chain = Sealed()
    draft = Draft(
        "intent", 1, subject("call_1"), {"model": text}, {"reason": Content(text * (9000 if mark else 1), True)}
    )
    row = chain.extend(1, maker.fields(draft, 1))
    fields = parsed(row[-1])
    assert fields is not None
    assert fields["schema_version"] == 2
    assert is_hash_of_erasable(row[-2], fields, row[-1])
    assert Erasures().check_texts("chain", 1, row[-2], fields) is None


def test_equal_calls_with_stored_texts_do_not_conflict(path: Path) -> None:
    with AuditTrail(path, key=KEY, content="full") as trail:
        call(trail, "call_1")
        call(trail, "call_1")
        (found,) = trail.query()
    assert found.conflicting == ()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"requested_by": " "}, ConfigurationError),
        ({"reason": "x" * 513}, ConfigurationError),
        ({"contents": ["thoughts"]}, ConfigurationError),
        ({"call_id": "call_9"}, AuditError),
    ],
)
def test_an_invalid_erasure_request_is_refused(
    path: Path, full: AuditTrail, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        full.erase("run-1", **{**ASKED, **changes})
    with pytest.raises(AuditError, match="no run"):
        full.erase("run-9", **ASKED)
    assert of_kind(path, "erasure") == []


# The command.

WORDS = ("--requested-by", "ticket 4711", "--reason", "a request")


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    with AuditTrail(path, key=KEY, content="full") as trail:
        call(trail, "call_1")
        call(trail, "call_2")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(path))
    return path


def test_the_erase_command_prints_how_many_texts_it_erased(store: Path) -> None:
    assert printed("erase", "run-1", *WORDS) == "erased 6 texts of 4 records of run run-1\n"
    assert printed("erase", "run-1", *WORDS, status=1) == "run run-1 has no stored texts to erase\n"
    verified = printed("verify")
    assert verified.startswith(
        "whole and unchanged: 10 records in 2 chains, 3 checkpoints\nerased on request: 6 texts\n"
    )
    assert "note: texts erased: 6 of run run-1, by record 1 of the chain" in verified
    assert "ticket 4711 (a request)" in verified
    assert "erased (digest" in printed("show", "run-1")
    assert SECRET not in printed("show", "run-1") + printed("export", "--format", "jsonl")
    assert not Path(f"{store}.key").exists()


def test_the_erase_command_erases_the_selected_contents_and_prints_json(store: Path) -> None:
    printed_json = printed(
        "erase", "run", *WORDS, "--call", "call_2", "--content", "reason", "--content", "result", "--json"
    )
    assert json.loads(printed_json) == {
        "run_id": "run-1",
        "texts": 2,
        "records": 2,
        "requested_by": "ticket 4711",
        "reason": "a request",
    }
    assert json.loads(printed("verify", "--json"))["erased"] == 2


def test_the_erase_command_reports_invalid_requests(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no run begins with" in complaint("erase", "other", *WORDS, status=1)
    assert "contents must be any of" in complaint("erase", "run-1", *WORDS, "--content", "thoughts")
    assert "--checkpoints" in complaint("erase", "run-1", *WORDS, "--store", "postgresql://127.0.0.1:1/audit")
    assert audit("erase", "run-1").exit_code == 2
    assert "no audit store" in complaint("erase", "run-1", *WORDS, "--store", tmp_path / "missing.db")
    assert of_kind(store, "erasure") == []


def test_the_erase_command_requires_the_signing_key_if_checkpoints_are_signed(
    closed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "--signing-key" in complaint("erase", "run-1", *WORDS, "--store", closed)
    assert caplog.messages == []
    key = tmp_path / "signing"
    key.touch(0o600)
    key.write_bytes(SIGNING_KEY)
    printed("erase", "run-1", *WORDS, "--store", closed, "--signing-key", key)
    assert verify(closed).erased == 3


def test_the_erase_command_requires_a_checkpoint_file_that_is_not_beside_the_store(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "elsewhere"
    with AuditTrail(path, key=KEY, content="full", checkpoints=lines) as trail:
        call(trail, "call_1")
    assert "--checkpoints" in complaint("erase", "run-1", *WORDS, "--store", path)
    assert not Path(f"{path}.checkpoints").exists()
    printed("erase", "run-1", *WORDS, "--store", path, "--checkpoints", lines)
    assert verify(path, checkpoints=lines).erased == 3
