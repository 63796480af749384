"""The programs of docs/recipes/fastapi.md, behind a real uvicorn."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import connect_sse

from tests.judges.programs import environment
from tests.recipes.page import start
from tests.recipes.stage import OURS, Stage, attributes, staged
from tests.test_docs import weather_service
from tests.waiting import PATIENCE, until
from traced_tools.audit import AuditTrail
from traced_tools.testing import Delay, Received, Reply

pytestmark = pytest.mark.slow  # each test starts a server
UVICORN = (OURS, "-W", "error", "-m", "uvicorn", "--port", "PORT")
QUESTION = {"question": "What is the weather in Lisbon?"}


def received(client: httpx.Client) -> list[tuple[str, Any]]:
    """Return the events that a browser receives that asks for a stream."""
    with connect_sse(client, "GET", "/stream", params=QUESTION) as source:
        return [(event.event, json.loads(event.data)) for event in source.iter_sse()]


def test_each_endpoint_answers_and_its_run_is_sent_when_the_server_stops(tmp_path: Path) -> None:
    with staged("fastapi.md", tmp_path) as stage:
        with stage.served(*UVICORN, "app:app") as (client, process):
            answer = client.get("/ask", params=QUESTION).json()
            events = received(client)
        assert answer["answer"] == "It is sunny."
        assert events == [("text", "It is sunny."), ("answer", "It is sunny."), ("done", "answered")]
        assert process.returncode == -15, stage.log()  # uvicorn ends by the signal that stopped it
        runs = stage.spans("invoke_agent assistant")
        assert len(runs) == 2
        assert answer["trace_id"] in {run.trace_id.hex() for run in runs}
        assert {resource["service.name"] for resource in stage.resources()} == {"travel-agent"}
        assert len(stage.spans("execute_tool get_weather")) == 2
    assert "Traceback" not in stage.log()


def test_the_run_of_a_visitor_who_leaves_while_the_model_answers_is_cancelled(tmp_path: Path) -> None:
    released = threading.Event()

    def slow_service(request: Received) -> Reply:
        if "leaves" not in request.json()["messages"][0]["content"]:
            return weather_service(request)
        chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Well, "}}]}
        return Reply.sse([chunk, Delay(released), "[DONE]"])

    with staged("fastapi.md", tmp_path, slow_service) as stage:
        with stage.served(*UVICORN, "app:app") as (client, _):
            with connect_sse(client, "GET", "/stream", params={"question": "A visitor who leaves"}) as source:
                assert json.loads(next(source.iter_sse()).data) == "Well, "
            check_cancelled(stage)  # although its model still answers
            assert received(client)[-1] == ("done", "answered")
        released.set()
    assert "Traceback" not in stage.log()


def test_the_tool_of_a_visitor_who_leaves_is_cancelled_and_the_audit_trail_says_so(tmp_path: Path) -> None:
    with staged("fastapi.md", tmp_path) as stage:
        app = tmp_path / "app.py"
        code, body = app.read_text(), 'return f"sunny in {city}"'
        assert body in code
        running = "open('running', 'w').close(); await __import__('asyncio').Event().wait()"
        app.write_text(code.replace(body, running))
        with stage.served(*UVICORN, "app:app") as (client, _):
            with connect_sse(client, "GET", "/stream", params=QUESTION):
                until((tmp_path / "running").exists)
            check_cancelled(stage)
    assert "Traceback" not in stage.log()
    with AuditTrail(tmp_path / "audit.db") as trail:
        assert len(trail.query(outcome="cancelled")) == 1
        assert trail.verify().ok


def test_a_run_that_does_not_stream_goes_on_when_its_visitor_leaves(tmp_path: Path) -> None:
    requested, left = threading.Event(), threading.Event()

    def slow_service(request: Received) -> Reply:
        requested.set()
        assert left.wait(PATIENCE)
        return weather_service(request)

    with staged("fastapi.md", tmp_path, slow_service) as stage:
        with stage.served(*UVICORN, "app:app") as (client, _):
            with ThreadPoolExecutor(1) as pool:
                visit = pool.submit(client.get, "/ask", params=QUESTION, timeout=httpx.Timeout(PATIENCE, read=1))
                assert requested.wait(PATIENCE)
                with pytest.raises(httpx.ReadTimeout):
                    visit.result()
            left.set()
        [run] = stage.spans("invoke_agent assistant")
        assert attributes(run)["traced_tools.loop.stop_reason"] == "answered"


def check_cancelled(stage: Stage) -> None:
    """Assert that the one run ends as cancelled while the server still serves."""
    until(lambda: bool(stage.spans("invoke_agent assistant")))
    [run] = stage.spans("invoke_agent assistant")
    assert attributes(run)["traced_tools.loop.stop_reason"] == "cancelled"
    assert attributes(run)["error.type"] == "cancelled"


def test_a_browser_is_told_the_type_of_an_error_and_not_its_text(tmp_path: Path) -> None:
    with staged("fastapi.md", tmp_path, lambda _: Reply.json({"error": {"message": "secret"}}, 400)) as stage:
        with stage.served(*UVICORN, "app:app") as (client, _):
            assert received(client) == [("failed", "InvalidRequest")]


@pytest.mark.parametrize(
    ("approved", "answer"), [(True, "paid 90 EUR to Ana"), (False, "The call was not run: Not allowed.")]
)
def test_a_call_is_decided_once_over_http_and_a_worker_resumes_its_run(
    approved: bool, answer: str, tmp_path: Path
) -> None:
    with staged("fastapi.md", tmp_path, payment_service) as stage:
        stage.variables["APPROVAL_KEY"] = "5b1d0c7a95f24e3d8a6b"
        with stage.served(*UVICORN, "desk_app:app") as (client, _):
            assert client.post("/ask", params={"question": "Pay Ana.", "chat": "c-7"}).json() == {"waits": True}
            [waits] = client.get("/waiting").json()
            assert (waits["call_id"], waits["tool"], waits["args"]) == ("c1", "pay", {"to": "Ana", "amount": 90})
            assert stage.run(OURS, "-W", "error", "desk_worker.py") == ""
            decision = {"run_id": waits["run_id"], "call_id": "c1", "approved": approved}
            assert client.post("/decide", json=decision).json() == {"status": "decided"}
            assert client.post("/decide", json=decision).status_code == 409
            assert client.get("/waiting").json() == []
            assert stage.run(OURS, "-W", "error", "desk_worker.py") == f"c-7 {answer}\n"
            assert stage.run(OURS, "-W", "error", "desk_worker.py") == ""


def test_a_run_is_submitted_over_http_and_a_worker_drives_it_for_its_principal_alone(tmp_path: Path) -> None:
    with staged("fastapi.md", tmp_path, payment_service) as stage:
        stage.variables["APPROVAL_KEY"] = "5b1d0c7a95f24e3d8a6b"
        with stage.served(*UVICORN, "runs_app:app") as (client, _):
            eve, bob, question = {"X-User": "eve"}, {"X-User": "bob"}, {"question": "Pay Ana."}
            for _ in range(2):
                submission = client.put("/runs/order-17", params=question, headers=eve)
                assert (submission.status_code, submission.json()["status"]) == (202, "submitted")
            worker = start(tmp_path / "runs_worker.py", env=environment(stage.variables))
            try:
                until(lambda: client.get("/runs/order-17", headers=eve).json()["status"] == "waiting")
                [waits] = client.get("/waiting").json()
                decision = {"run_id": waits["run_id"], "call_id": "c1", "approved": True}
                assert client.post("/decide", json=decision).json() == {"status": "decided"}
                until(lambda: client.get("/runs/order-17", headers=eve).json()["status"] == "finished")
            finally:
                worker.terminate()
                output = worker.communicate(timeout=PATIENCE)
            assert (worker.returncode, *output) == (0, "", "")
            assert client.get("/runs/order-17", headers=eve).json()["answer"] == "paid 90 EUR to Ana"
            assert client.get("/runs/order-17", headers=bob).status_code == 404
            assert client.put("/runs/order-17", params=question, headers=bob).status_code == 409
            assert client.get("/runs/order-18", headers=eve).status_code == 404
            assert client.get("/runs/a b", headers=eve).status_code == 422


def payment_service(request: Received) -> Reply:
    """Answer like a model that pays, and then repeats the result."""
    last = request.json()["messages"][-1]
    if last["role"] == "tool":
        said = {"role": "assistant", "content": last["content"]}
    else:
        function = {"name": "pay", "arguments": json.dumps({"to": "Ana", "amount": 90})}
        said = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return Reply.json({"choices": [{"message": said, "finish_reason": "stop"}]})
