"""What `verify` makes of checkpoints: of chains that were forged whole, of lines outside the store, of signatures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.audit.made import Chain, line_of, row_of, write
from tests.audit.tampered import by_hand, filled, found
from traced_tools.audit.records import body_of, hash_of
from traced_tools.audit.verifying.walk import verify
from traced_tools.errors import AuditError

KEY, OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32), Ed25519PrivateKey.from_private_bytes(b"o" * 32)


# What shows only against a checkpoint: the chain is whole again, with other hashes.


def forged(tmp_path: Path, forge: Callable[[Chain], object], key: Ed25519PrivateKey | None = None) -> Path:
    """A store with a chain that was forged after another chain and a line outside the store listed its head.

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
def test_only_a_witness_reveals_a_chain_with_recomputed_hashes(tmp_path: Path, forge: Callable[[Chain], None]) -> None:
    lone = filled(Chain())
    forge(lone)
    assert verify(write(tmp_path / "lone.db", lone)).ok  # no witness lists it
    assert found(forged(tmp_path, forge)) == ("changed", "chain-a", 12)


def test_a_checkpoint_of_another_chain_reveals_recomputed_hashes_without_lines(tmp_path: Path) -> None:
    store = forged(tmp_path, edit)
    Path(f"{store}.checkpoints").unlink()
    assert found(store) == ("changed", "chain-a", 19)


def test_an_earlier_contradicted_record_is_named_before_an_invalid_one(tmp_path: Path) -> None:
    def edit_and_stop(chain: Chain) -> None:
        edit(chain)
        chain.rows[16] = row_of({**json.loads(chain.rows[16]["body"]), "previous": "f" * 64}, chain.rows[16]["time"])

    assert found(forged(tmp_path, edit_and_stop)) == ("changed", "chain-a", 12)


def test_a_forged_checkpoint_does_not_blame_the_chain_it_lists(tmp_path: Path) -> None:
    chain, other = filled(Chain("chain-a")), filled(Chain("chain-b"))
    other.checkpoint(chain)
    other.call()
    fields = json.loads(other.rows[12]["body"])
    fields["heads"]["chain-a"]["hash"] = "f" * 64
    other.rows[12] = row_of(fields, other.rows[12]["time"])
    other.lines.clear()
    assert found(write(tmp_path / "audit.db", chain, other)) == ("changed", "chain-b", 13)


def test_a_checkpoint_that_lists_other_records_than_those_before_it_is_named(tmp_path: Path) -> None:
    for fields in ({"records": 11}, {"head": "f" * 64}):
        chain = filled(Chain())
        chain.checkpoint(**fields)
        chain.lines.clear()
        store = write(tmp_path / f"{next(iter(fields))}.db", chain)
        assert found(store) == ("changed", "chain-a", 13)


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
def test_a_line_that_a_crash_cut_off_is_a_note_and_not_a_problem(lined: Path, which: int) -> None:
    written = [body_of(json.loads(line)) for line in lines_of(lined).read_text().splitlines()]
    written[which] = written[which][:-30]
    lines_of(lined).write_text("\n".join(written))
    result = verify(lined)
    assert result.problem is None
    assert f"line {which + 1} outside the store was cut off; its checkpoint is in the store" in result.notes
    assert "checkpoints of the store without a whole line outside it: 1" in result.notes


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("damage", ['{"hash": 3}', "[]", "\udcff", "{" * 100_000, '{"body": "{}"'])
def test_a_line_that_is_otherwise_damaged_is_a_problem(lined: Path, which: int, damage: str) -> None:
    written = lines_of(lined).read_text().splitlines()
    written[which] = damage
    lines_of(lined).write_text("\n".join(written), errors="surrogateescape")
    assert found(lined) == ("damaged line", None, None)


def line_with(body: str, **fields: Any) -> str:
    """A line with this body, the body's hash and these fields."""
    return json.dumps({"body": body, "hash": hash_of(body), **fields})


@pytest.mark.parametrize(
    "line",
    [
        line_with('{"kind":"checkpoint"}'),
        line_with('{"kind":"checkpoint","chain_id":"c"}', chain_id="c"),
        line_with('{"chain_id":1,"kind":"checkpoint","sequence":1}', chain_id=1, sequence=1),
        *(
            line_with(
                f'{{"chain_id":"c","kind":"checkpoint","sequence":{each}}}', chain_id="c", sequence=json.loads(each)
            )
            for each in ("[1]", "{}", "0", "-1", "1.0", "true", "null", r'"\ud800"')
        ),
        r'{"body":"{\"kind\":\"checkpoint\",\"a\":\"\ud800\"}","hash":"x"}',
        line_with('{"chain_id":"c","kind":"checkpoint","sequence":1,"service":"é"}', chain_id="c", sequence=1),
        *('{"body":[],"hash":"x"}', '{"body":"{}","hash":[]}', '{"body":"' + "[" * 100_000 + '"}'),
    ],
    ids=lambda line: line[:60],
)
def test_a_line_that_no_trail_writes_is_a_problem(lined: Path, line: str) -> None:
    lines_of(lined).write_text(line)
    assert found(lined) == ("damaged line", None, None)


