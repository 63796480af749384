"""Metrics of several worker processes: a range of ports, a targets file, and mounted applications."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.otel.processes import PRELUDE, in_a_process
from tests.otel.scraped import OPENMETRICS, Exposed, run
from traced_tools.errors import ConfigurationError
from traced_tools.otel.handle import Telemetry
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer
from traced_tools.otel.prometheus_targets import TargetsFile

WORKER = """
handle = configure(prometheus="127.0.0.1:{first}-{last}", prometheus_targets={path!r})
print(handle.prometheus_address, flush=True)
sys.stdin.read()
handle.shutdown()
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


@contextmanager
def ports() -> Iterator[range]:
    """Yield four consecutive ports, of which the second is in use."""
    for first in range(20_000, 30_000, 4):
        with ExitStack() as opened:
            try:
                listeners = [opened.enter_context(socket.create_server(("127.0.0.1", first + n))) for n in range(4)]
            except OSError:
                continue
            for each in (0, 2, 3):
                listeners[each].close()
            yield range(first, first + 4)
            return


def listed(path: Path) -> list[str]:
    """Return the addresses that Prometheus would read."""
    ((group),) = json.loads(path.read_text())
    assert set(group) == {"targets"}
    return list(group["targets"])


def worker(path: Path, given: range) -> subprocess.Popen[str]:
    """Start a process that serves its metrics until its input ends."""
    script = PRELUDE + WORKER.format(first=given[0], last=given[-1], path=str(path))
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def address_of(process: subprocess.Popen[str]) -> str:
    """Return where a worker serves, once it does."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_workers_take_the_free_ports_of_a_range_and_a_dead_one_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    with ports() as given, ExitStack() as running:
        workers = [running.enter_context(each) for each in [worker(path, given) for _ in range(2)]]  # side by side
        addresses = [address_of(each) for each in workers]
        assert sorted(addresses) == [f"127.0.0.1:{given[each]}" for each in (0, 2)] == listed(path)
        killed, stopped = workers
        killed.kill()
        killed.wait()
        follower = running.enter_context(worker(path, given))
        assert address_of(follower) == addresses[0]
        stopped.communicate("")
        assert listed(path) == addresses[:1]
        follower.communicate("")
        assert listed(path) == []
    assert {each.name for each in tmp_path.iterdir()} == {"targets.json", "targets.json.lock"}


def test_workers_that_start_at_once_are_all_listed_and_prometheus_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    script = "file = TargetsFile(pathlib.Path(sys.argv[1]))\nfile.add(sys.argv[2])"
    prelude = "import pathlib, sys\nfrom traced_tools.otel.prometheus_targets import TargetsFile\n"
    with ExitStack() as opened:
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = sorted(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
        command = [sys.executable, "-c", prelude + script, str(path)]
        for process in [opened.enter_context(subprocess.Popen([*command, each])) for each in addresses]:
            assert process.wait() == 0
    assert listed(path) == addresses
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.slow
@forks
def test_a_forked_worker_adds_its_own_entry_and_keeps_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    done = in_a_process(
        f"""
import json, warnings
warnings.simplefilter("ignore")
wanted = dict(prometheus=0, prometheus_targets={str(path)!r})
handle = configure(**wanted)
listed = lambda: json.load(open({str(path)!r}))[0]["targets"]
first = handle.prometheus_address
if not (child := os.fork()):
    assert listed() == [first]
    own = configure(**wanted).prometheus_address
    assert own != first and listed() == sorted([first, own])
    handle.shutdown()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(listed() == [first])
