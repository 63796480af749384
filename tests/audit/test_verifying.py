"""Whatever is done to a store by hand, `verify` names the first record that is not what was written."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.audit.made import NOON, Chain, row_of, write
from tests.audit.tampered import by_hand, filled, found
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.records import body_of, hash_of
from traced_tools.audit.schema import REPEATED
from traced_tools.audit.verifying.walk import Verification, verify
from traced_tools.errors import ConfigurationError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One chain of 12 records, no checkpoints."""
    return write(tmp_path / "audit.db", filled(Chain()))


def body_at(store: Path, sequence: int) -> dict[str, Any]:
    with closing(sqlite3.connect(store)) as connection:
        (body,) = connection.execute("SELECT body FROM audit_records WHERE sequence = ?", [sequence]).fetchone()
    return json.loads(body)


def rewrite(store: Path, sequence: int, **fields: Any) -> None:
    """Change what a record says and make its hash anew, its columns too."""
    body = body_of({**body_at(store, sequence), **fields})
    columns = {name: value for name, value in fields.items() if name in REPEATED} | {
        "body": body,
        "hash": hash_of(body),
    }
    assignments = ", ".join(f"{name} = ?" for name in columns)
    by_hand(store, (f"UPDATE audit_records SET {assignments} WHERE sequence = ?", [*columns.values(), sequence]))


def test_an_intact_store_verifies_and_is_counted(tmp_path: Path) -> None:
    chain, other = Chain("chain-a"), Chain("chain-b")
    filled(chain).checkpoint()
    filled(other, 2).checkpoint(chain)
    chain.add("gap", since="x", until="y", late=2, lost=3)
    chain.call()
    assert verify(write(tmp_path / "audit.db", chain, other)) == Verification(
        records=12 + 1 + 6 + 1 + 1 + 3,
        chains=2,
        checkpoints=2,
        uncovered=4,
        late=2,
        lost=3,
        problem=None,
        notes=(
            "gap records report intents written late: 2, and records never written: 3",
            "2 late and 3 lost records between x and y, by record 14 of the chain chain-a",
        ),
    )


def test_an_empty_store_verifies(tmp_path: Path) -> None:
    result = verify(write(tmp_path / "audit.db"))
    assert result.ok
    assert (result.records, result.chains) == (0, 0)


def test_records_of_any_date_verify(tmp_path: Path) -> None:
    chain = Chain()
    for time in (0, 1, NOON + 1, NOON + 86_399_999_999_999, 4_102_444_799_999_999_999):
        chain.add("gap", time=time)
    assert verify(write(tmp_path / "audit.db", chain)).ok


def test_records_written_during_a_verification_cause_no_problem(tmp_path: Path) -> None:
    chain = filled(Chain(), 400)
    chain.checkpoint()
    store = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(store)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM audit_records WHERE sequence = 7")  # not committed
        assert verify(store).ok
        writer.rollback()


# What who edits a record leaves behind.


@pytest.mark.parametrize("sequence", [1, 5, 12])
def test_an_edited_body_is_named(store: Path, sequence: int) -> None:
    by_hand(store, f"UPDATE audit_records SET body = replace(body, 'travel', 'trouble') WHERE sequence = {sequence}")
    assert found(store) == ("changed", "chain-a", sequence)


@pytest.mark.parametrize("sequence", [1, 5, 11])
def test_an_edited_record_with_a_recomputed_hash_is_named_instead_of_the_next_record(
    store: Path, sequence: int
) -> None:
    rewrite(store, sequence, service="trouble")
    assert found(store) == ("changed", "chain-a", sequence)


def test_a_record_with_a_forged_previous_hash_is_named(store: Path) -> None:
    rewrite(store, 5, previous="f" * 64)
    assert found(store) == ("changed", "chain-a", 5)


def test_a_first_record_with_a_previous_hash_is_named(store: Path) -> None:
    rewrite(store, 1, previous="f" * 64)
    assert found(store) == ("changed", "chain-a", 1)


@pytest.mark.parametrize(
    "change",
    [
        *(f"{name} = 'other'" for name in (*REPEATED, "kind", "hash")),
        *("time = time + 1", "time = 'noon'", "time = -1", f"time = {1 << 62}", "kind = 'checkpoint'"),
        *("kind = 'outcome'", "agent = CAST(x'ff' AS TEXT)", "body = CAST(x'ff' AS TEXT)"),
        *("decision = NULL", "body = CAST(body AS BLOB)", "body = '[]'", "body = x'ff'"),
        *("body = 'no JSON'", "hash = x'ff'", "agent = x'ff'", "body = '{' || body"),
    ],
)
def test_a_change_to_any_column_is_named(store: Path, change: str) -> None:
    by_hand(store, f"UPDATE audit_records SET {change} WHERE sequence = 5")
    assert found(store) == ("changed", "chain-a", 5)


