"""`--verified` and `read_verified` answer from the records that the verification walked over, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.commanded import OTHER_RUN, RUN, SIGNING, audit, complaint, file, make_store, printed, tamper
from tests.audit.tampered import by_hand
from traced_tools.audit import AuditReader, UnverifiedError, read_verified
from traced_tools.audit.reading.read_connection import ReadConnection
from traced_tools.audit.verifying import verified


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_store(tmp_path, monkeypatch)


FORGED = "UPDATE audit_records SET decision = 'allowed' WHERE decision = 'denied'"


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["show", RUN], ["show", RUN[:12], "--json"]])
def test_a_verified_answer_is_the_plain_answer_with_a_verdict_on_standard_error(
    store: Path, command: list[str]
) -> None:
    verified, plain = audit(*command, "--verified"), audit(*command)
    assert (verified.exit_code, verified.stdout) == (0, plain.stdout)
    assert verified.stderr.startswith("whole and unchanged: 11 records in 1 chain, 1 checkpoint")


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["show", RUN], ["show", OTHER_RUN]])
def test_nothing_is_shown_of_a_store_with_a_problem(store: Path, command: list[str]) -> None:
    tamper(store)
    assert complaint(*command, "--verified", status=1).startswith("CHANGED: record 4")


def test_verify_names_a_difference_in_the_structure_and_exits_with_1(store: Path) -> None:
    by_hand(store, "DROP INDEX audit_calls")
    assert printed("verify", status=1).startswith("SCHEMA: the index audit_calls is missing; no record was looked at\n")
    assert complaint("show", RUN, "--verified", status=1).startswith("SCHEMA: the index audit_calls is missing")


def test_a_verified_answer_requires_signatures_of_the_given_key(store: Path, tmp_path: Path) -> None:
    key = file(tmp_path, SIGNING.public_key().public_bytes_raw())
    assert audit("list", "--verified", "--public-key", key).exit_code == 0
    key.write_bytes(b"k" * 32)
    assert "SIGNATURE" in complaint("list", "--verified", "--public-key", key, status=1)


def test_options_of_a_verification_are_refused_without_verified(store: Path) -> None:
    assert "need --verified" in complaint("list", "--checkpoints", "some")
    assert "need --verified" in complaint("show", RUN, "--archived-before", "2026-01-01")


def test_show_verified_of_a_missing_run_exits_with_1(store: Path) -> None:
    assert "no run begins with" in complaint("show", "none", "--verified", status=1)


def test_every_filter_has_the_same_results_in_the_verified_copy(store: Path) -> None:
    reader = AuditReader(store)
    filters = (
        {"tool": "refund"},
        {"outcome": "unfinished"},
        {"decision": "denied"},
        {"outcome": "error"},
        {"limit": 2},
    )
    with read_verified(store) as reading:
        for wanted in filters:
            assert reading.calls(**wanted) == reader.calls(**wanted) != []  # type: ignore[arg-type]
        assert [*reading.records()] == [*reader.records()]
        assert reading.run(RUN) == reader.run(RUN)
        assert reading.verification.ok


def test_a_change_after_the_verification_affects_no_verified_answer(store: Path) -> None:
    expected = AuditReader(store).calls(decision="denied")
    with read_verified(store) as reading:
        by_hand(store, FORGED, "DROP INDEX audit_calls")
        assert reading.calls(decision="denied") == expected != []
    with pytest.raises(UnverifiedError) as caught, read_verified(store):
        pass
    assert caught.value.verification.problem is not None


def test_a_verification_reads_a_single_snapshot(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    difference = ReadConnection.difference

    def then_forge(opened: ReadConnection) -> str | None:
        found = difference(opened)
        by_hand(store, FORGED, "DROP INDEX audit_calls")
        return found

    monkeypatch.setattr(ReadConnection, "difference", then_forge)
    with read_verified(store) as reading:
        assert len(reading.calls(decision="denied")) == 1


def test_a_copy_that_cannot_be_written_exits_with_2(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_SETTINGS", (*verified._SETTINGS, "PRAGMA max_page_count = 3"))
    text = complaint("list", "--verified")
    assert "the disk is full" in text and "set TMPDIR" in text
