"""A real Loki, asked through its HTTP API: https://grafana.com/docs/loki/latest/reference/loki-http-api/."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult

from tests.judges.programs import free_port, program, running, until

TO_HAVE_IT = "make loki; make test then finds it"
EVENT_NAME = "event_name"
"""The attribute into which a collector copies the name of an event, which Loki drops."""
# Loki is ready when it has looked up its scheduler for the second time, which is after ten seconds by default.
_CONFIG = """
auth_enabled: false
analytics: {{reporting_enabled: false}}
server:
  http_listen_address: 127.0.0.1
  http_listen_port: {http}
  grpc_listen_address: 127.0.0.1
  grpc_listen_port: {grpc}
  log_level: warn
memberlist: {{bind_addr: [127.0.0.1], bind_port: {members}}}
common:
  path_prefix: {folder}
  instance_addr: 127.0.0.1
  replication_factor: 1
  ring: {{kvstore: {{store: inmemory}}, instance_addr: 127.0.0.1}}
  storage: {{filesystem: {{chunks_directory: {folder}/chunks, rules_directory: {folder}/rules}}}}
ingester: {{lifecycler: {{min_ready_duration: 0s, final_sleep: 0s}}}}
frontend: {{scheduler_dns_lookup_period: 100ms}}
schema_config:
  configs:
    - {{from: "2024-01-01", store: tsdb, object_store: filesystem, schema: v13, index: {{prefix: index_, period: 24h}}}}
"""
_SECONDS_TO_START = 60
_MOST_RECORDS = 5000
"""As many as Loki returns by default for one query."""


class Loki:
    """A running server."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def send(self, records: Sequence[ReadableLogRecord]) -> None:
        """Send log records over OTLP, with the same copy of the event's name that the collector of `deploy/` makes."""
        exporter = OTLPLogExporter(endpoint=f"{self._http.base_url}/otlp/v1/logs")
        try:
            assert exporter.export([_with_event_name(each) for each in records]) is LogRecordExportResult.SUCCESS
        finally:
            exporter.shutdown()

    def ask(self, what: str, **parameters: str | int) -> Any:
        """Return the data of an answer about the last hour."""
        now = time.time_ns()
        hour = {"start": now - 3600 * 10**9, "end": now + 10**9, **parameters}
        answer = self._http.get(f"/loki/api/v1/{what}", params=hour)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def records(self, query: str) -> list[dict[str, str]]:
        """Return the labels and the structured metadata of each record that a log query finds; `line` is its body."""
        found = self.ask("query_range", query=query, limit=_MOST_RECORDS)
        assert found["resultType"] == "streams"
        records = [{**each["stream"], "line": line} for each in found["result"] for _, line in each["values"]]
        assert len(records) < _MOST_RECORDS, "there may be more"
        return records

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of a metric query, evaluated now."""
        found = self.ask("query", query=query, time=time.time_ns())
        assert found["resultType"] == "vector"
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def finds(self, query: str, *, is_instant: bool = False) -> bool:
        """Whether a query of either kind finds records or numbers: now, or over the last hour."""
        return bool(self.values(query) if is_instant else self.ask("query_range", query=query, step=60)["result"])


def _with_event_name(record: ReadableLogRecord) -> ReadableLogRecord:
    copied = copy.copy(record.log_record)
    copied.attributes = {**(copied.attributes or {}), EVENT_NAME: copied.event_name}
    return replace(record, log_record=copied)


@contextmanager
def running_loki(folder: Path) -> Iterator[Loki]:
    """Run Loki on free ports of this machine, with its data in `folder`, until the block ends."""
    ports = {name: free_port() for name in ("http", "grpc", "members")}
    config = folder / "loki.yaml"
    config.write_text(_CONFIG.format(folder=folder, **ports))
    command = [program("loki", TO_HAVE_IT), f"-config.file={config}"]
    url = f"http://127.0.0.1:{ports['http']}"
    with running(command, folder) as server, httpx.Client(base_url=url, timeout=30) as http:
        until(lambda: http.get("/ready").is_success, _SECONDS_TO_START, "Loki that is ready", server)
        yield Loki(http)