def test_invalid_utf8_does_not_count_as_a_replacement_character(tmp_path: Path) -> None:
    chain = Chain()
    chain.call(agent="a\ufffdb")
    store = write(tmp_path / "audit.db", chain)
    assert found(store) is None
    by_hand(store, "UPDATE audit_records SET agent = CAST(x'61ff62' AS TEXT) WHERE sequence = 2")
    assert found(store) == ("changed", "chain-a", 2)


@pytest.mark.parametrize("sequence", [1, 1500, 2100])
def test_invalid_utf8_hides_no_other_record(tmp_path: Path, sequence: int) -> None:
    store = write(tmp_path / "audit.db", filled(Chain(), 700))
    by_hand(store, f"UPDATE audit_records SET body = CAST(x'ff' AS TEXT) WHERE sequence = {sequence}")
    read = [(record.sequence, record.body == b"\xff") for record in AuditReader(store).records()]
    assert read == [(number, number == sequence) for number in range(1, 2101)]
    assert found(store) == ("changed", "chain-a", sequence)


def test_a_record_of_an_unknown_kind_or_version_is_named(tmp_path: Path) -> None:
    kinds, versions = filled(Chain(), 1), filled(Chain(), 1)
    kinds.add("wish")
    versions.add("gap", schema_version=2)
    assert found(write(tmp_path / "kinds.db", kinds)) == ("changed", "chain-a", 4)
    assert found(write(tmp_path / "versions.db", versions)) == ("changed", "chain-a", 4)


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", "null", ""])
def test_a_body_that_cannot_be_parsed_is_named(store: Path, body: str) -> None:
    by_hand(store, ("UPDATE audit_records SET body = ?, hash = ? WHERE sequence = 5", [body, hash_of(body)]))
    assert found(store) == ("changed", "chain-a", 5)


# What who takes records away, puts some in, or moves them leaves behind.


@pytest.mark.parametrize("sequence", [1, 5, 11])
def test_a_deleted_record_is_named(store: Path, sequence: int) -> None:
    by_hand(store, f"DELETE FROM audit_records WHERE sequence = {sequence}")
    assert found(store) == ("removed", "chain-a", sequence)


def test_a_deleted_record_is_named_even_if_the_others_are_moved_up(store: Path) -> None:
    by_hand(
        store,
        "DELETE FROM audit_records WHERE sequence = 5",
        "UPDATE audit_records SET sequence = -sequence + 1 WHERE sequence > 5",
        "UPDATE audit_records SET sequence = -sequence WHERE sequence < 0",
    )
    assert found(store) == ("removed", "chain-a", 5)


@pytest.mark.parametrize("later", [6, 9])
def test_the_first_of_two_swapped_records_is_named(store: Path, later: int) -> None:
    by_hand(
        store,
        "UPDATE audit_records SET sequence = -1 WHERE sequence = 5",
        f"UPDATE audit_records SET sequence = 5 WHERE sequence = {later}",
        f"UPDATE audit_records SET sequence = {later} WHERE sequence = -1",
    )
    assert found(store) == ("swapped", "chain-a", 5)


def test_the_first_of_two_swapped_bodies_is_named(store: Path) -> None:
    first, second = (body_of(body_at(store, each)) for each in (5, 6))
    by_hand(
        store,
        ("UPDATE audit_records SET body = ? WHERE sequence = 5", [second]),
        ("UPDATE audit_records SET body = ? WHERE sequence = 6", [first]),
    )
    assert found(store) == ("swapped", "chain-a", 5)


def test_two_records_swapped_with_new_numbers_and_hashes_are_named(tmp_path: Path) -> None:
    chain = filled(Chain())
    fifth, sixth = (json.loads(chain.rows[index]["body"]) for index in (4, 5))
    chain.rows[4] = row_of({**sixth, "sequence": 5}, chain.rows[5]["time"])
    chain.rows[5] = row_of({**fifth, "sequence": 6}, chain.rows[4]["time"])
    assert found(write(tmp_path / "audit.db", chain)) == ("changed", "chain-a", 5)


