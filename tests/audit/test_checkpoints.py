"""Checkpoints: when they are made, what they say, and what of them stands outside the store."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.audit.outages import no_thread
from tests.audit.trails import KEY, bodies, intent, lines, of_kind, write
from tests.waiting import PATIENCE, in_time, until
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.records import Draft
from traced_tools.audit.store import Row, _Sqlite
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import publishing
from traced_tools.audit.writing.checkpoints import CheckpointFile, Signer
from traced_tools.audit.writing.queue_entries import QueueEntry
from traced_tools.errors import AuditUnavailable, ConfigurationError
from traced_tools.testing import capture_telemetry

SIGNING_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a line that could not be delivered tried again soon."""
    monkeypatch.setattr(publishing, "_PAUSES", (0.001,))


def pem(key: Any) -> bytes:
    written: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return written


def test_a_checkpoint_is_written_after_checkpoint_every_records(path: Path) -> None:
    trail = AuditTrail(path, key=KEY, checkpoint_every=10)
    for number in range(25):
        write(trail, intent(f"call_{number}"))
    assert [each["records"] for each in of_kind(path, "checkpoint")] == [10, 21]
    trail.close()
    assert [each["records"] for each in of_kind(path, "checkpoint")] == [10, 21, 27]


def test_a_checkpoint_is_written_one_interval_after_the_first_uncovered_record(path: Path) -> None:
    made: list[Mapping[str, Any]] = []
    seen = threading.Event()

    def publish(line: Mapping[str, Any]) -> None:
        made.append(line)
        seen.set()

    with AuditTrail(path, key=KEY, checkpoint_interval=0.05, checkpoints=publish) as trail:
        for number in range(2):
            write(trail, intent(f"call_{number}"))
            assert seen.wait(PATIENCE)
            seen.clear()
    assert [line["records"] for line in made] == [1, 3, 4]


def test_a_checkpoint_is_written_on_request_if_there_are_new_records_and_at_the_end(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent())
        trail.checkpoint()
        trail.checkpoint()
        assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint"]
    assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint", "checkpoint"]


def test_the_last_checkpoint_is_marked_as_final(path: Path) -> None:
    with AuditTrail(path, key=KEY, signing_key=bytes(range(32))) as trail:
        write(trail, intent())
        trail.checkpoint()
    assert [each.get("final") for each in of_kind(path, "checkpoint")] == [None, True]
    assert [each.get("final") for each in lines(path)] == [None, True]
    assert verify(path, public_key=SIGNING_KEY.public_key().public_bytes_raw()).ok


