"""No content in anything a trail writes, mirrors, counts, logs or raises, unless it is to store contents."""

from __future__ import annotations

import base64
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.markers import everything
from tests.observe.closed_list import assert_consistent
from tests.observe.exported import Search, Wiretap, found_in, holds_marker
from tests.observe.secrets import CONTEXT, SECRET_CALLS, secret_spec
from tests.sweeps import sweep
from tests.waiting import until
from traced_tools import LoopLimits
from traced_tools.audit import AuditTrail
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.writing import mirror
from traced_tools.errors import AuditUnavailable

KEY = b"\x93KeY-of-the-trail\x07\xfe-9f27-0b1d"
BEYOND_TOOLS = (RuntimeError, LookupError)
"""What a model or an advisor raises passes unchanged."""


@pytest.fixture
def wiretap(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Wiretap]:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    with Wiretap(caplog, capsys) as wiretap:
        yield wiretap


def trail_in(folder: Path, wiretap: Wiretap, **options: Any) -> AuditTrail:
    return AuditTrail(folder / "audit.db", telemetry=wiretap.telemetry.options, **options)


def audited(wiretap: Wiretap, trail: AuditTrail, mode: str, what: str, policy: str, raises_in: str = "") -> list[str]:
    """Run, and return what is raised and what the trail's parts say of themselves."""
    advisor = AuditAdvisor(trail)
    spec = secret_spec(wiretap.telemetry, what, policy, raises_in, LoopLimits(), [advisor])
    said = [repr(advisor), repr(trail), everything(vars(trail))]
    try:
        with trail:
            wiretap.run(spec, mode)
    except Exception as error:
        if not isinstance(error, BEYOND_TOOLS):
            said += [repr(error), "".join(traceback.format_exception(error))]
    assert mirror.flush()
    return [*said, repr(trail)]


def leaks(folder: Path, wiretap: Wiretap, said: list[str], *searches: Search) -> list[str]:
    """Where anything is of what is searched for."""
    exported = wiretap.exported() | {f"file {path.name}": path.read_bytes() for path in folder.iterdir()}
    assert any(name == "file audit.db" for name in exported)
    exported |= {f"said {n}": text.encode() for n, text in enumerate(said)}
    return [where for search in searches for where in found_in(exported, search)]


@sweep(
    strength=1,
    mode=["call", "astream"],
    policy=["answer", "raise"],
    what=[what for what in SECRET_CALLS if what != "model"],
)
def test_no_content_is_written_mirrored_counted_logged_or_raised(
    tmp_path: Path, wiretap: Wiretap, mode: str, what: str, policy: str
) -> None:
    said = audited(wiretap, trail_in(tmp_path, wiretap, key=KEY), mode, what, policy)
    assert leaks(tmp_path, wiretap, said, holds_marker, Search(CONTEXT)) == []
    assert_consistent(wiretap.telemetry)
    with closing(sqlite3.connect(tmp_path / "audit.db")) as store:
        kinds = [kind for (kind,) in store.execute("SELECT kind FROM audit_records")]
    assert {"intent", "decision", "checkpoint"} <= set(kinds)
    assert len([event for event in wiretap.telemetry.events if ".audit." in event.name]) == len(kinds)


@pytest.mark.parametrize("mode", ["call", "astream"])
@pytest.mark.parametrize("raises_in", ["advise_tool", "denies", "answers", "changes", "finalize"])
def test_no_text_of_an_advisor_is_written(tmp_path: Path, wiretap: Wiretap, mode: str, raises_in: str) -> None:
    said = audited(wiretap, trail_in(tmp_path, wiretap, key=KEY), mode, "result", "answer", raises_in)
    stored = [where for where in leaks(tmp_path, wiretap, said, holds_marker) if not where.startswith("logging")]
    assert stored == []


@pytest.mark.parametrize("what", ["result", "failure", "unknown", "escaped"])
def test_contents_that_are_stored_stay_in_the_store(tmp_path: Path, wiretap: Wiretap, what: str) -> None:
    said = audited(wiretap, trail_in(tmp_path, wiretap, key=KEY, content="full"), "call", what, "answer")
    assert leaks(tmp_path, wiretap, said, holds_marker) == ["file audit.db"]


def test_a_value_that_a_redactor_replaces_is_in_no_output(tmp_path: Path, wiretap: Wiretap) -> None:
    trail = trail_in(tmp_path, wiretap, key=KEY, content="redacted", redactor=lambda name, value: "left out")
    said = audited(wiretap, trail, "call", "result", "answer")
    assert leaks(tmp_path, wiretap, said, holds_marker) == []
    assert b"left out" in (tmp_path / "audit.db").read_bytes()


def test_a_redactor_that_raises_leaks_nothing(tmp_path: Path, wiretap: Wiretap) -> None:
    def broken(name: str, value: object) -> object:
        raise ValueError(value)

    trail = trail_in(tmp_path, wiretap, key=KEY, content="redacted", redactor=broken)
    said = audited(wiretap, trail, "call", "result", "answer")
    assert leaks(tmp_path, wiretap, said, holds_marker) == []


def test_the_key_is_in_no_output(tmp_path: Path, wiretap: Wiretap) -> None:
    said = audited(wiretap, trail_in(tmp_path, wiretap, key=KEY), "call", "result", "answer")
    exported = wiretap.exported() | {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    output = b"".join([*exported.values(), *(text.encode() for text in said)])
    for spelled in (KEY, KEY.hex().encode(), base64.b64encode(KEY), repr(KEY)[2:-1].encode()):
        assert spelled not in output


@pytest.mark.parametrize("on_failure", ["deny", "warn"])
def test_a_store_that_cannot_be_written_is_logged_without_contents(
    tmp_path: Path, wiretap: Wiretap, caplog: pytest.LogCaptureFixture, on_failure: Any
) -> None:
    (tmp_path / "audit.db").mkdir()
    trail = trail_in(tmp_path, wiretap, key=KEY, timeout=0.05)
    advisor = AuditAdvisor(trail, on_failure=on_failure)
    spec = secret_spec(wiretap.telemetry, "result", "answer", "", LoopLimits(), [advisor])
    (result,) = wiretap.run(spec, "call").tool_results
    assert result.decision == ("denied" if on_failure == "deny" else "allowed")
    until(lambda: "cannot be written" in caplog.text)
    trail.close(0.0)
    exported = wiretap.exported()
    assert found_in(exported, holds_marker) == []
    with pytest.raises(AuditUnavailable) as raised:
        trail.checkpoint(0.0)
    assert not holds_marker("".join(traceback.format_exception(raised.value)).encode())
