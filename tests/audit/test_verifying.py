"""Whatever is done to a store by hand, `verify` names the first record that is not what was written."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.audit.made import NOON, Chain, line_of, row_of, write
from traced_tools.audit.records import body_of, hash_of
from traced_tools.audit.schema import REPEATED
from traced_tools.audit.verifying import Verification, verify
from traced_tools.errors import AuditError, ConfigurationError

KEY, OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32), Ed25519PrivateKey.from_private_bytes(b"o" * 32)


def filled(chain: Chain, calls: int = 4) -> Chain:
    for number in range(calls):
        chain.call(run_id=f"run-{number}", call_id=f"call-{number}")
    return chain


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One chain of 12 records, no checkpoints."""
    return write(tmp_path / "audit.db", filled(Chain()))


def by_hand(store: Path, *statements: str | tuple[str, Any]) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))


def found(store: Path, **options: Any) -> tuple[str, str | None, int | None] | None:
    problem = verify(store, **options).problem
    return None if problem is None else (problem.finding, problem.chain_id, problem.sequence)


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
    told = ", ".join(f"{name} = ?" for name in columns)
    by_hand(store, (f"UPDATE audit_records SET {told} WHERE sequence = ?", [*columns.values(), sequence]))


def test_a_whole_store_is_whole_and_counted(tmp_path: Path) -> None:
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
            "gap records tell of records written late: 2, and never written: 3",
            "2 late and 3 lost records between x and y, by record 14 of the chain chain-a",
        ),
    )


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    told = verify(write(tmp_path / "audit.db"))
    assert told.ok
    assert (told.records, told.chains) == (0, 0)


# What who edits a record leaves behind.


@pytest.mark.parametrize("sequence", [1, 5, 12])
def test_an_edited_body_is_named(store: Path, sequence: int) -> None:
    by_hand(store, f"UPDATE audit_records SET body = replace(body, 'travel', 'trouble') WHERE sequence = {sequence}")
    assert found(store) == ("changed", "chain-a", sequence)


@pytest.mark.parametrize("sequence", [1, 5, 11])
def test_an_edited_record_with_its_hash_made_anew_is_named_and_not_the_one_after(store: Path, sequence: int) -> None:
    rewrite(store, sequence, service="trouble")
    assert found(store) == ("changed", "chain-a", sequence)


def test_a_record_whose_predecessor_is_made_up_is_named_itself(store: Path) -> None:
    rewrite(store, 5, previous="f" * 64)
    assert found(store) == ("changed", "chain-a", 5)


def test_a_first_record_that_names_one_before_it_is_named(store: Path) -> None:
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


def test_a_record_of_no_kind_or_version_is_named(tmp_path: Path) -> None:
    kinds, versions = filled(Chain(), 1), filled(Chain(), 1)
    kinds.add("wish")
    versions.add("gap", schema_version=2)
    assert found(write(tmp_path / "kinds.db", kinds)) == ("changed", "chain-a", 4)
    assert found(write(tmp_path / "versions.db", versions)) == ("changed", "chain-a", 4)


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", "null", ""])
def test_a_body_that_no_parser_likes_is_named_and_no_crash(store: Path, body: str) -> None:
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
def test_two_swapped_records_are_named_by_the_first(store: Path, later: int) -> None:
    by_hand(
        store,
        "UPDATE audit_records SET sequence = -1 WHERE sequence = 5",
        f"UPDATE audit_records SET sequence = 5 WHERE sequence = {later}",
        f"UPDATE audit_records SET sequence = {later} WHERE sequence = -1",
    )
    assert found(store) == ("swapped", "chain-a", 5)


def test_two_swapped_bodies_are_named_by_the_first(store: Path) -> None:
    first, second = (body_of(body_at(store, each)) for each in (5, 6))
    by_hand(
        store,
        ("UPDATE audit_records SET body = ? WHERE sequence = 5", [second]),
        ("UPDATE audit_records SET body = ? WHERE sequence = 6", [first]),
    )
    assert found(store) == ("swapped", "chain-a", 5)


def test_two_records_swapped_with_numbers_and_hashes_made_anew_are_named(tmp_path: Path) -> None:
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
def test_a_record_without_a_proper_number_is_named(store: Path, number: str, finding: str, named: int) -> None:
    by_hand(
        store,
        f"INSERT INTO audit_records SELECT chain_id, {number}, time, kind, {', '.join(REPEATED)}, hash, body"
        " FROM audit_records WHERE sequence = 5",
    )
    assert found(store) == (finding, "chain-a", named)


def test_a_record_between_two_numbers_is_named(store: Path) -> None:
    by_hand(store, "UPDATE audit_records SET sequence = 5.5 WHERE sequence = 5")
    assert found(store) == ("inserted", "chain-a", 5)