def test_no_record_follows_the_final_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed over while the trail is being closed is on record before, or counted as lost."""
    real = _Sqlite.append

    def late(self: Any, rows: Sequence[Row]) -> None:
        if rows[0][3] != "intent" or not came:
            came.append(len(rows))
            trail._writer._queue.append(QueueEntry(intent("late")))  # as by who looked just before it was closed
        real(self, rows)

    came: list[int] = []
    trail = AuditTrail(path, key=KEY)
    write(trail, intent("before"))
    monkeypatch.setattr(_Sqlite, "append", late)
    for number in range(3):
        trail.submit(intent(f"call_{number}"))
    trail.close()
    *others, last = bodies(path)
    assert last.get("final") is True
    assert [each for each in others if "final" in each] == []
    assert len(came) == 2
    assert bodies(path)[-1] == last


def test_a_gap_record_precedes_the_final_checkpoint(path: Path) -> None:
    trail = AuditTrail(path, key=KEY)
    trail.submit(intent())
    trail.submit(Draft("intent", 1, "nobody"))  # type: ignore[arg-type]
    trail.close()
    *_, gap, last = bodies(path)
    assert (gap["kind"], gap["lost"], last.get("final")) == ("gap", 1, True)


def test_a_gap_is_recorded_although_signing_the_checkpoint_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = AuditTrail(path, key=KEY, signing_key=bytes(range(32)))
    write(trail, intent("before"))
    failing = [True]
    sign = trail._checkpoints.sign
    assert sign is not None

    def once(message: bytes) -> str:
        if failing:
            failing.pop()
            raise ValueError
        return sign(message)

    monkeypatch.setattr(trail._checkpoints, "sign", once)
    trail.submit(Draft("intent", 1, "nobody"))  # type: ignore[arg-type]
    trail.close()
    assert failing == []
    assert [gap["lost"] for gap in of_kind(path, "gap")] == [1]


def test_a_checkpoint_lists_the_head_and_the_number_of_records(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        for number in range(3):
            write(trail, intent(f"call_{number}"))
    *_, checkpoint = bodies(path)
    assert checkpoint["records"] == 3
    assert checkpoint["head"] == checkpoint["previous"]
    assert checkpoint["key_id"] == AuditKey(KEY).id
    assert not {"signature", "public_key"} & set(checkpoint)


def test_the_line_of_a_checkpoint_is_in_a_file_beside_the_store(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent())
    (line,) = lines(path)
    (checkpoint,) = of_kind(path, "checkpoint")
    names = ("chain_id", "sequence", "records", "head", "time", "final")
    assert {name: line[name] for name in names} == {name: checkpoint[name] for name in names}
    assert json.loads(line["body"]) == checkpoint
    assert set(line) == {*names, "hash", "body"}
    assert verify(path).ok


def test_a_line_may_go_to_another_file_or_to_a_function(path: Path, tmp_path: Path) -> None:
    taken: list[Mapping[str, Any]] = []
    for place in (tmp_path / "elsewhere", taken.append):
        with AuditTrail(path, key=KEY, checkpoints=place) as trail:
            write(trail, intent())
    (line,) = (tmp_path / "elsewhere").read_text().splitlines()
    assert json.loads(line).keys() == taken[0].keys()
    assert not Path(f"{path}.checkpoints").exists()
    assert verify(path, checkpoints=tmp_path / "elsewhere").ok


def test_a_line_that_a_crash_cut_off_does_not_swallow_the_next(path: Path) -> None:
    file = CheckpointFile(Path(f"{path}.checkpoints"))
    file({"a": 1})
    file.path.write_bytes(file.path.read_bytes() + b'{"b": ')
    file({"c": 3})
    file({"d": 4})
    assert file.path.read_text().splitlines() == ['{"a":1}', '{"b": ', '{"c":3}', '{"d":4}']


class Flaky:
    """Fails so many times, then takes what it is given."""

    def __init__(self, failures: int, then: Callable[[Mapping[str, Any]], object] | None = None) -> None:
        self.failures = failures
        self.taken: list[Mapping[str, Any]] = []
        self._then = then or self.taken.append

    def __call__(self, line: Mapping[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("sEcReT")
        self._then(line)


def test_checkpoint_returns_when_the_function_has_taken_its_line(path: Path, short_delays: None) -> None:
    outside = Flaky(3)
    with AuditTrail(path, key=KEY, checkpoints=outside) as trail:
        for number in range(3):
            write(trail, intent(f"call_{number}"))
        trail.checkpoint()
        assert [line["records"] for line in outside.taken] == [3]
    assert [line["records"] for line in outside.taken] == [3, 4]


def test_checkpoint_returns_when_its_line_is_in_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, short_delays: None
) -> None:
    real = CheckpointFile.__call__
    with AuditTrail(path, key=KEY) as trail:
        disk = Flaky(2, lambda line: real(CheckpointFile(Path(f"{path}.checkpoints")), line))
        monkeypatch.setattr(CheckpointFile, "__call__", lambda file, line: disk(line))
        write(trail, intent())
        trail.checkpoint()
        assert [line["records"] for line in lines(path)] == [1]
    assert [line["records"] for line in lines(path)] == [1, 2]


def test_checkpoint_waits_for_the_line_of_an_earlier_checkpoint(path: Path, short_delays: None) -> None:
    outside = Flaky(3)
    with AuditTrail(path, key=KEY, checkpoints=outside, checkpoint_every=1) as trail:
        write(trail, intent())
        trail.checkpoint()  # for which there is nothing left to cover
        assert [line["records"] for line in outside.taken] == [1]


def not_kept(trail: AuditTrail, why: str) -> str:
    """Return what is said of a checkpoint that is in the store, and not outside, once it is for that reason."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with pytest.raises(AuditUnavailable) as caught:
            trail.checkpoint(0.02)
        if "outside the store" in (said := str(caught.value)) and why in said:
            return said
    raise AssertionError(said)


