"""The configuration of Alertmanager: who is told of which alert."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import yaml_files
from tests.judges.programs import ROOT, free_port, program, running, until
from tests.waiting import PATIENCE
from tests.waiting import until as wait_until

TO_HAVE_IT = "build it with Go, as .ci/run does"
CONFIG = ROOT / "deploy" / "alertmanager" / "alertmanager.yaml"
SECRETS = "/etc/alertmanager/secrets/webhooks/"
RULES = [
    rule
    for group in yaml_files.load((ROOT / "dashboards" / "rules" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
_SECONDS_TO_START = 30


def _with_receivers(url: str, folder: Path) -> Path:
    """Write the configuration, with receivers at `url`: the path of a URL is the name of the receiver."""
    names = re.findall(rf"url_file: {SECRETS}(\w+)", CONFIG.read_text())
    assert names
    for name in names:
        (folder / name).write_text(f"{url}/{name}\n")
    path = folder / "alertmanager.yaml"
    path.write_text(CONFIG.read_text().replace(SECRETS, f"{folder}/"))
    return path


def _receiver(rule: Mapping[str, Any]) -> str:
    """Return who must receive the alerts of a rule."""
    if rule["alert"] == "DeadMansSwitch":
        return "watcher"
    team, severity = rule["labels"]["team"], rule["labels"]["severity"]
    return {"page": "pages", "ticket": "tickets"}[severity] if team == "agents" else team


@contextmanager
def alertmanager(folder: Path, url: str) -> Iterator[httpx.Client]:
    """Run Alertmanager, which notifies receivers at `url`, and yield a client of its API."""
    host = f"127.0.0.1:{free_port()}"
    command = [
        program("alertmanager", TO_HAVE_IT),
        f"--config.file={_with_receivers(url, folder)}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={host}",
        "--cluster.listen-address=",  # no cluster
    ]
    with running(command, folder) as server, httpx.Client(base_url=f"http://{host}", timeout=PATIENCE) as http:
        until(lambda: http.get("/-/ready").is_success, _SECONDS_TO_START, "Alertmanager that is ready", server)
        yield http


def _fire(http: httpx.Client, *alerts: Mapping[str, str]) -> None:
    http.post("/api/v2/alerts", json=[{"labels": labels} for labels in alerts]).raise_for_status()


def _firing(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """Return the alerts by their names."""
    return {alert["labels"]["alertname"]: alert for alert in http.get("/api/v2/alerts").raise_for_status().json()}


@contextmanager
def receiving() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Serve webhooks; yield their URL, and the receiver and the body of each notification."""
    notifications: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            notifications.append((self.path.removeprefix("/"), json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", notifications
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_urls_of_receivers_are_in_files() -> None:
    config = yaml_files.load(CONFIG.read_text())
    kinds = [kind for receiver in config["receivers"] for kind in receiver if kind != "name"]
    assert set(kinds) == {"webhook_configs"}
    for receiver in config["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            assert webhook.keys() <= {"url_file", "send_resolved"}
            assert webhook["url_file"] == SECRETS + receiver["name"]


def test_alerts_of_an_agent_form_a_group() -> None:
    assert yaml_files.load(CONFIG.read_text())["route"]["group_by"] == ["alertname", "job", "gen_ai_agent_name"]


def test_inhibitions_name_alerts_that_exist() -> None:
    rules = yaml_files.load(CONFIG.read_text())["inhibit_rules"]
    matchers = [matcher for rule in rules for side in ("source", "target") for matcher in rule[f"{side}_matchers"]]
    named = {name for matcher in matchers for name in re.split(r"\W+", matcher.removeprefix("alertname")) if name}
    assert named
    assert named <= {rule["alert"] for rule in RULES}


@pytest.mark.slow
def test_amtool_accepts_the_configuration() -> None:
    ran = subprocess.run([program("amtool", TO_HAVE_IT), "check-config", CONFIG], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("severity=page team=agents", "pages"),
        ("severity=ticket team=agents", "tickets"),
        ("severity=none team=agents", "nobody"),
        ("severity=page team=audit", "audit"),
        ("severity=ticket team=audit", "audit"),
        ("severity=page team=security", "security"),
        ("severity=ticket team=security", "security"),
        ("severity=none team=agents alertname=DeadMansSwitch", "watcher"),
        ("alertname=SomebodyElses", "tickets"),
    ],
)
def test_an_alert_has_one_receiver(labels: str, receiver: str) -> None:
    command = [program("amtool", TO_HAVE_IT), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{receiver}\n"


@pytest.mark.slow
def test_every_alert_rule_has_the_receiver_of_its_team_or_severity(tmp_path: Path) -> None:
    with alertmanager(tmp_path, "http://127.0.0.1:9") as http:
        _fire(http, *({"alertname": rule["alert"], "job": rule["alert"], **rule["labels"]} for rule in RULES))
        firing = _firing(http)
    assert {name: [each["name"] for each in alert["receivers"]] for name, alert in firing.items()} == {
        rule["alert"]: [_receiver(rule)] for rule in RULES
    }


@pytest.mark.slow
def test_an_alert_inhibits_those_that_follow_from_it_for_the_same_service(tmp_path: Path) -> None:
    inhibited = {
        "AgentTelemetryAbsent": "TelemetryLoss",
        "TelemetryFailures": "TelemetryLoss",
        "ToolDown": "ModelErrors",
    }

    def are_inhibited() -> bool:
        return all(firing_here[name]["status"]["inhibitedBy"] for name in inhibited)

    with alertmanager(tmp_path, "http://127.0.0.1:9") as http:
        _fire(http, *({"alertname": name, "job": "here"} for name in (*inhibited, *inhibited.values(), "AuditGap")))
        firing_here: dict[str, dict[str, Any]] = {}
        wait_until(lambda: bool(firing_here.update(_firing(http)) or are_inhibited()))
        by_fingerprint = {alert["fingerprint"]: name for name, alert in firing_here.items()}
        for name, alert in firing_here.items():
            causes = [by_fingerprint[fingerprint] for fingerprint in alert["status"]["inhibitedBy"]]
            assert causes == ([inhibited[name]] if name in inhibited else []), name
        _fire(http, *({"alertname": name, "job": "elsewhere"} for name in inhibited))
        elsewhere = http.get("/api/v2/alerts", params={"filter": "job=elsewhere"}).json()
    assert len(elsewhere) == len(inhibited)
    assert [alert["status"]["state"] for alert in elsewhere if alert["status"]["inhibitedBy"]] == []


@pytest.mark.slow
def test_the_watcher_hears_at_once_of_the_alert_that_always_fires(tmp_path: Path) -> None:
    with receiving() as (url, notifications), alertmanager(tmp_path, url) as http:
        _fire(http, {"alertname": "DeadMansSwitch", "severity": "none", "team": "agents"})
        wait_until(lambda: bool(notifications))
    ((receiver, body),) = notifications
    assert receiver == "watcher"
    assert [alert["labels"]["alertname"] for alert in body["alerts"]] == ["DeadMansSwitch"]