def test_a_signed_line_or_record_with_an_infinite_number_is_named(lined: Path) -> None:
    body = '{"chain_id":"c","kind":"checkpoint","sequence":1,"signature":"AA==","x":1e999}'
    lines_of(lined).write_text(line_with(body, chain_id="c", sequence=1, signature="AA=="))
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
def test_a_line_that_differs_from_its_body_is_a_problem(lined: Path, name: str) -> None:
    first, *rest = lines_of(lined).read_text().splitlines()
    line = json.loads(first)
    line[name] = "other"
    lines_of(lined).write_text("\n".join([json.dumps(line), *rest]))
    assert found(lined) == ("damaged line", None, None)


def test_lines_may_be_in_another_file(lined: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    lines_of(lined).rename(elsewhere)
    by_hand(lined, "DELETE FROM audit_records WHERE sequence > 15")
    assert found(lined) != ("cut off", "chain-a", 16)
    assert found(lined, checkpoints=elsewhere) == ("cut off", "chain-a", 16)


def test_a_missing_file_of_lines_is_an_error(lined: Path, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"nowhere cannot be read \(FileNotFoundError\)"):
        verify(lined, checkpoints=tmp_path / "nowhere")


@pytest.mark.parametrize("left", ["", None])
def test_an_empty_file_of_lines_is_noted_like_a_missing_one(tmp_path: Path, left: str | None) -> None:
    store = write(tmp_path / "audit.db", filled(Chain("chain-a")))
    lines = Path(f"{store}.checkpoints")
    if left is not None:
        lines.write_text(left)
    found = verify(store)
    assert found.ok
    assert found.notes[0].startswith("no checkpoints outside the store were looked at")


def test_a_chain_without_a_line_outside_the_store_is_noted(tmp_path: Path) -> None:
    attested, unattested = Chain("chain-a"), Chain("chain-b")
    filled(attested).checkpoint()
    filled(unattested)
    found = verify(write(tmp_path / "audit.db", attested, unattested))
    assert found.ok
    assert found.notes == ("chains that no line outside the store lists, whose end may be cut off: chain-b",)


def test_a_chain_whose_head_the_line_of_another_chain_lists_is_not_noted(tmp_path: Path) -> None:
    attested, killed = Chain("chain-a"), filled(Chain("chain-b"))
    filled(attested).checkpoint(killed)
    found = verify(write(tmp_path / "audit.db", attested, killed))
    assert found.ok
    assert found.notes == ()


# Signatures.

PUBLIC = KEY.public_key().public_bytes_raw()
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("key", [None, PUBLIC, base64.b64encode(PUBLIC).decode(), PEM, PEM.decode()])
def test_signed_checkpoints_verify_with_their_key(tmp_path: Path, key: bytes | str | None) -> None:
    store = forged(tmp_path, lambda chain: None, KEY)
    assert found(store, public_key=key) is None


def test_a_checkpoint_forged_without_the_key_is_named(tmp_path: Path) -> None:
    store = forged(tmp_path, edit, KEY)
    lines_of(store).unlink()
    assert found(store) == ("signature", "chain-a", 13)
    assert found(store, public_key=PUBLIC) == ("signature", "chain-a", 13)


def test_with_a_public_key_checkpoints_signed_otherwise_or_unsigned_are_named(tmp_path: Path) -> None:
    for name, key in (("other", OTHER_KEY), ("none", None)):
        chain = filled(Chain(signing_key=key))
        chain.checkpoint()
        chain.lines.clear()
        store = write(tmp_path / f"{name}.db", chain)
        assert found(store) is None
        assert found(store, public_key=PUBLIC) == ("signature", "chain-a", 13)


def test_a_forged_line_is_named_instead_of_a_record(tmp_path: Path) -> None:
    chain, forger = filled(Chain(signing_key=KEY)), filled(Chain(signing_key=OTHER_KEY), 5)
    chain.checkpoint()
    filled(chain, 2)
    chain.lines.append(line_of(forger.checkpoint()))
    assert found(write(tmp_path / "audit.db", chain), public_key=PUBLIC) == ("signature", "chain-a", 16)
