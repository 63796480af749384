from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.models.aimock.server import Aimock, NotHere, running


@pytest.fixture(scope="session")
def running_aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """One server for all tests; where it cannot be had they are skipped, but not in CI."""
    try:
        with running(tmp_path_factory.mktemp("aimock")) as server:
            yield server
    except NotHere as reason:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(reason))


@pytest.fixture
def aimock(running_aimock: Aimock) -> Aimock:
    """The server, which has no answers yet and fails at nothing."""
    running_aimock.serve()
    return running_aimock


@pytest.fixture(params=["stream", "astream"])
def streaming(request: pytest.FixtureRequest) -> str:
    """Each of the two ways to run a request in chunks."""
    return str(request.param)
