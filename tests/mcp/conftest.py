from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mcp.portal_tasks import remember_tasks
from tests.mcp.servers import HttpServer, serving, speak
from traced_tools.mcp import session


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpServer]:
    """A server over HTTP that no test stops."""
    with serving() as server:
        yield server


@pytest.fixture(params=["modern", "handshake"])
def era(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The era that clients and the server on the SDK speak."""
    chosen: str = request.param
    speak(chosen, monkeypatch)
    return chosen


@pytest.fixture(autouse=True)
def forget_eras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each test begin without knowing any server."""
    monkeypatch.setattr(session, "_eras", {})


@pytest.fixture(autouse=True)
def ignore_tasks_of_other_tests() -> None:
    remember_tasks()
