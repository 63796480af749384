"""The programs of docs/recipes/gunicorn-uvicorn.md, behind gunicorn and uvicorn with two workers each."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.judges.programs import free_port, program, running
from tests.judges.prometheus import PACKAGE
from tests.recipes.stage import Stage, python, staged
from tests.test_docs import weather_service
from tests.waiting import PATIENCE, until
from traced_tools.testing import Received, Reply

pytestmark = pytest.mark.slow  # each test starts servers
RUNS = "gen_ai_invoke_agent_duration_seconds_count{"

GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:PORT", "wsgi:app")
SERVERS = {
    "gunicorn": GUNICORN,
    "gunicorn with preload": (*GUNICORN, "--preload"),
    "uvicorn": ("-m", "uvicorn", "--port", "PORT", "--workers", "2", "asgi:app"),
    "gunicorn with uvicorn's workers": (
        *("-m", "gunicorn", "--bind", "127.0.0.1:PORT", "--workers", "2", "--config", "/dev/null"),
        *("--worker-class", "uvicorn_worker.UvicornWorker", "asgi:app"),
    ),
}


def addresses(stage: Stage) -> list[str]:
    """Return the addresses that the workers list for Prometheus."""
    file = stage.folder / "targets.json"
    return json.loads(file.read_text())[0]["targets"] if file.exists() else []


def runs_counted(address: str) -> int:
    """Return how many runs a worker counts."""
    page = httpx.get(f"http://{address}/metrics", trust_env=False).text
    return sum(int(float(line.rpartition(" ")[2])) for line in page.splitlines() if line.startswith(RUNS))


def use_free_ports(stage: Stage) -> None:
    """Have the program use other ports than 9464 and the next ones, which another program may use."""
    first = free_port()
    for file in (stage.folder / "gunicorn.conf.py", stage.folder / "asgi.py"):
        assert "9464-9479" in file.read_text()
        file.write_text(file.read_text().replace("9464-9479", f"{first}-{first + 15}"))


@pytest.mark.parametrize("server", SERVERS)
def test_each_worker_is_scraped_and_sends_its_spans_before_it_stops(server: str, tmp_path: Path) -> None:
    with staged("gunicorn-uvicorn.md", tmp_path) as stage:
        use_free_ports(stage)
        with stage.served(python(), *SERVERS[server]) as (client, process):
            until(lambda: len(addresses(stage)) == 2)
            counted = sum(runs_of_both(stage, client))
        assert process.returncode == 0, stage.log()
        assert addresses(stage) == []
        assert len(stage.spans("invoke_agent assistant")) == counted
        assert len({resource["service.instance.id"] for resource in stage.resources()}) == 2
    assert "Traceback" not in stage.log()
    assert "traced_tools" not in stage.log()


def runs_of_both(stage: Stage, client: httpx.Client) -> list[int]:
    """Ask until both workers have run the agent, and return how many runs each counts."""

    def both_ran() -> bool:
        assert "It is sunny." in httpx.get(client.base_url, trust_env=False).text  # over a connection of its own
        return all(map(runs_counted, addresses(stage)))

    until(both_ran)
    return [*map(runs_counted, addresses(stage))]


def test_prometheus_finds_the_workers_in_their_file(tmp_path: Path) -> None:
    prometheus = program("prometheus", PACKAGE)
    with staged("gunicorn-uvicorn.md", tmp_path) as stage, ExitStack() as servers:
        use_free_ports(stage)
        client, _ = servers.enter_context(stage.served(python(), *SERVERS["gunicorn"]))
        until(lambda: len(addresses(stage)) == 2)
        counted = sum(runs_of_both(stage, client))
        config, folder, address = tmp_path / "prometheus.yml", tmp_path / "prometheus", f"127.0.0.1:{free_port()}"
        config.write_text("global: {scrape_interval: 1s}\n" + config.read_text())
        folder.mkdir()
        command = [prometheus, f"--config.file={config}", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
        with running(command, folder), httpx.Client(base_url=f"http://{address}", trust_env=False) as api:

            def total() -> str | None:
                query = {"query": "sum(gen_ai_invoke_agent_duration_seconds_count)"}
                with suppress(httpx.TransportError):  # it starts
                    answer = api.get("/api/v1/query", params=query)
                    if answer.is_success and (result := answer.json()["data"]["result"]):
                        return str(result[0]["value"][1])
                return None

            until(lambda: total() == str(counted))


@pytest.mark.parametrize("server", ["gunicorn", "uvicorn"])
def test_a_request_that_runs_when_the_server_is_stopped_is_answered_and_its_spans_are_sent(
    server: str, tmp_path: Path
) -> None:
    requested, released = threading.Event(), threading.Event()

    def slow_service(request: Received) -> Reply:
        if "slow" not in request.json()["messages"][0]["content"]:
            return weather_service(request)
        requested.set()
        assert released.wait(PATIENCE)
        return weather_service(request)

    with staged("gunicorn-uvicorn.md", tmp_path, slow_service) as stage, ThreadPoolExecutor() as pool:
        use_free_ports(stage)
        with stage.served(python(), *SERVERS[server]) as (client, process):
            until(lambda: len(addresses(stage)) == 2)
            answer = pool.submit(client.get, "/", params={"question": "slow"})
            assert requested.wait(PATIENCE)
            process.terminate()
            released.set()
            assert "It is sunny." in answer.result().text
            assert process.wait(PATIENCE) == 0
        assert len(stage.spans("chat gpt-5-mini")) == 2 * len(stage.spans("invoke_agent assistant")) > 0


def test_what_is_configured_before_the_fork_works_in_the_workers(tmp_path: Path) -> None:
    with staged("gunicorn-uvicorn.md", tmp_path) as stage:
        use_free_ports(stage)
        module = tmp_path / "wsgi.py"
        module.write_text(
            f"import traced_tools\ntraced_tools.configure(service_name='early', prometheus=0)\n{module.read_text()}"
        )
        with stage.served(python(), *SERVERS["gunicorn with preload"]) as (client, process):
            until(lambda: len(addresses(stage)) == 2)
            counted = sum(runs_of_both(stage, client))
        assert process.returncode == 0, stage.log()
        assert len(stage.spans("invoke_agent assistant")) == counted
        workers = [resource for resource in stage.resources() if resource["service.name"] == "early"]
        assert len({resource["service.instance.id"] for resource in workers}) == 2
    assert "traced_tools" not in stage.log()
