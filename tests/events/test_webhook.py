"""The webhook exporter: its requests, their signature, and secrets that stay out of errors and logs."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import logging
import os
import re
import ssl
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import given

from tests.events.made import START, batch, one_of_each, started, texts
from tests.events.posting import TAKEN, posting, text_with_causes
from tests.markers import MARKER
from tests.waiting import PATIENCE
from traced_tools.errors import ConfigurationError
from traced_tools.events import ExportFailed, WebhookExporter
from traced_tools.events.exporters.webhook import to_cloud_event
from traced_tools.testing import Fault, ReplayServer, Reply
from traced_tools.testing.reply import Piece
from traced_tools.testing.server import Received

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
URI_REFERENCE = r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+"  # RFC 3986, 2: the characters it may have
CLOUD_EVENT = {
    "type": "object",
    "required": ["id", "source", "specversion", "type"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "pattern": f"^{URI_REFERENCE}$"},
        "specversion": {"const": "1.0"},
        "type": {"type": "string", "pattern": r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+$"},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"},
        "datacontenttype": {"const": "application/json"},
        "data": {"type": "object"},
    },
    "propertyNames": {"pattern": "^[a-z0-9]{1,20}$"},
}
"""What CloudEvents 1.0.2 demands of JSON, sections 3 of the core and of the JSON format."""


def verified(request: Received, key: bytes = KEY) -> Any:
    """The events of a request, after checking its signature as a receiver would."""
    headers = request.headers
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), request.body])
    expected = hmac.new(key, signed, hashlib.sha256).digest()
    version, _, signature = headers["webhook-signature"].partition(",")
    assert version == "v1"
    assert hmac.compare_digest(base64.b64decode(signature, validate=True), expected)
    return json.loads(request.body)


# What is sent.


def test_a_batch_is_one_post_of_cloudevents() -> None:
    with posting(TAKEN) as (exporter, server):
        exporter.export(one_of_each())
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/hook")
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    sent = request.json()
    for each in sent:
        jsonschema.validate(each, CLOUD_EVENT)
    assert [each["data"] for each in sent] == [
        event.model_dump(mode="json", exclude_none=True) for event in one_of_each()
    ]
    assert {key: value for key, value in sent[-1].items() if key != "data"} == {
        "specversion": "1.0",
        "id": one_of_each()[-1].id,
        "source": "/traced_tools/agents/travel",
        "type": "dev.traced_tools.run_finished",
        "subject": one_of_each()[-1].run_id,
        "time": "2025-01-31T23:59:59.136456+00:00",
        "datacontenttype": "application/json",
    }


@given(texts.filter(bool))
def test_hostile_text_stays_a_cloudevent(text: str) -> None:
    for event in one_of_each(text):
        made = json.loads(to_cloud_event(event))
        jsonschema.validate(made, CLOUD_EVENT)
        assert made["data"]["agent"] == event.agent


def test_a_time_in_another_zone_is_printed_in_utc() -> None:
    elsewhere = START.astimezone(tz=datetime.now().astimezone().tzinfo)
    assert json.loads(to_cloud_event(started(time=elsewhere)))["time"] == "2025-01-31T23:59:59.123456+00:00"


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_"), KEY])
def test_a_receiver_can_verify_the_signature_of_a_batch(secret: str | bytes) -> None:
    with posting(TAKEN, secret=secret) as (exporter, server):
        exporter.export(batch(2))
    assert [each["data"]["sequence"] for each in verified(server.requests[0])] == [1, 2]
    with pytest.raises(AssertionError):
        verified(server.requests[0], b"another key")


def test_the_signature_matches_the_example_of_standard_webhooks(monkeypatch: pytest.MonkeyPatch) -> None:
    from traced_tools.events.exporters import webhook

    monkeypatch.setattr(time, "time", lambda: 1614265330.7)
    key = webhook._key("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = webhook._signed("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', key)
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_secret_there_is_no_signature_and_still_an_id_and_a_time() -> None:
    with posting(TAKEN) as (exporter, server):
        exporter.export(batch(1))
    headers = server.requests[0].headers
    assert "webhook-signature" not in headers
    assert re.fullmatch(r"msg_[0-9a-f]{32}", headers["webhook-id"])
    assert headers["webhook-timestamp"].isdigit()


def test_all_attempts_of_a_batch_share_an_id_that_no_other_batch_has() -> None:
    with posting(Reply(status=503), TAKEN, TAKEN, TAKEN, secret=SECRET) as (exporter, server):
        with pytest.raises(ExportFailed):
            exporter.export(batch(3))
        for events in (batch(3), batch(2), batch(2, 2)):
            exporter.export(events)
    found = [request.headers["webhook-id"] for request in server.requests]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    for request in server.requests:
        verified(request)


def test_batches_share_a_connection() -> None:
    with posting(TAKEN, Reply(body=b"x" * 1000), TAKEN) as (exporter, server):
        connect, connections = server._server.process_request, []
        server._server.process_request = lambda *each: (connections.append(each), connect(*each))
        for number in (1, 2, 3):
            exporter.export(batch(1, number))
    assert (len(connections), len(server.requests)) == (1, 3)


def test_passed_headers_override_url_credentials_but_not_the_exporters_own_headers() -> None:
    own = {"AUTHORIZATION": "Bearer mine", "X-Team": "travel", "Webhook-Id": "mine", "Content-Type": "text/plain"}
    with ReplayServer([TAKEN]) as server:
        exporter = WebhookExporter(server.url.replace("//", "//ada:secret@"), headers=own)
        exporter.export(batch(1))
        exporter.close()
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == ("Bearer mine", "travel")
    assert headers["webhook-id"] != "mine"
    assert headers["content-type"] == "application/cloudevents-batch+json"


# Secrets.


@pytest.mark.parametrize("reply", [Reply(status=500), Reply(status=400), Fault.CUT, TAKEN], ids=str)
def test_keys_in_an_address_are_sent_and_are_in_no_error_and_no_log(
    reply: Reply | Piece, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ReplayServer([reply]) as server:
        url = f"{server.url}/services/{MARKER}1?token={MARKER}2&x=%20y#{MARKER}5".replace(
            "//", f"//ada:{MARKER}3%40@", 1
        )
        exporter = WebhookExporter(url, secret=f"{MARKER}4".encode() * 3, headers={"X-Key": MARKER})
        said = repr(exporter)
        if reply is TAKEN:
            exporter.export(batch(1))
        else:
            with pytest.raises(ExportFailed) as raised:
                exporter.export(batch(1))
            said += text_with_causes(raised.value)
        exporter.close()
    (request,) = server.requests
    assert request.path == f"/services/{MARKER}1?token={MARKER}2&x=%20y"
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode() == f"ada:{MARKER}3@"
    assert reply is Fault.CUT or [message for message in caplog.messages if message.startswith("HTTP Request: POST")]
    assert MARKER not in said + caplog.text


@pytest.mark.parametrize("secret", ["", "short", b"short", "whsec_", f"{MARKER}!", "ü" * 40, f"whsec_{MARKER}"])
def test_an_invalid_secret_is_refused_and_not_quoted(secret: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="secret must be at least 24 bytes") as raised:
        WebhookExporter("http://127.0.0.1", secret=secret)
    assert MARKER not in text_with_causes(raised.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1", "ftp://h/", "http://", f"http://h:{MARKER}/", f"http://a..{MARKER}/"])
def test_an_invalid_url_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError, match="url must be an http:// or https:// URL") as raised:
        WebhookExporter(url)
    assert MARKER not in text_with_causes(raised.value)


@pytest.mark.parametrize(
    "headers", [{"X-Key": f"{MARKER}\n"}, {"X-Key": f"{MARKER}ü"}, {"": MARKER}, {"X Key": MARKER}]
)
def test_a_header_that_cannot_be_sent_is_refused_and_its_value_not_quoted(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^invalid ") as raised:
        WebhookExporter("http://127.0.0.1", headers=headers)
    assert MARKER not in text_with_causes(raised.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": 0}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"client": 1}, TypeError),
        ({"secret": 1}, TypeError),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"timeout|client|secret"):
        WebhookExporter("http://127.0.0.1", **options)


# Connections.


def test_a_passed_httpx_client_is_used_and_not_closed() -> None:
    seen: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(204)

    with httpx.Client(transport=httpx.MockTransport(answer)) as own:
        exporter = WebhookExporter("https://example.com/hook?token=1", client=own)
        exporter.export(batch(1))
        exporter.close()
        assert not own.is_closed
    assert [(url.host, url.path, url.query) for url in seen] == [("example.com", "/hook", b"token=1")]


def test_an_untrusted_certificate_is_a_connection_failure() -> None:
    trustme = pytest.importorskip("trustme", reason="needs trustme (the extra dev)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with ReplayServer([TAKEN]) as server:
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        exporter = WebhookExporter(server.url.replace("http://127.0.0.1", "https://localhost"), timeout=PATIENCE)
        with pytest.raises(ExportFailed, match=r"https://localhost:\d+ was unreachable \(\w+\)"):
            exporter.export(batch(1))
        exporter.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connections() -> None:
    code = """
import os, sys
from tests.events.made import batch
from traced_tools.events import WebhookExporter
exporter = WebhookExporter(sys.argv[1])
exporter.export(batch(1))
before = exporter._connected()
child = os.fork()
if child == 0:
    if exporter._connected() is before:
        os._exit(3)
    exporter.export(batch(1, 2))
    exporter.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
exporter.export(batch(1, 3))
exporter.close()
"""
    with ReplayServer([TAKEN] * 3) as server:
        subprocess.run([sys.executable, "-c", code, server.url], cwd=ROOT, check=True, timeout=10 * PATIENCE)
    assert [request.json()[0]["data"]["sequence"] for request in server.requests] == [1, 2, 3]


def test_nothing_is_left_open() -> None:
    with posting(TAKEN) as (exporter, _):
        exporter.export(batch(1))
    del exporter
    gc.collect()  # what was left open would be a warning, and warnings are errors
