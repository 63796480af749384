from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.otel.scraped import Exposed


@pytest.fixture
def exposed() -> Iterator[Exposed]:
    """Providers whose metrics are exposed to Prometheus."""
    exposed = Exposed()
    yield exposed
    exposed.close()