@pytest.mark.parametrize("number", [0, -3])
def test_a_record_before_the_first_is_named(store: Path, number: int) -> None:
    by_hand(
        store,
        f"INSERT INTO audit_records SELECT chain_id, {number}, time, kind, {', '.join(REPEATED)}, hash, body"
        " FROM audit_records WHERE sequence = 5",
    )
    assert found(store) == ("inserted", "chain-a", 1)


@pytest.mark.parametrize(("number", "finding", "named"), [("'x'", "inserted", 13), ("x'00'", "inserted", 13)])
def test_a_record_with_an_invalid_number_is_named(store: Path, number: str, finding: str, named: int) -> None:
    by_hand(
        store,
        f"INSERT INTO audit_records SELECT chain_id, {number}, time, kind, {', '.join(REPEATED)}, hash, body"
        " FROM audit_records WHERE sequence = 5",
    )
    assert found(store) == (finding, "chain-a", named)


def test_a_record_with_a_fractional_number_is_named(store: Path) -> None:
    by_hand(store, "UPDATE audit_records SET sequence = 5.5 WHERE sequence = 5")
    assert found(store) == ("inserted", "chain-a", 5)


def test_a_copy_after_the_last_record_is_named(store: Path) -> None:
    by_hand(
        store,
        f"INSERT INTO audit_records SELECT chain_id, 13, time, kind, {', '.join(REPEATED)}, hash, body"
        " FROM audit_records WHERE sequence = 5",
    )
    assert found(store) == ("inserted", "chain-a", 13)


def test_a_record_of_another_chain_is_named(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", filled(Chain("chain-a")), filled(Chain("chain-b")))
    by_hand(
        store,
        "DELETE FROM audit_records WHERE chain_id = 'chain-a' AND sequence = 5",
        f"INSERT INTO audit_records SELECT 'chain-a', 5, time, kind, {', '.join(REPEATED)}, hash, body"
        " FROM audit_records WHERE chain_id = 'chain-b' AND sequence = 5",
    )
    assert found(store) == ("inserted", "chain-a", 5)


# Tails and whole chains.


def test_a_line_outside_the_store_reveals_a_truncated_chain(tmp_path: Path) -> None:
    chain = filled(Chain())
    chain.checkpoint()
    store = write(tmp_path / "audit.db", chain)
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 9")
    assert found(store) == ("cut off", "chain-a", 10)
    assert "line 1 outside the store" in verify(store).problem.text  # type: ignore[union-attr]


def test_a_checkpoint_of_another_chain_reveals_a_truncated_chain(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), Chain("chain-b")
    other.checkpoint(chain)
    other.lines.clear()
    store = write(tmp_path / "audit.db", chain, other)
    by_hand(store, "DELETE FROM audit_records WHERE chain_id = 'chain-a' AND sequence > 9")
    assert found(store) == ("cut off", "chain-a", 10)


def test_a_tail_cut_after_the_last_checkpoint_is_not_detected(tmp_path: Path) -> None:
    chain = filled(Chain())
    chain.checkpoint()
    filled(chain, 2)
    store = write(tmp_path / "audit.db", chain)
    assert verify(store).uncovered == 6
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 16")
    result = verify(store)
    assert (result.ok, result.uncovered) == (True, 3)


def test_without_lines_outside_the_notes_say_that_the_tail_may_be_cut_off(store: Path) -> None:
    (note,) = verify(store).notes
    assert "cut off" in note
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 9")
    assert verify(store).ok


@pytest.mark.parametrize("outside", [True, False])
def test_other_chains_and_lines_reveal_a_missing_chain(tmp_path: Path, outside: bool) -> None:
    gone, other = filled(Chain("chain-a")), Chain("chain-b")
    if outside:
        gone.checkpoint()
    else:
        other.checkpoint(gone)
        other.lines.clear()
    store = write(tmp_path / "audit.db", gone, other)
    by_hand(store, "DELETE FROM audit_records WHERE chain_id = 'chain-a'")
    assert found(store) == ("removed", "chain-a", 1)


def test_a_checkpoint_of_another_chain_covers_records(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), Chain("chain-b")
    other.checkpoint(chain)
    assert verify(write(tmp_path / "audit.db", chain, other)).uncovered == 0


# Arguments.


@pytest.mark.parametrize("key", [b"short", "no key", b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", ""])
def test_an_invalid_public_key_is_refused(store: Path, key: bytes | str) -> None:
    with pytest.raises(ConfigurationError, match="Ed25519"):
        verify(store, public_key=key)
