"""The metrics server: the format that a scraper accepts, concurrent scrapers, and addresses."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.otel.scraped import OPENMETRICS, Exposed, get, only, run
from traced_tools.errors import ConfigurationError
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer, parse_address


def test_a_scraper_that_does_not_ask_for_openmetrics_gets_the_text_format(exposed: Exposed) -> None:
    run(exposed.options)
    with exposed.serve() as server:
        kind, text = get(server, "text/plain")
        other, _ = get(server)
    assert kind.startswith("text/plain") and other.startswith(OPENMETRICS)
    families = {family.name: family for family in parse_text(text)}
    assert families["gen_ai_invoke_agent_duration_seconds"].type == "histogram"
    assert "trace_id" not in text


def test_a_scraper_can_ask_for_single_series(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1)
    exposed.meter.create_counter("d").add(1)
    with exposed.serve() as server:
        _, text = get(server, "text/plain", "?name[]=c_total")
    assert "c_total 1.0" in text and "d_total" not in text


def test_scrapes_at_once_while_runs_go_on_are_each_valid_and_never_go_back(exposed: Exposed) -> None:
    name = "gen_ai_invoke_agent_duration_seconds_count"
    stop = threading.Event()

    def scrape_on(server: PrometheusServer) -> list[float]:
        seen: list[float] = []
        while not stop.is_set():
            families = parse_openmetrics(get(server)[1])
            seen.extend(sample.value for family in families for sample in family.samples if sample.name == name)
        return seen

    with exposed.serve() as server, ThreadPoolExecutor(4) as pool:
        scrapers = [pool.submit(scrape_on, server) for _ in range(3)]
        for _ in range(20):
            run(exposed.options)
        stop.set()
    for scraper in scrapers:
        assert scraper.result() == sorted(scraper.result())
    assert only(exposed.samples(name)).value == 20
    assert not exposed.collector.skipped


def test_serving_writes_nothing_to_stderr(exposed: Exposed, capfd: pytest.CaptureFixture[str]) -> None:
    with exposed.serve() as server:
        get(server)
        delete = urllib.request.Request(f"http://{server.address}/", method="DELETE")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(delete, timeout=5)
        refused.value.close()
    assert capfd.readouterr() == ("", "")


def test_a_stopped_server_has_no_thread_and_no_port(exposed: Exposed) -> None:
    before = set(threading.enumerate())
    with exposed.serve() as server:
        assert set(threading.enumerate()) - before
    server.stop()
    assert not set(threading.enumerate()) - before
    host, port = server.address.split(":")
    again = PrometheusServer(exposed.collector, host, [int(port)])
    again.stop()
    assert again.address == server.address


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_unknown_host_is_an_error(host: str) -> None:
    with pytest.raises(ConfigurationError, match="prometheus: cannot listen on"):
        PrometheusServer(PrometheusCollector(PrometheusReader()), host, [0])


@pytest.mark.parametrize(
    ("value", "host", "ports"),
    [
        (9464, "127.0.0.1", range(9464, 9465)),
        (0, "127.0.0.1", range(1)),
        ("0.0.0.0:9464", "0.0.0.0", range(9464, 9465)),
        ("localhost:0", "localhost", range(1)),
        ("[::1]:9464", "::1", range(9464, 9465)),
        ("[::1]:9464-9466", "::1", range(9464, 9467)),
    ],
)
def test_an_address_is_a_port_of_this_machine_or_host_and_port(value: int | str, host: str, ports: range) -> None:
    assert parse_address(value) == (host, ports)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        65536,
        "",
        "9464",
        ":9464",
        "host",
        "host:",
        "host:x",
        "host:99999",
        "http://host:1",
        "u:p@host:1",
        "h:1/x",
        "[::1",
        " h:1",
        "h:2-1",
        "h:0-3",
        "h:1-70000",
        ":1-2",
        "1-2",
    ],
)
def test_an_invalid_address_is_an_error_that_says_what_is_accepted(value: int | str) -> None:
    with pytest.raises(ConfigurationError, match=r'a port from 0 to 65535 .*, "host:port"'):
        parse_address(value)