"""
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    "content",
    [
        *("no JSON", "{}", "[1]", '[{"labels": {}}]', '[{"targets": "a:1"}]', '[{"targets": [1]}]'),
        '[{"targets": ["a:1"], "labels": {"team": "search"}}]',
        '[{"targets": ["a:1"]}, {"targets": ["b:1"]}]',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_file_with_other_content_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(
        ConfigurationError, match=r"prometheus_targets: .*settings\.json contains something other than a list"
    ):
        TargetsFile(path).add("127.0.0.1:1")
    assert path.read_text() == content


@pytest.mark.parametrize("before", ["[]", '[{"targets": ["127.0.0.1:99999", "nowhere"]}]'])
def test_invalid_addresses_are_removed_from_the_file(tmp_path: Path, before: str) -> None:
    path = tmp_path / "targets.json"
    path.write_text(before)
    TargetsFile(path).add("127.0.0.1:1")
    assert listed(path) == ["127.0.0.1:1"]


def test_a_symbolic_link_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "targets.json", tmp_path / "other"
    other.write_text("kept")
    path.with_name(f"targets.json.{os.getpid()}.tmp").symlink_to(other)
    TargetsFile(path).add("127.0.0.1:1")
    assert (other.read_text(), path.is_symlink()) == ("kept", False)


def test_a_file_that_cannot_be_written_is_an_error_and_frees_the_port(tmp_path: Path) -> None:
    collector = PrometheusCollector(PrometheusReader())
    with ports() as given:
        with pytest.raises(ConfigurationError, match=r"cannot write .*missing/targets\.json \(No such file"):
            PrometheusServer(collector, "127.0.0.1", given[:1], TargetsFile(tmp_path / "missing" / "targets.json"))
        PrometheusServer(collector, "127.0.0.1", given[:1]).stop()


def test_a_wildcard_address_is_listed_with_the_host_name(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    TargetsFile(path).add("0.0.0.0:9464")
    assert listed(path) == [f"{socket.gethostname()}:9464"]


def test_a_port_in_use_names_other_workers_and_what_to_do() -> None:
    with ports() as given:
        with pytest.raises(ConfigurationError) as refused:
            PrometheusServer(PrometheusCollector(PrometheusReader()), "127.0.0.1", given[1:2])
    text = str(refused.value)
    assert f"cannot listen on 127.0.0.1:{given[1]} (Address already in use). Another worker" in text
    assert "prometheus_targets=" in text and "asgi_app()" in text


def test_a_range_in_use_asks_for_a_wider_one() -> None:
    with ports() as given, socket.create_server(("127.0.0.1", given[2])):
        with pytest.raises(ConfigurationError) as refused:
            PrometheusServer(PrometheusCollector(PrometheusReader()), "127.0.0.1", given[1:3])
    assert str(refused.value) == (
        f"prometheus: cannot listen on 127.0.0.1:{given[1]}-{given[2]} (Address already in use). All 2 ports are "
        "in use by other processes: pass a wider range"
    )


def test_a_targets_file_without_an_address_is_an_error() -> None:
    done = in_a_process(
        """
try:
    configure(prometheus=True, prometheus_targets="x.json")
except ConfigurationError as error:
    print(error)
"""
    )
    assert done.stdout == "prometheus_targets needs a server: pass a port or an address as prometheus= as well\n"


def test_an_asgi_app_serves_the_metrics_where_it_is_mounted(exposed: Exposed) -> None:
    run(exposed.options)
    app = Starlette(routes=[Mount("/metrics", Telemetry(collector=exposed.collector).asgi_app())])

    async def scrape() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            return await http.get("/metrics/", headers={"Accept": OPENMETRICS})

    answer = asyncio.run(scrape())
    assert answer.headers["content-type"].startswith(OPENMETRICS)
    assert "traced_tools_tool_decisions_total{" in answer.text


def test_a_wsgi_app_serves_the_metrics(exposed: Exposed) -> None:
    run(exposed.options)
    said: list[str] = []
    environ = {"HTTP_ACCEPT": OPENMETRICS}
    setup_testing_defaults(environ)
    body = Telemetry(collector=exposed.collector).wsgi_app()(
        environ, lambda status, headers, error=None: said.append(status)
    )  # type: ignore
    assert said == ["200 OK"]
    assert "traced_tools_tool_decisions_total{" in b"".join(body).decode()


def test_configure_collects_for_an_app_without_listening() -> None:
    done = in_a_process(
        """
handle = configure(prometheus=True)
run()
body = handle.wsgi_app()({"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"}, lambda *_: None)
print(handle.prometheus_address, b"gen_ai_invoke_agent_duration_seconds_count" in b"".join(body))
"""
    )
    assert done.stdout == "None True\n"


@pytest.mark.parametrize("name", ["asgi_app", "wsgi_app"])
def test_an_app_without_metrics_serves_none_and_says_why(name: str, caplog: pytest.LogCaptureFixture) -> None:
    getattr(Telemetry(), name)()
    assert [record.getMessage() for record in caplog.records] == [
        f"{name}() serves no metrics, because configure() collects none: it needs prometheus=True, no "
        "OTEL_SDK_DISABLED, and no meter provider of the application's own"
    ]
