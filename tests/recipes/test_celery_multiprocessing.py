"""The programs of docs/recipes/celery-multiprocessing.md: a Celery worker with a real Redis, and pools of processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.judges.programs import running
from tests.memory.redis_server import serving
from tests.recipes.stage import OURS, attributes, python, staged
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow  # each test starts processes
PAGE = "celery-multiprocessing.md"
WORKER = ("-m", "celery", "--app", "tasks", "worker", "--concurrency", "2")


def test_a_task_is_part_of_the_trace_of_its_sender_and_continues_its_conversation(tmp_path: Path) -> None:
    with staged(PAGE, tmp_path) as stage, serving() as redis:
        stage.variables["REDIS_URL"] = redis.url()
        with running([python(), *WORKER], tmp_path, stage.variables) as worker:
            assert stage.run(python(), "send.py") == "It is sunny.\n"
            assert stage.run(python(), "send.py") == "It is sunny.\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        orders, runs = stage.spans("order"), stage.spans("invoke_agent assistant")
        assert len(orders) == len(runs) == 2
        assert {(run.trace_id, run.parent_span_id) for run in runs} == {
            (span.trace_id, span.span_id) for span in orders
        }
        assert {resource["service.name"] for resource in stage.resources()} == {"travel-web", "travel-worker"}
        assert {attributes(run)["gen_ai.conversation.id"] for run in runs} == {"c-42"}
        contents = [message["content"] for message in stage.models.requests[-1].json()["messages"]]
        assert contents.count("How is the weather in Lisbon?") == 2
    assert "Traceback" not in stage.log()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing is forked here")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_each_process_of_a_pool_sends_its_runs_when_it_ends(method: str, tmp_path: Path) -> None:
    with staged(PAGE, tmp_path) as stage:
        program = tmp_path / "batch.py"
        assert '"spawn"' in program.read_text()
        program.write_text(program.read_text().replace('"spawn"', repr(method)))
        assert stage.run(OURS, "-W", "error", "batch.py") == "It is sunny. It is sunny.\n"
        assert len(stage.spans("invoke_agent assistant")) == 2
        assert {resource["service.name"] for resource in stage.resources()} == {"travel-batch"}


def test_the_children_of_a_configured_process_send_their_runs_when_they_end(tmp_path: Path) -> None:
    with staged(PAGE, tmp_path) as stage:
        program = tmp_path / "batch.py"
        text = program.read_text().replace('"spawn"), initializer=start)', '"fork"))')
        program.write_text(text.replace('__main__":\n', '__main__":\n    start()\n'))
        assert stage.run(OURS, "-W", "error", "batch.py") == "It is sunny. It is sunny.\n"
        assert len(stage.spans("invoke_agent assistant")) == 2