def test_checkpoint_reports_a_function_that_keeps_failing_without_its_text(
    path: Path, caplog: pytest.LogCaptureFixture, short_delays: None
) -> None:
    outside = Flaky(sys.maxsize)
    trail = AuditTrail(path, key=KEY, checkpoints=outside)
    for number in range(3):
        write(trail, intent(f"call_{number}"))
        assert "sEcReT" not in not_kept(trail, "(RuntimeError)")
    assert trail.problem is None
    trail.close(0.5)
    assert len(of_kind(path, "checkpoint")) == 4
    about = f"audit trail {path}: "
    assert caplog.messages == [
        f"{about}a checkpoint cannot be kept outside the store (RuntimeError); it is retried: check checkpoints=",
        f"{about}closed before 4 checkpoints were kept outside the store (RuntimeError)",
    ]
    assert "sEcReT" not in caplog.text


def test_checkpoint_reports_a_function_that_hangs_and_succeeds_once_it_goes_on(path: Path) -> None:
    goes_on, taken = threading.Event(), []

    def hang(line: Mapping[str, Any]) -> None:
        assert goes_on.wait(PATIENCE)
        taken.append(line["records"])

    with AuditTrail(path, key=KEY, checkpoints=hang) as trail:
        write(trail, intent())
        not_kept(trail, "(it takes too long)")
        goes_on.set()
        trail.checkpoint()
        assert taken == [1]


async def stored_later(line: Mapping[str, Any]) -> None:
    raise AssertionError


def stored_by_steps(line: Mapping[str, Any]) -> Iterator[None]:
    raise AssertionError
    yield


class Storing:
    async def __call__(self, line: Mapping[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize("function", [stored_later, partial(stored_later), Storing()], ids=["def", "partial", "object"])
def test_an_async_function_is_refused(path: Path, function: Any) -> None:
    with pytest.raises(TypeError, match="checkpoints must be a path or a plain function"):
        AuditTrail(path, key=KEY, checkpoints=function)
    with pytest.raises(TypeError, match="redactor must be a plain function"):
        AuditTrail(path, key=KEY, content="redacted", redactor=function)


@pytest.mark.parametrize("function", [stored_later, stored_by_steps])
def test_a_function_that_returns_an_awaitable_or_a_generator_has_failed(function: Any) -> None:
    failures: Queue[BaseException] = Queue()
    losses = SimpleNamespace(failed=failures.put, lost=lambda lines: None)
    publisher = publishing.Publisher(lambda line: function(line), "audit.db", losses)
    publisher.put({})
    assert isinstance(failures.get(timeout=PATIENCE), TypeError)
    publisher.close(0)


def test_a_function_that_recovers_gets_all_checkpoints_in_order_and_the_log_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture, short_delays: None
) -> None:
    outside = Flaky(4)
    with AuditTrail(path, key=KEY, checkpoints=outside, checkpoint_every=2) as trail:
        for number in range(6):
            write(trail, intent(f"call_{number}"))
    assert [line["records"] for line in outside.taken] == [each["records"] for each in of_kind(path, "checkpoint")]
    first, second = caplog.messages
    assert "cannot be kept" in first
    assert "are kept outside the store again" in second


def test_failed_attempts_and_lost_checkpoints_are_counted(path: Path, short_delays: None) -> None:
    with capture_telemetry() as telemetry:
        kept = Flaky(2)
        trail = AuditTrail(path, key=KEY, checkpoints=kept, telemetry=telemetry.options)
        write(trail, intent())
        trail.checkpoint()
        trail.close()
        outside = Flaky(sys.maxsize)
        trail = AuditTrail(path, key=KEY, checkpoints=outside, checkpoint_every=1, telemetry=telemetry.options)
        write(trail, intent())
        until(lambda: outside.failures < sys.maxsize - 1)  # the first failure is counted
        trail.close(0.05)
        points = {point.name: point for point in telemetry.metrics}
    failed, lost = (points[f"traced_tools.audit.checkpoints.{each}"] for each in ("failed", "lost"))
    assert failed.value is not None and failed.value > 2
    assert failed.attributes == {"error.type": "RuntimeError"}
    assert lost.value == len(of_kind(path, "checkpoint")) - len(kept.taken) > 0


def test_a_hanging_checkpoint_callback_delays_no_record_and_gets_every_checkpoint_in_order(path: Path) -> None:
    goes_on, taken = threading.Event(), []

    def hang(line: Mapping[str, Any]) -> None:
        assert goes_on.wait(PATIENCE)
        taken.append(line["records"])

    with AuditTrail(path, key=KEY, checkpoints=hang, checkpoint_every=2) as trail:
        for number in range(6):
            write(trail, intent(f"call_{number}"))
        assert trail.problem is None
        goes_on.set()
    assert taken == [each["records"] for each in of_kind(path, "checkpoint")]
    assert len(taken) > 2


def test_pending_checkpoint_lines_are_limited_and_the_newest_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publishing, "MOST_WAITING", 2)
    begun, goes_on, taken = threading.Event(), threading.Event(), []

    def hang(line: Mapping[str, Any]) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        taken.append(line["records"])

    trail = AuditTrail(path, key=KEY, checkpoints=hang, checkpoint_every=1)
    for number in range(6):
        write(trail, intent(f"call_{number}"))
        assert begun.wait(PATIENCE)
    goes_on.set()
    trail.checkpoint()
    assert taken == [1, 9, 11]
    trail.close()
    assert caplog.messages == [
        f"audit trail {path}: more than 2 checkpoints wait to be kept outside the store; the oldest are lost",
    ]