def test_a_copy_behind_the_last_is_named(store: Path) -> None:
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


# What shows only against a checkpoint: the chain is whole again, with other hashes.


def forged(tmp_path: Path, forge: Callable[[Chain], object], key: Ed25519PrivateKey | None = None) -> Path:
    """A store in which one chain was forged after another one and a line outside had told of it.

    Records 1 to 12, a checkpoint 13, records 14 to 19.
    """
    chain, other = filled(Chain("chain-a", signing_key=key)), filled(Chain("chain-b", signing_key=key))
    chain.checkpoint()
    filled(chain, 2)
    other.checkpoint(chain)
    forge(chain)
    return write(tmp_path / "audit.db", chain, other)


def edit(chain: Chain) -> None:
    chain.rows[4] = row_of({**json.loads(chain.rows[4]["body"]), "service": "trouble"}, chain.rows[4]["time"])
    chain.again_from(6)


def delete(chain: Chain) -> None:
    del chain.rows[4]
    chain.again_from(5)


def insert(chain: Chain) -> None:
    chain.rows.insert(4, dict(chain.rows[4]))
    chain.again_from(5)


def swap(chain: Chain) -> None:
    chain.rows[4], chain.rows[5] = chain.rows[5], chain.rows[4]
    chain.again_from(5)


@pytest.mark.parametrize("forge", [edit, delete, insert, swap])
def test_a_chain_with_all_hashes_made_anew_is_whole_but_for_who_tells_of_it(
    tmp_path: Path, forge: Callable[[Chain], None]
) -> None:
    lone = filled(Chain())
    forge(lone)
    assert verify(write(tmp_path / "lone.db", lone)).ok  # nobody tells of it
    assert found(forged(tmp_path, forge)) == ("changed", "chain-a", 12)


def test_the_checkpoint_of_another_chain_tells_without_lines_outside(tmp_path: Path) -> None:
    store = forged(tmp_path, edit)
    Path(f"{store}.checkpoints").unlink()
    assert found(store) == ("changed", "chain-a", 19)


def test_of_a_problem_and_an_earlier_record_that_is_told_otherwise_the_earlier_is_named(tmp_path: Path) -> None:
    def edit_and_stop(chain: Chain) -> None:
        edit(chain)
        chain.rows[16] = row_of({**json.loads(chain.rows[16]["body"]), "previous": "f" * 64}, chain.rows[16]["time"])

    assert found(forged(tmp_path, edit_and_stop)) == ("changed", "chain-a", 12)


def test_a_forged_checkpoint_does_not_blame_the_chain_it_tells_of(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), filled(Chain("chain-b"))
    other.checkpoint(chain)
    other.call()
    fields = json.loads(other.rows[12]["body"])
    fields["heads"]["chain-a"]["hash"] = "f" * 64
    other.rows[12] = row_of(fields, other.rows[12]["time"])
    other.lines.clear()
    assert found(write(tmp_path / "audit.db", chain, other)) == ("changed", "chain-b", 13)


def test_a_checkpoint_that_tells_of_other_records_than_those_before_it_is_named(tmp_path: Path) -> None:
    for fields in ({"records": 11}, {"head": "f" * 64}):
        chain = filled(Chain())
        chain.checkpoint(**fields)
        chain.lines.clear()
        store = write(tmp_path / f"{next(iter(fields))}.db", chain)
        assert found(store) == ("changed", "chain-a", 13)


# Tails and whole chains.


def test_a_cut_tail_is_told_by_the_line_outside(tmp_path: Path) -> None:
    chain = filled(Chain())
    chain.checkpoint()
    store = write(tmp_path / "audit.db", chain)
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 9")
    assert found(store) == ("cut off", "chain-a", 10)
    assert "line 1 outside the store" in verify(store).problem.text  # type: ignore[union-attr]


def test_a_cut_tail_is_told_by_the_checkpoint_of_another_chain(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), Chain("chain-b")
    other.checkpoint(chain)
    other.lines.clear()
    store = write(tmp_path / "audit.db", chain, other)
    by_hand(store, "DELETE FROM audit_records WHERE chain_id = 'chain-a' AND sequence > 9")
    assert found(store) == ("cut off", "chain-a", 10)


def test_a_tail_cut_after_the_last_checkpoint_shows_in_nothing(tmp_path: Path) -> None:
    chain = filled(Chain())
    chain.checkpoint()
    filled(chain, 2)
    store = write(tmp_path / "audit.db", chain)
    assert verify(store).uncovered == 6
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 16")
    told = verify(store)
    assert (told.ok, told.uncovered) == (True, 3)


