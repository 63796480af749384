"""A real Prometheus, asked through its HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.judges.programs import free_port, program, running, until

PACKAGE = "apt-get install prometheus"
_CONFIG = """
global: {{scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every}}}
rule_files: {rules}
alerting: {{alertmanagers: [{{static_configs: [{{targets: {alertmanagers}}}]}}]}}
scrape_configs:
"""
_JOB = """
  - job_name: {job}
    static_configs: [{{targets: ["{address}"]}}]
"""
_SECONDS_TO_START = 30
_ANSWER_SECONDS = 120


class Prometheus:
    """A running server that scrapes one job or several."""

    def __init__(self, http: httpx.Client, server: subprocess.Popen[bytes]) -> None:
        self.url = str(http.base_url)
        self._http = http
        self._server = server

    def ask(self, what: str, **parameters: str | float) -> Any:
        """Return the data of an answer."""
        is_query = what.startswith("query")  # whose text may be too long for a URL
        answer = (
            self._http.post(f"/api/v1/{what}", data=parameters)
            if is_query
            else self._http.get(f"/api/v1/{what}", params=parameters)
        )
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def write(self, body: bytes) -> None:
        """Write samples: a remote write request as protobuf."""
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        answer = self._http.post("/api/v1/write", content=snappy(body), headers=headers)
        assert answer.is_success, answer.text

    def series(self, job: str) -> list[dict[str, str]]:
        """Return the labels of all series of a job, without those that Prometheus puts on."""
        found = self.ask("series", **{"match[]": f'{{job="{job}"}}'})
        return [{name: text for name, text in each.items() if name not in ("job", "instance")} for each in found]

    def values(self, query: str, **at: float) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series that a query gives, now or at the Unix time `time`."""
        found = self.ask("query", query=query, **at)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def value(self, query: str) -> float:
        """Return the value of the only series that a query gives."""
        ((_, value),) = self.values(query)
        return value

    def lines(self, query: str, start: float, end: float, step: float) -> list[tuple[dict[str, str], list[float]]]:
        """Return labels and values of each series that a query gives over a time range."""
        found = self.ask("query_range", query=query, start=start, end=end, step=step)["result"]
        return [(each["metric"], [float(value) for _, value in each["values"]]) for each in found]

    def label_values(self, label: str, selector: str) -> list[str]:
        """Return the values of a label of the series that a selector names."""
        found: list[str] = self.ask(f"label/{label}/values", **{"match[]": selector})
        return found

    def exemplars(self, query: str) -> list[dict[str, Any]]:
        """Return the exemplars of the series that a query names: each has labels, a value and those of its series."""
        now = time.time()
        found = self.ask("query_exemplars", query=query, start=now - 600, end=now + 60)
        return [{**exemplar, "series": each["seriesLabels"]} for each in found for exemplar in each["exemplars"]]

    def evaluated_after(self, moment: float) -> float:
        """Wait until the server has scraped all jobs and evaluated all rules after a moment; return when it had."""

        def evaluated() -> float | None:
            groups = self.ask("rules")["groups"]
            rules = [datetime.fromisoformat(each["lastEvaluation"]).timestamp() for each in groups]
            up = self.values("up", time=max(rules))
            scrapes = [scraped for _, scraped in self.values("timestamp(up) and up == 1", time=max(rules))]
            return max(rules) if len(scrapes) == len(up) and min(*scrapes, *rules) > moment else None

        return until(evaluated, _SECONDS_TO_START, "evaluation of the rules", self._server)

    def has_scraped(self, jobs: int) -> bool:
        """Whether so many jobs were scraped, and well."""
        return len(self.values("up == 1")) == jobs


def snappy(data: bytes) -> bytes:
    """Return data in the block format of Snappy, as literals: https://github.com/google/snappy/blob/main/format_description.txt."""
    size, rest = bytearray(), len(data)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    size.append(rest)
    literals = (data[start : start + 65_536] for start in range(0, len(data), 65_536))
    return bytes(size) + b"".join(b"\xf4" + (len(each) - 1).to_bytes(2, "little") + each for each in literals)


def backfill(text: Path, folder: Path) -> None:
    """Write blocks from OpenMetrics text with times, for a Prometheus that keeps its files in `folder`."""
    command = [program("promtool", PACKAGE), "tsdb", "create-blocks-from", "openmetrics"]
    # It reads the text again for each block, of which there would be twelve for each day.
    arguments = ["--max-block-duration=100h", str(text), str(folder / "data")]
    subprocess.run([*command, *arguments], stdout=subprocess.DEVNULL, check=True)


@contextmanager
def scraping(
    addresses: Mapping[str, str],
    folder: Path,
    *,
    rules: Sequence[Path] = (),
    alertmanagers: Iterable[str] = (),
    every: str = "500ms",
) -> Iterator[Prometheus]:
    """Run Prometheus on a free port of this machine; it has scraped each address, by the name of its job.

    Args:
        addresses: what is scraped, by the name of the job.
        folder: where the server keeps its files; blocks in its folder `data` are served, too.
        rules: rule files.
        alertmanagers: the addresses to which alerts are sent.
        every: how often jobs are scraped and rules are evaluated.
    """
    config = folder / "prometheus.yml"
    jobs = (_JOB.format(job=job, address=address) for job, address in addresses.items())
    own_rules = [folder / path.name for path in rules]
    for own, path in zip(own_rules, rules, strict=True):  # each group is evaluated as often as jobs are scraped
        own.write_text(re.sub(r"^  interval: .*\n", "", path.read_text(), flags=re.MULTILINE))
    head = _CONFIG.format(
        rules=json.dumps([str(path) for path in own_rules]), alertmanagers=json.dumps(list(alertmanagers)), every=every
    )
    config.write_text("".join((head, *jobs)))
    host = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus", PACKAGE),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={host}",
        "--enable-feature=exemplar-storage,native-histograms",
        "--web.enable-remote-write-receiver",
        "--rules.alert.resend-delay=1s",  # what fires before Alertmanager is found is sent again
        "--log.level=warn",
    ]
    with running(command, folder) as server, httpx.Client(base_url=f"http://{host}", timeout=_ANSWER_SECONDS) as http:
        prometheus = Prometheus(http, server)
        until(lambda: http.get("/-/ready").is_success, _SECONDS_TO_START, "Prometheus that is ready", server)
        wanted = len(addresses)
        until(lambda: prometheus.has_scraped(wanted), _SECONDS_TO_START, "scrape of each job that went well", server)
        yield prometheus
