"""The two ways to record: the fast path, and the SDK's own tracer and instruments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.captured import LogTexts
from traced_tools.fast_path import known_sdk


@contextmanager
def path(*, fast: bool) -> Iterator[None]:
    """Let providers that the package first meets in the block record in one of the two ways."""
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(known_sdk, "KNOWN_VERSIONS", frozenset())
        yield


@contextmanager
def captured_log() -> Iterator[LogTexts]:
    """What OpenTelemetry logs in the block."""
    texts, logger = LogTexts(), logging.getLogger("opentelemetry")
    logger.addHandler(texts)
    try:
        yield texts
    finally:
        logger.removeHandler(texts)
