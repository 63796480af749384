"""Erasing stored texts on a real PostgreSQL: for the owner of the table alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.audit.commanded import complaint, printed
from tests.audit.postgresql import OWNER, READER, WRITER, Database
from tests.audit.postgresql_trails import intent
from traced_tools.audit import verify
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditError

pytestmark = pytest.mark.usefixtures("emptied")
WORDS = ("--requested-by", "ticket 4711", "--reason", "a request")


def bodies(database: Database) -> str:
    with closing(database.connect()) as owner:
        return "".join(row[0] for row in owner.execute("SELECT body FROM audit_records ORDER BY time").fetchall())


def written(opened: Callable[..., AuditTrail]) -> None:
    trail = opened(content="full")
    for name in ("one", "two"):
        trail.write(intent(name)).run()
    trail.close()


def test_the_owner_may_erase_and_the_store_still_verifies(
    database: Database, opened: Callable[..., AuditTrail], tmp_path: Path
) -> None:
    written(opened)
    assert bodies(database).count('"text":') == 2
    lines = tmp_path / "checkpoints"
    url = database.url(OWNER)
    assert "erased 1 text of 1 record" in printed("erase", "one", *WORDS, "--store", url, "--checkpoints", lines)
    assert bodies(database).count('"text":') == 1
    found = verify(database.url(READER), checkpoints=lines)
    assert found.ok
    assert found.erased == 1


@pytest.mark.parametrize("role", [WRITER, READER])
def test_a_role_that_may_not_change_records_erases_nothing_and_records_nothing(
    database: Database, opened: Callable[..., AuditTrail], tmp_path: Path, role: str
) -> None:
    written(opened)
    before = bodies(database)
    with pytest.raises(AuditError):
        opened(database.url(role)).erase("one", requested_by="ticket 4711", reason="a request")
    text = complaint("erase", "one", *WORDS, "--store", database.url(role), "--checkpoints", tmp_path / "checkpoints")
    assert "owner of the table" in text if role == READER else "cannot be read" in text
    assert bodies(database) == before