def test_close_returns_in_time_while_a_callback_hangs_and_logs_the_losses(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    trail = AuditTrail(path, key=KEY, checkpoints=lambda line: goes_on.wait(PATIENCE))
    write(trail, intent())
    in_time(lambda: trail.close(0.1))
    goes_on.set()
    assert [each["kind"] for each in bodies(path)] == ["intent", "checkpoint"]
    assert caplog.messages == [
        f"audit trail {path}: closed before 1 checkpoints were kept outside the store (it takes too long)"
    ]


def test_a_process_that_cannot_start_threads_still_stores_its_checkpoints(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Mapping[str, Any]] = []
    trail = AuditTrail(path, key=KEY, checkpoints=taken.append)
    write(trail, intent())
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    trail.close()
    assert [line["final"] for line in taken] == [True]


def test_a_checkpoint_lists_the_heads_of_other_chains(path: Path) -> None:
    with AuditTrail(path, key=KEY) as first, AuditTrail(path, key=KEY) as second:
        write(first, intent("first"))
        first.checkpoint()
        write(second, intent("second"))
        second.checkpoint()
    one, other = (
        next(each["chain_id"] for each in bodies(path) if each.get("call_id") == name) for name in ("first", "second")
    )
    checkpoint = next(each for each in of_kind(path, "checkpoint") if each["chain_id"] == other)
    head = next(line for line in lines(path) if line["chain_id"] == one)
    assert checkpoint["heads"] == {one: {"sequence": 2, "hash": head["hash"]}}
    assert verify(path).ok


@pytest.mark.parametrize("form", ["raw", "PEM", "a path", "a path as text"])
def test_a_checkpoint_is_signed_with_the_given_key(path: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "signing.pem"
    file.touch(0o600)
    file.write_bytes(pem(SIGNING_KEY))
    key = {"raw": bytes(range(32)), "PEM": pem(SIGNING_KEY), "a path": file, "a path as text": str(file)}[form]
    with AuditTrail(path, key=KEY, signing_key=key) as trail:  # type: ignore[arg-type]
        write(trail, intent())
    (checkpoint,) = of_kind(path, "checkpoint")
    signature = base64.b64decode(checkpoint.pop("signature"))
    public_key = base64.b64decode(checkpoint["public_key"])
    assert public_key == SIGNING_KEY.public_key().public_bytes_raw()
    signed = json.dumps(checkpoint, sort_keys=True, separators=(",", ":"))
    Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed.encode())
    assert lines(path)[0]["signature"] == base64.b64encode(signature).decode()
    assert verify(path, public_key=public_key).ok


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"-----BEGIN nothing", pem(X25519PrivateKey.generate())])
def test_a_key_that_cannot_sign_is_refused_without_showing_it(key: bytes) -> None:
    with pytest.raises(ConfigurationError, match="Ed25519") as caught:
        Signer(key)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_signer_does_not_show_its_key() -> None:
    assert bytes(range(32)).hex() not in repr(Signer(bytes(range(32))))


def test_signing_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ConfigurationError, match=r"traced_tools\[signing\]"):
        Signer(bytes(32))


def test_a_server_store_has_no_checkpoint_file_by_default(caplog: pytest.LogCaptureFixture) -> None:
    AuditTrail("postgresql://me:pAsS@127.0.0.1:1/audit", key=KEY)
    (message,) = caplog.messages
    assert "checkpoints=" in message
    assert "pAsS" not in message