def test_without_lines_outside_a_cut_tail_is_said_to_be_possible(store: Path) -> None:
    (note,) = verify(store).notes
    assert "cut off" in note
    by_hand(store, "DELETE FROM audit_records WHERE sequence > 9")
    assert verify(store).ok


@pytest.mark.parametrize("outside", [True, False])
def test_a_whole_chain_that_is_missing_is_told_by_others_and_by_lines(tmp_path: Path, outside: bool) -> None:
    gone, other = filled(Chain("chain-a")), Chain("chain-b")
    if outside:
        gone.checkpoint()
    else:
        other.checkpoint(gone)
        other.lines.clear()
    store = write(tmp_path / "audit.db", gone, other)
    by_hand(store, "DELETE FROM audit_records WHERE chain_id = 'chain-a'")
    assert found(store) == ("removed", "chain-a", 1)


def test_what_another_chain_covers_is_covered(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), Chain("chain-b")
    other.checkpoint(chain)
    assert verify(write(tmp_path / "audit.db", chain, other)).uncovered == 0


# The lines outside the store.


@pytest.fixture
def lined(tmp_path: Path) -> Path:
    """A store with three checkpoints and their lines."""
    chain = Chain()
    for _ in range(3):
        filled(chain, 2).checkpoint()
    return write(tmp_path / "audit.db", chain)


def lines_of(store: Path) -> Path:
    return Path(f"{store}.checkpoints")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_line_that_a_crash_cut_off_is_noted_and_no_problem(lined: Path, which: int) -> None:
    written = [body_of(json.loads(line)) for line in lines_of(lined).read_text().splitlines()]
    written[which] = written[which][:-30]
    lines_of(lined).write_text("\n".join(written))
    told = verify(lined)
    assert told.problem is None
    assert f"line {which + 1} outside the store was cut off; its checkpoint is in the store" in told.notes
    assert "checkpoints of the store without a whole line outside it: 1" in told.notes


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("damage", ['{"hash": 3}', "[]", "\udcff", "{" * 100_000, '{"body": "{}"'])
def test_a_line_that_is_otherwise_damaged_is_a_problem(lined: Path, which: int, damage: str) -> None:
    written = lines_of(lined).read_text().splitlines()
    written[which] = damage
    lines_of(lined).write_text("\n".join(written), errors="surrogateescape")
    assert found(lined) == ("damaged line", None, None)


def told_by(body: str, **fields: Any) -> str:
    """A line with this body that fits it as far as it says."""
    return json.dumps({"body": body, "hash": hash_of(body), **fields})


@pytest.mark.parametrize(
    "line",
    [
        told_by('{"kind":"checkpoint"}'),
        told_by('{"kind":"checkpoint","chain_id":"c"}', chain_id="c"),
        told_by('{"chain_id":1,"kind":"checkpoint","sequence":1}', chain_id=1, sequence=1),
        *(
            told_by(
                f'{{"chain_id":"c","kind":"checkpoint","sequence":{each}}}', chain_id="c", sequence=json.loads(each)
            )
            for each in ("[1]", "{}", "0", "-1", "1.0", "true", "null", r'"\ud800"')
        ),
        r'{"body":"{\"kind\":\"checkpoint\",\"a\":\"\ud800\"}","hash":"x"}',
        told_by('{"chain_id":"c","kind":"checkpoint","sequence":1,"service":"é"}', chain_id="c", sequence=1),
        *('{"body":[],"hash":"x"}', '{"body":"{}","hash":[]}', '{"body":"' + "[" * 100_000 + '"}'),
    ],
    ids=lambda line: line[:60],
)
def test_a_line_that_no_trail_writes_is_a_problem_and_no_crash(lined: Path, line: str) -> None:
    lines_of(lined).write_text(line)
    assert found(lined) == ("damaged line", None, None)


def test_a_signed_line_or_record_with_a_number_that_json_does_not_write_is_named_and_no_crash(lined: Path) -> None:
    body = '{"chain_id":"c","kind":"checkpoint","sequence":1,"signature":"AA==","x":1e999}'
    lines_of(lined).write_text(told_by(body, chain_id="c", sequence=1, signature="AA=="))
    assert found(lined) == ("signature", "c", 1)
    lines_of(lined).write_text('{"body')  # is compared with all checkpoints of the store
    by_hand(lined, ("UPDATE audit_records SET body = ? WHERE kind = 'checkpoint'", [body]))
    assert found(lined) == ("inserted", "chain-a", 7)


