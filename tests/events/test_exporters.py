"""Runs with all exporters at once: each exports the same events, with content only if it is captured."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from traced_tools import ChatClient, ToolCall
from traced_tools.events import (
    ConsoleEventExporter,
    EventExporter,
    EventFeed,
    JsonLinesExporter,
    OtlpEventExporter,
    Subscription,
    WebhookExporter,
)
from traced_tools.events.observer import ObserverAdvisor
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel


class Observed:
    """What each exporter has made of a run."""

    def __init__(self, folder: Path, mode: str, capture: str) -> None:
        telemetry, stream, feed = Telemetry(capture=capture), io.StringIO(), EventFeed()
        with ReplayServer(lambda request: Reply(status=204)) as server, feed.subscribe() as subscription:
            exporters = [
                JsonLinesExporter(folder / "events.jsonl"),
                WebhookExporter(f"{server.url}/hook", dead_letter=folder / "dead.jsonl"),
                ConsoleEventExporter(stream),
                feed,
                OtlpEventExporter(telemetry.logger_provider),
            ]
            with ObserverAdvisor(exporters, deltas=True) as observer:
                _run(telemetry, observer, mode)
                assert observer.flush()
            self.fed = [each.model_dump(mode="json", exclude_none=True) for each in _rest(subscription)]
        self.lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        self.dead = (folder / "dead.jsonl").read_text()
        self.posted = [each["data"] for request in server.requests for each in request.json()]
        self.printed = stream.getvalue()
        self.logged = [
            json.loads(json.dumps(record.log_record.body, default=dict))
            for record in telemetry.records
            if record.log_record.event_name == names.EXPORTED_EVENT.name
        ]

    @property
    def all(self) -> str:
        return everything([self.lines, self.posted, [self.printed], self.fed, self.logged, [self.dead]])


def _rest(subscription: Subscription) -> list[object]:
    return [*subscription]  # which ends, since the observer has closed the feed


def _run(telemetry: Telemetry, observer: ObserverAdvisor, mode: str) -> None:
    def look_up(name: str) -> str:
        """Look a name up."""
        return f"{name} {MARKER}"

    calls = [ToolCall("look_up", {"name": MARKER}), ToolCall(f"made_up_{MARKER}", {"x": MARKER})]
    model = ScriptedChatModel([[f"Let me see, {MARKER}.", *calls], f"It is {MARKER}."])
    client = ChatClient(model, tools=[look_up], advisors=[observer], telemetry=telemetry.options)
    run(mode, client.prompt(MARKER))


@pytest.mark.parametrize("mode", MODES)
def test_all_exporters_export_the_same_events(tmp_path: Path, mode: str) -> None:
    observed = Observed(tmp_path, mode, "NO_CONTENT")
    assert observed.fed[0]["type"] == "run_started"
    assert observed.fed[-1]["type"] == "run_finished"
    assert any(each["type"] == "text_delta" for each in observed.fed) is (mode in ("stream", "astream"))
    assert observed.lines == observed.posted == observed.logged == observed.fed
    assert observed.printed.count("\n") == len(observed.fed)
    assert observed.dead == ""
    assert not [each for each in threading.enumerate() if each.name.endswith(("jsonl", "webhook", "console", "feed"))]


@pytest.mark.parametrize("mode", MODES)
def test_no_exporter_exports_content_that_is_not_captured(tmp_path: Path, mode: str) -> None:
    assert MARKER not in Observed(tmp_path, mode, "NO_CONTENT").all


@pytest.mark.parametrize("mode", MODES)
def test_every_exporter_exports_captured_content(tmp_path: Path, mode: str) -> None:
    observed = Observed(tmp_path, mode, "EVENT_ONLY")
    for received in (observed.lines, observed.posted, observed.fed, observed.logged):
        by_type = {each["type"]: each for each in received if each.get("tool") != names.UNKNOWN_TOOL}
        for kind, field in (
            ("tool_intended", "arguments"),
            ("tool_finished", "result"),
            ("run_started", "input_messages"),
        ):
            assert MARKER in by_type[kind][field]
    assert observed.printed.count(MARKER) >= 2


def test_the_repr_of_an_exporter_has_its_class_and_name_and_no_address(tmp_path: Path) -> None:
    class Mine(EventExporter):
        """One that has no name yet."""

    mine = Mine()
    assert repr(mine) == "<Mine None>"
    mine.name = "queue"
    exporters = [
        mine,
        JsonLinesExporter(tmp_path / f"{MARKER}.jsonl"),
        WebhookExporter(f"https://{MARKER}.example/{MARKER}", secret=MARKER.encode() * 5, headers={"X-Key": MARKER}),
    ]
    assert [repr(each) for each in exporters] == [
        "<Mine 'queue'>",
        "<JsonLinesExporter 'jsonl'>",
        "<WebhookExporter 'webhook'>",
    ]
    for each in exporters:
        each.close()


def test_refused_events_are_in_the_dead_letter_file_and_retryable_ones_are_sent_again(tmp_path: Path) -> None:
    telemetry, dead = Telemetry(), tmp_path / "dead.jsonl"
    busy, refusing = Reply(status=503, headers={"Retry-After": "0"}), Reply(status=400)
    for replies, posted, kept in (([busy, Reply(status=204)], 2, False), ([refusing], 1, True)):
        with ReplayServer(replies) as server:
            exporter = WebhookExporter(server.url, dead_letter=dead)
            exporter.interval = 3600.0  # so that all is one batch
            with ObserverAdvisor([exporter]) as observer:
                _run(telemetry, observer, "call")
        assert len({request.headers["webhook-id"] for request in server.requests}) == 1
        assert len(server.requests) == posted
        lines = [json.loads(line) for line in dead.read_text().splitlines()]
        assert lines == ([each["data"] for each in server.requests[0].json()] if kept else [])
