"""Fixtures of the tests of tools."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log of schemas: warnings of the module, without a traceback."""
    caplog.set_level(logging.DEBUG)
    yield caplog
    assert all(each.levelno == logging.WARNING and each.exc_info is None for each in caplog.records)
    assert {each.name for each in caplog.records} <= {"traced_tools.tools.schema.json_schema"}
