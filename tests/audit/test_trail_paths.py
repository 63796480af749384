"""A trail whose paths are relative stays where it was opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.trails import KEY, intent, settled, write
from traced_tools.audit.trail import AuditTrail


@pytest.mark.parametrize("store", ["audit.db", Path("audit.db"), "sqlite:///audit.db"], ids=repr)
@pytest.mark.parametrize("checkpoints", [None, "lines", Path("lines")], ids=repr)
def test_a_relative_path_names_one_store_for_writing_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | Path, checkpoints: str | Path | None
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with AuditTrail(store, key=KEY, checkpoints=checkpoints) as trail:
        monkeypatch.chdir(tmp_path / "elsewhere")
        write(trail, intent())
        trail.checkpoint()
        settled(trail)
        assert [call.run_id for call in trail.query()] == ["run-1"]
        assert len(trail.run("run-1").calls) == 1
        assert trail.match("call_1", '{"city":"Oslo"}')
        assert (trail.verify().ok, trail.verify().notes) == (True, ())
    assert not list(Path().iterdir())
