"""The project of docs/recipes/django.md, behind gunicorn, uvicorn and Django's own server."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx_sse import connect_sse

from tests.judges.programs import until as patient
from tests.recipes.stage import Stage, attributes, python, staged
from tests.test_docs import weather_service
from tests.waiting import PATIENCE, until
from traced_tools.testing import Delay, Received, Reply

pytestmark = pytest.mark.slow  # each test starts a server
UVICORN = ("-m", "uvicorn", "--port", "PORT", "servers:asgi")
SERVERS = {
    "gunicorn": ("-m", "gunicorn", "--bind", "127.0.0.1:PORT", "--threads", "4", "servers:wsgi"),
    "uvicorn": UVICORN,
    "runserver": ("-m", "django", "runserver", "--noreload", "PORT"),
}
QUESTION = {"question": "What is the weather in Lisbon?"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Stage]:
    with staged("django.md", tmp_path, service) as stage:
        stage.variables |= {"SECRET_KEY": "not secret", "DJANGO_SETTINGS_MODULE": "settings"}
        yield stage


def service(request: Received) -> Reply:
    """Answer like a model that looks the weather up first; a visitor who leaves gets no end."""
    if "leaves" not in request.json()["messages"][0]["content"]:
        return weather_service(request)
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Well, "}}]}
    return Reply.sse([chunk, Delay(math.inf)])


@pytest.mark.parametrize("server", SERVERS)
def test_a_view_answers_and_its_run_is_sent_when_the_server_stops(server: str, project: Stage) -> None:
    with project.served(python(), *SERVERS[server]) as (client, process):
        answer = client.get("/ask", params=QUESTION).json()
        assert answer["answer"] == "It is sunny."
        process.send_signal(signal.SIGINT if server == "runserver" else signal.SIGTERM)
        process.wait(PATIENCE)
    [run] = project.spans("invoke_agent assistant")
    assert answer["trace_id"] == run.trace_id.hex()
    assert {resource["service.name"] for resource in project.resources()} == {"travel-agent"}
    assert "Traceback" not in project.log()
    assert "traced_tools" not in project.log()


def test_a_view_streams_and_the_run_of_a_visitor_who_leaves_is_cancelled(project: Stage) -> None:
    with project.served(python(), *SERVERS["uvicorn"]) as (client, _):
        with connect_sse(client, "GET", "/stream", params={"question": "A visitor who leaves"}) as source:
            assert json.loads(next(source.iter_sse()).data) == "Well, "
        until(lambda: bool(project.spans("invoke_agent assistant")))
        with connect_sse(client, "GET", "/stream", params=QUESTION) as source:
            events = [(event.event, json.loads(event.data)) for event in source.iter_sse()]
    assert events == [("text", "It is sunny."), ("done", "answered")]
    cancelled, answered = map(attributes, project.spans("invoke_agent assistant"))
    assert (cancelled["traced_tools.loop.stop_reason"], cancelled["error.type"]) == ("cancelled", "cancelled")
    assert answered["traced_tools.loop.stop_reason"] == "answered"
    assert "Traceback" not in project.log()


def test_a_server_that_restarts_because_a_file_changed_sends_its_runs_before(project: Stage) -> None:
    project.variables["OTEL_BSP_SCHEDULE_DELAY"] = "600000"
    with project.served(python(), "-m", "django", "runserver", "PORT") as (client, process):
        client.get("/ask", params=QUESTION)

        def sent() -> bool:
            (project.folder / "travel" / "urls.py").touch()  # again, because the server may not have looked at it yet
            return bool(project.spans("invoke_agent assistant"))

        patient(sent, PATIENCE, "span of the process before", process)
        answer = patient(lambda: client.get("/ask", params=QUESTION), PATIENCE, "answer after the restart", process)
        assert answer.json()["answer"] == "It is sunny."
    assert "Traceback" not in project.log()
