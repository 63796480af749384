"""An outcome of the real loop fires an alert, which reaches a webhook with what its reader needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.recorded_outcomes import recorded, recording
from tests.deploy import test_alertmanager
from tests.deploy.test_alertmanager import CONFIG, alertmanager, receiving
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_what_a_run_does_reaches_the_receiver_of_its_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = tmp_path / "alertmanager.yaml"
    at_once.write_text(CONFIG.read_text().replace("group_wait: 30s", "group_wait: 0s"))
    monkeypatch.setattr(test_alertmanager, "CONFIG", at_once)
    folders = [tmp_path / name for name in ("alertmanager", "prometheus")]
    for folder in folders:
        folder.mkdir()
    services = {"shop": recorded("unpriced_model"), "desk": recorded("audit_gap")}

    with receiving() as (url, notifications), alertmanager(folders[0], url) as http:
        with recording(folders[1], services, alertmanagers=[http.base_url.netloc.decode()]):
            until(lambda: {"tickets", "audit", "watcher"} <= {receiver for receiver, _ in notifications})
    alerts = {
        (receiver, alert["labels"]["alertname"]): alert for receiver, body in notifications for alert in body["alerts"]
    }

    ticket: dict[str, Any] = alerts["tickets", "UnpricedTokens"]
    assert (ticket["status"], ticket["labels"]["job"]) == ("firing", "shop")
    assert ticket["annotations"]["summary"] == "ollama demo-local: the price table lacks the model"
    assert alerts["audit", "AuditGap"]["annotations"]["summary"] == "desk: the audit trail has a gap"
    assert ("watcher", "DeadMansSwitch") in alerts
    for alert in alerts.values():
        assert alert["annotations"].keys() == {"summary", "description", "dashboard_url", "runbook_url"}
        assert not [text for text in alert["annotations"].values() if "{{" in text or "error" in text.lower()]
