"""A trail that is left open when its process ends, and the telemetry it is mirrored to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.trails import KEY, bodies, intent
from tests.otel.collector import collecting
from tests.otel.processes import in_a_process
from traced_tools import TelemetryOptions
from traced_tools.audit import AuditTrail
from traced_tools.audit.records import RECORD_KINDS
from traced_tools.audit.writing import mirror
from traced_tools.observe import names

pytestmark = pytest.mark.slow  # each test starts processes

SCRIPT = """
import threading
from tests.audit.trails import intent, write
from traced_tools.audit import AuditTrail
trail = AuditTrail({path!r}, key=b"k" * 16)
configure(otlp={url!r})
trail.submit(intent("one"))
{then}
"""
REFUSE = """
trail.flush()
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
threading.Thread.start = refuse
"""


@pytest.mark.parametrize("then", ["", 'write(trail, intent("two"))', REFUSE], ids=["at once", "later", "no threads"])
def test_every_record_of_an_open_trail_is_mirrored_before_telemetry_ends(path: Path, then: str) -> None:
    with collecting() as collector:
        done = in_a_process(SCRIPT.format(path=str(path), url=collector.url, then=then))
    assert bodies(path)[-1]["final"] is True
    kinds = ["intent", "checkpoint"]
    assert collector.event_names() == {f"traced_tools.audit.{kind}" for kind in kinds}
    counted = {
        point.attributes[0].value.string_value
        for metric in collector.metrics()
        if metric.name == names.AUDIT_RECORDS.name
        for point in metric.sum.data_points
    }
    assert counted == {*kinds} <= {*RECORD_KINDS}
    assert done.stdout + done.stderr == ""


def test_a_trail_starts_the_mirror_before_it_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts no thread for it any more when the process ends with the first records."""
    order: list[object] = []
    monkeypatch.setattr(mirror, "begin", order.append)
    options = TelemetryOptions()
    trail = AuditTrail(path, key=KEY, checkpoints=lambda line: order.append(line["records"]), telemetry=options)
    trail.submit(intent())
    trail.close()
    assert order == [options, 1]


def test_a_process_that_cannot_start_threads_closes_its_open_trail_silently(path: Path) -> None:
    script = SCRIPT.format(path=str(path), url=None, then=REFUSE).replace("configure(otlp=None)", "")
    done = in_a_process(script)
    assert bodies(path)[-1]["final"] is True
    assert done.stdout + done.stderr == ""
