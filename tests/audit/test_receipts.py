"""Receipts: the proof of one call, which is checked without the store."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.audit.commanded import SIGNING, audit
from tests.audit.made import Chain, content, write
from tests.audit.trails import KEY, intent
from tests.audit.trails import write as write_draft
from traced_tools.audit import AuditTrail, receipt, verify_receipt
from traced_tools.errors import AuditError

PUBLIC = SIGNING.public_key().public_bytes_raw()
PAGE = Path(__file__).parents[2] / "docs" / "audit-reading.md"


def signed_chain(by: str = "ana", signing_key: Any = SIGNING) -> Chain:
    chain = Chain(signing_key=signing_key)
    chain.call(call_id="before", run_id="run-0")
    chain.call(call_id="paid", run_id="run-1", decision="approved", by=by)
    chain.compaction()
    chain.add("gap", late=1, lost=0)
    chain.call(call_id="after", run_id="run-2")
    chain.checkpoint()
    chain.call(call_id="later", run_id="run-3")
    return chain


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("receipts") / "audit.db", signed_chain())


@pytest.fixture(scope="module")
def paid(store: Path) -> str:
    return receipt(store, "paid")


def lines_of(store: Path) -> Path:
    return Path(f"{store}.checkpoints")


def script() -> Any:
    """The function of the script on the page."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [each for each in blocks if "def check_receipt" in each]
    names: dict[str, Any] = {}
    exec(block.partition("\n\n\nlines = ")[0], names)
    return names["check_receipt"]


def test_a_receipt_holds_the_records_of_the_call_and_fits_the_line_and_the_key(store: Path, paid: str) -> None:
    found = verify_receipt(paid, public_key=PUBLIC, checkpoints=lines_of(store))
    assert (found.problem, found.notes) == (None, ())
    assert [(each["kind"], each["call_id"]) for each in found.call] == [
        ("intent", "paid"),
        ("decision", "paid"),
        ("outcome", "paid"),
    ]
    assert "before" not in paid
    assert script()(paid, lines_of(store).read_text().splitlines(), PUBLIC) == list(found.call)


def test_a_receipt_that_readers_may_read_differently_is_refused(store: Path, paid: str) -> None:
    repeated = ['{"call_id":"other",' + paid[1:], paid.rstrip()[:-1] + ',"call_id":"paid"}', paid.replace(":", ": ", 1)]
    for text in repeated:
        assert verify_receipt(text, checkpoints=lines_of(store)).problem == "it is not canonical JSON"
    assert verify_receipt(f"{paid}\n", checkpoints=lines_of(store)).ok


def test_a_receipt_without_anything_from_outside_is_noted_as_unproved(paid: str) -> None:
    found = verify_receipt(paid)
    assert found.ok
    assert "can have made it up" in found.notes[0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(store: Path, paid: str, data: st.DataObject) -> None:
    given_bytes = paid.encode()
    at = data.draw(st.integers(0, len(given_bytes) - 1))
    changed = given_bytes[:at] + bytes([data.draw(st.integers(0, 255))]) + given_bytes[at + 1 :]
    original = verify_receipt(paid).call
    options: dict[str, Any]
    for options in ({}, {"public_key": PUBLIC}, {"checkpoints": lines_of(store)}):
        found = verify_receipt(changed, **options)
        assert not found.ok or found.call == original
    try:
        assert script()(changed.decode(), lines_of(store).read_text().splitlines()) == list(original)
    except (ValueError, KeyError, TypeError, AttributeError):
        assert changed != given_bytes


@settings(max_examples=60, deadline=None)
@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda e: st.lists(e)).map(json.dumps))
def test_what_is_no_receipt_is_refused_without_an_error(text: str | bytes) -> None:
    assert not verify_receipt(text).ok


def test_a_recomputed_receipt_is_refused_by_the_line_and_by_the_key(store: Path, tmp_path: Path) -> None:
    forged = signed_chain("eve", Ed25519PrivateKey.from_private_bytes(b"e" * 32))
    text = receipt(write(tmp_path / "audit.db", forged), "paid")
    assert verify_receipt(text).ok
    options: dict[str, Any]
    for options in ({"public_key": PUBLIC}, {"checkpoints": lines_of(store)}):
        assert not verify_receipt(text, **options).ok
    with pytest.raises(ValueError, match="not among the lines"):
        script()(text, lines_of(store).read_text().splitlines())


def test_a_call_without_a_checkpoint_has_no_receipt_yet(store: Path) -> None:
    with pytest.raises(AuditError, match=r"no checkpoint covers record .* yet: call trail.checkpoint\(\)"):
        receipt(store, "later")


def test_a_call_id_of_several_runs_needs_the_run(tmp_path: Path) -> None:
    chain, other = Chain(), Chain("chain-b")
    chain.call(call_id="call-1", run_id="run-1")
    other.call(call_id="call-1", run_id="run-2")
    chain.checkpoint()
    other.checkpoint()
    path = write(tmp_path / "audit.db", chain, other)
    with pytest.raises(AuditError, match="2 calls have the id"):
        receipt(path, "call-1")
    found = verify_receipt(receipt(path, "call-1", run_id="run-2"), checkpoints=lines_of(path))
    assert {each["chain_id"] for each in found.call} == {"chain-b"}


def test_a_call_of_two_chains_has_a_part_of_each(tmp_path: Path) -> None:
    chain, other = Chain(), Chain("chain-b")
    rows = chain.call(call_id="call-1", outcome=None)
    fields = json.loads(rows[0]["body"])
    subject = {name: fields[name] for name in ("agent", "run_id", "call_id", "tool", "iteration", "batch_index")}
    other.add("outcome", **subject, outcome="ok")
    chain.checkpoint()
    other.checkpoint()
    path = write(tmp_path / "audit.db", chain, other)
    found = verify_receipt(receipt(path, "call-1"), checkpoints=lines_of(path))
    assert [each["kind"] for each in found.call] == ["intent", "decision", "outcome"]


def test_a_receipt_has_no_stored_text_and_stays_valid_when_the_text_is_erased(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AuditTrail(path, key=KEY, content="full") as trail:
        write_draft(trail, intent(arguments='{"city": "Oslo"}'))
        trail.checkpoint()
        before = receipt(path, "call_1")
        trail.erase("run-1", requested_by="ana", reason="asked")
    assert "Oslo" not in before
    assert receipt(path, "call_1") == before
    assert verify_receipt(before, checkpoints=lines_of(path)).ok


def test_a_text_that_the_hash_covers_is_not_revealed(tmp_path: Path) -> None:
    chain = Chain()
    chain.call(call_id="call-1")
    chain.call(call_id="call-2", run_id="run-2", reason=content("why", stored=True))
    chain.checkpoint()
    with pytest.raises(AuditError, match="covers a stored text"):
        receipt(write(tmp_path / "audit.db", chain), "call-1")


def test_the_commands_write_and_check_a_receipt(store: Path, tmp_path: Path) -> None:
    file, key = tmp_path / "receipt.json", tmp_path / "public.key"
    key.write_bytes(base64.b64encode(PUBLIC))
    assert audit("receipt", "paid", "--store", store, "--output", file).exit_code == 0
    options = ("--public-key", key, "--checkpoints", lines_of(store))
    result = audit("verify-receipt", file, *options)
    assert result.exit_code == 0
    assert "by ana" in result.stdout
    file.write_text(file.read_text().replace("ana", "eve"))
    result = audit("verify-receipt", file, *options)
    assert (result.exit_code, result.stdout[:7]) == (1, "REFUSED")
