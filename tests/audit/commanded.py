"""A store with a story, and the command line over it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner, Result

from tests.audit.made import Chain, content, write
from traced_tools.audit.digests import AuditKey
from traced_tools.cli.app import app

SECRET = "a secret of some length"
KEY = AuditKey(SECRET.encode())
RUN, OTHER_RUN = "0197a3b2-4c5d-7f12-9a31-5be1c09d77aa", "0197a3b9-1111-7f12-9a31-5be1c09d77aa"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CITY = KEY.content('{"city": "Oslo"}', is_json=True)
SIGNING = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def story() -> Chain:
    chain = Chain("0197a3b2-0000-7000-8000-00000000000a", signing_key=SIGNING)
    common: dict[str, Any] = {"run_id": RUN, "agent": "planner", "conversation_id": "c-4711", "trace_id": TRACE}
    asked = {"model": "small-1", "provider": "acme"}
    stated = content("to find a flight", stored=True)
    chain.call("search", call_id="call_1", **common, **asked, reason=stated, arguments=CITY)
    refusal = {"decision": "denied", "advisor": "policy", "reason_code": "needs_a_person"}
    chain.call("refund", call_id="call_2", iteration=2, **common, **asked, reason=content("x"), **refusal)
    chain.call("book", call_id="call_3", iteration=2, batch_index=1, **common, outcome="error", error_type="OSError")
    chain.call("mail", call_id="call_4", run_id=OTHER_RUN, agent="clerk", outcome=None)
    chain.checkpoint()
    return chain


COMMANDS: tuple[list[str], ...] = (
    *(["list"], ["show", RUN], ["verify"], ["export", "--format", "csv"]),
    ["match", "call_1", "--arguments", __file__],
)


def make_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of the story, which is the default store of the command line."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET)
    store = write(tmp_path / "audit.db", story())
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(store))
    return store


def audit(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def printed(*arguments: object, status: int = 0) -> str:
    result = audit(*arguments)
    assert (result.exit_code, result.stderr if status == 0 else "") == (status, ""), result.output
    return result.stdout


def complaint(*arguments: object, status: int = 2) -> str:
    result = audit(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    return result.stderr


def tamper(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET tool = 'other' WHERE sequence = 4")


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "given"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def unseen(text: str) -> list[str]:
    return [each for each in text if not each.isprintable() and each not in "\r\n"]
