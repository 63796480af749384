"""Beside instrumentation, our spans stand between its own, each once: FastAPI and httpx around, threads below."""

from __future__ import annotations

from typing import Any

import pytest

from tests.judges.instrumented import printed_by
from tests.modes import ALL_MODES

pytestmark = pytest.mark.slow  # each test starts processes

SILENT = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
TOOLS = {"call": "weather", "stream": "weather", "acall": "aweather", "astream": "aweather"}


@pytest.fixture(scope="module")
def printed() -> Any:
    return printed_by("tests.judges.fastapi_app", instrumented=True, **SILENT)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_is_part_of_the_request_and_what_it_asks_for_over_http_is_part_of_the_run(
    printed: Any, mode: str
) -> None:
    paths = printed[mode]["paths"]
    served = ["GET", f"GET /{mode}"]
    iteration = [*served, "invoke_agent assistant", "advise tool_calling", "iteration"]
    tool = [*iteration, f"execute_tool {TOOLS[mode]}"]
    for path, count in (
        (served, 1),
        (iteration, 2),
        ([*iteration, "chat gpt-x"], 2),
        ([*iteration, "chat gpt-x", "POST"], 2),
        (tool, 1),
        ([*tool, "GET"], 1),
        ([*tool, "GET", "GET /weather/{city}"], 1),
    ):
        assert paths.count(path) == count, path
    assert not [path for path in paths if path[0] != "GET"]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_each_request_to_the_model_names_the_span_of_the_http_client_as_its_parent(printed: Any, mode: str) -> None:
    assert printed[mode]["parents"] == ["POST", "POST"]


def test_what_the_threads_of_a_tool_do_is_part_of_the_tool_where_threading_is_instrumented() -> None:
    started = {
        "execute_tool blocking": ["map", "submit", "thread", "timer"],
        "execute_tool coroutine": ["default executor", "own executor"],
    }
    for paths in printed_by("tests.judges.threads_app").values():
        for tool, spans in started.items():
            assert [path[-1] for path in paths if tool in path and path[-1] != tool] == spans
        assert not [path for path in paths if path[0] != "invoke_agent assistant"]