def test_a_line_cut_off_together_with_its_record_is_a_problem(lined: Path) -> None:
    by_hand(lined, "DELETE FROM audit_records WHERE sequence > 20")
    written = [body_of(json.loads(line)) for line in lines_of(lined).read_text().splitlines()]
    lines_of(lined).write_text("\n".join([*written[:2], written[2][:-30]]))
    assert found(lined) == ("damaged line", None, None)


@pytest.mark.parametrize("name", ["sequence", "records", "head", "time", "hash", "chain_id"])
def test_a_line_that_says_other_than_its_body_is_a_problem(lined: Path, name: str) -> None:
    first, *rest = lines_of(lined).read_text().splitlines()
    told = json.loads(first)
    told[name] = "other"
    lines_of(lined).write_text("\n".join([json.dumps(told), *rest]))
    assert found(lined) == ("damaged line", None, None)


def test_lines_may_be_elsewhere(lined: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    lines_of(lined).rename(elsewhere)
    by_hand(lined, "DELETE FROM audit_records WHERE sequence > 15")
    assert found(lined) != ("cut off", "chain-a", 16)
    assert found(lined, checkpoints=elsewhere) == ("cut off", "chain-a", 16)


def test_lines_that_are_named_and_not_there_are_an_error(lined: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"nowhere cannot be read \(FileNotFoundError\)"):
        verify(lined, checkpoints=tmp_path / "nowhere")


# Signatures.

PUBLIC = KEY.public_key().public_bytes_raw()
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("key", [None, PUBLIC, base64.b64encode(PUBLIC).decode(), PEM, PEM.decode()])
def test_signed_checkpoints_are_whole_by_their_key(tmp_path: Path, key: bytes | str | None) -> None:
    store = forged(tmp_path, lambda chain: None, KEY)
    assert found(store, public_key=key) is None


def test_a_checkpoint_forged_without_the_key_is_named(tmp_path: Path) -> None:
    store = forged(tmp_path, edit, KEY)
    lines_of(store).unlink()
    assert found(store) == ("signature", "chain-a", 13)
    assert found(store, public_key=PUBLIC) == ("signature", "chain-a", 13)


def test_checkpoints_signed_with_another_key_or_none_are_named_where_a_key_is_given(tmp_path: Path) -> None:
    for name, key in (("other", OTHER_KEY), ("none", None)):
        chain = filled(Chain(signing_key=key))
        chain.checkpoint()
        chain.lines.clear()
        store = write(tmp_path / f"{name}.db", chain)
        assert found(store) is None
        assert found(store, public_key=PUBLIC) == ("signature", "chain-a", 13)


def test_a_forged_line_is_named_and_blames_no_record(tmp_path: Path) -> None:
    chain, forger = filled(Chain(signing_key=KEY)), filled(Chain(signing_key=OTHER_KEY), 5)
    chain.checkpoint()
    filled(chain, 2)
    chain.lines.append(line_of(forger.checkpoint()))
    assert found(write(tmp_path / "audit.db", chain), public_key=PUBLIC) == ("signature", "chain-a", 16)


@pytest.mark.parametrize("key", [b"short", "no key", b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", ""])
def test_what_is_no_key_is_refused(store: Path, key: bytes | str) -> None:
    with pytest.raises(ConfigurationError, match="Ed25519"):
        verify(store, public_key=key)


def test_records_that_come_while_it_verifies_do_no_harm(tmp_path: Path) -> None:
    chain = filled(Chain(), 400)
    chain.checkpoint()
    store = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(store)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM audit_records WHERE sequence = 7")  # not committed
        assert verify(store).ok
        writer.rollback()


def test_times_before_and_after_the_year_are_written_alike(tmp_path: Path) -> None:
    chain = Chain()
    for time in (0, 1, NOON + 1, NOON + 86_399_999_999_999, 4_102_444_799_999_999_999):
        chain.add("gap", time=time)
    assert verify(write(tmp_path / "audit.db", chain)).ok


@pytest.mark.parametrize("left", ["", None])
def test_lines_that_were_emptied_are_missed_like_lines_that_were_removed(tmp_path: Path, left: str | None) -> None:
    store = write(tmp_path / "audit.db", filled(Chain("chain-a")))
    lines = Path(f"{store}.checkpoints")
    if left is not None:
        lines.write_text(left)
    found = verify(store)
    assert found.ok
    assert found.notes[0].startswith("no checkpoints outside the store were looked at")


def test_a_chain_that_no_line_outside_the_store_tells_of_is_noted(tmp_path: Path) -> None:
    told, untold = Chain("chain-a"), Chain("chain-b")
    filled(told).checkpoint()
    filled(untold)
    found = verify(write(tmp_path / "audit.db", told, untold))
    assert found.ok
    assert found.notes == ("chains that no line outside the store tells of, whose end may be cut off: chain-b",)
