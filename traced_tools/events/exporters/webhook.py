"""An event exporter that posts CloudEvents to a web server, signed according to Standard Webhooks.

- https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md, section 4
- https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import hashlib
import hmac
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC
from typing import Final
from urllib.parse import quote

import httpx

from traced_tools.core.checks import expect, expect_positive
from traced_tools.core.fork import on_fork
from traced_tools.errors import ConfigurationError
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.events.exporters.event_file import event_json
from traced_tools.events.exporters.jsonl import errno_name, open_event_file
from traced_tools.observe.typed_events.types import Event

_LOG = logging.getLogger(__name__)
_FAILURES: Final = (httpx.HTTPError, httpx.StreamError, ssl.SSLError)
_RETRYABLE: Final = frozenset({408, 429})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PREFIX: Final = "whsec_"
_SHORTEST_KEY: Final = 24
_MOST_READ: Final = 65_536
"""Bytes of a response that are read so that its connection can be reused."""


class WebhookExporter(EventExporter):
    """Posts batches of events to a web server as CloudEvents 1.0 in JSON batch format.

    A CloudEvent's `type` is `dev.traced_tools.` followed by the event's type, its `source` is `/traced_tools/agents/`
    followed by the agent's name, its `subject` is the run id, and its `data` is the JSON that `JsonLinesExporter`
    writes.

    Each request has the headers of Standard Webhooks: `webhook-id`, which is the same for all attempts of a batch,
    `webhook-timestamp` and, with a secret, `webhook-signature`: `v1,` followed by the Base64 of the HMAC-SHA-256 of
    `{id}.{timestamp}.{body}`. A 2xx status accepts the batch. Connection failures and the statuses 408, 429 and 5xx are
    retried, after the time in `Retry-After` if there is one. Other statuses are not retried, and redirects are not
    followed.

    Args:
        url: an http:// or https:// URL. A user name and password in it are sent as an Authorization header. Errors and
            httpx's log contain only the host, because paths and queries may contain keys.
        secret: the signing key of at least 24 bytes: as bytes, or in Base64, with or without the prefix `whsec_`.
        headers: headers to send with each request, such as Authorization.
        timeout: seconds to wait for a connection, and for each part of a response.
        dead_letter: the path of a file for undeliverable events, in the format of `JsonLinesExporter`. None drops them.
            They are counted as dropped in both cases.
        client: your own `httpx.Client`, for example with proxies or certificates. The exporter does not close it.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    name = "webhook"
    max_batch = 100

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 15.0,
        dead_letter: str | os.PathLike[str] | None = None,
        client: httpx.Client | None = None,
    ) -> None:
        expect_positive("timeout", timeout)
        expect("client", client, (httpx.Client, type(None)), "an httpx.Client or None")
        address = _checked_url(url)
        self._url = address.copy_with(userinfo=b"")
        self._origin = f"{address.scheme}://{address.netloc.decode()}"
        self._headers = _checked_headers(address, headers or {})
        self._key = None if secret is None else _key(secret)
        self._timeout = timeout
        self._own_client = client
        self._client: httpx.Client | None = None
        self._inherited: list[object] = []
        self._dead_letter = None if dead_letter is None else open_event_file("dead_letter", dead_letter)
        on_fork(self._leave_connections)

    def export(self, events: Sequence[Event]) -> None:
        """Post events; raises `ExportFailed`."""
        failure = None
        try:
            response = self._post(events)
        except _FAILURES as error:
            failure = ExportFailed(f"{self._origin} was unreachable ({type(error).__name__})")
        if failure is not None:  # outside the `except` block: httpx's errors reference the request
            raise failure
        if not response.is_success:
            raise self._refusal(response)

    def on_undeliverable(self, events: Sequence[Event]) -> None:
        """Write undeliverable events to the dead-letter file, if there is one."""
        if self._dead_letter is None:
            return
        try:
            self._dead_letter.append(events)
        except OSError as error:
            problem = errno_name(error)
            _LOG.error("%d events for %s and its dead-letter file are lost (%s)", len(events), self._origin, problem)

    def close(self) -> None:
        """Close the dead-letter file and the connections, except those of a client that was passed."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._dead_letter is not None:
            self._dead_letter.close()

    def _post(self, events: Sequence[Event]) -> httpx.Response:
        """Post events and return the response, which is closed."""
        client = self._own_client or self._connected()
        body = f"[{','.join(map(to_cloud_event, events))}]".encode()
        headers = httpx.Headers(self._headers)
        headers.update(_signed(_batch_id(events), body, self._key))
        request = client.build_request("POST", self._url, content=body, headers=headers, timeout=self._timeout)
        request.url = _Address(request.url)
        response = client.send(request, stream=True, follow_redirects=False)
        with closing(response), suppress(*_FAILURES):  # only the status matters
            read_bytes = 0
            for piece in response.iter_raw():
                read_bytes += len(piece)
                if read_bytes > _MOST_READ:
                    break
        return response

    def _connected(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client()
        return self._client

    def _leave_connections(self) -> None:
        self._inherited.append(self._client)  # referenced, because its finalizer would close the parent's connections
        self._client = None

    def _refusal(self, response: httpx.Response) -> ExportFailed:
        status = response.status_code
        retryable = status in _RETRYABLE or status >= 500
        hint = "; redirects are not followed: check url=" if 300 <= status < 400 else ""
        wait = _seconds(response.headers.get("retry-after")) if retryable else None
        problem = f"{self._origin} refused events (status {status}){hint}"
        return ExportFailed(problem, retryable=retryable, retry_after=wait)


class _Address(httpx.URL):
    """A URL whose text contains only scheme and host, because httpx logs the URL of each request."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode()}/..."

    def __repr__(self) -> str:
        return f"<{self}>"


def to_cloud_event(event: Event) -> str:
    """Return an event as a CloudEvent in JSON."""
    attributes = {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/traced_tools/agents/{quote(event.agent, safe='')}",
        "type": f"dev.traced_tools.{event.type}",
        "subject": event.run_id,
        "time": event.time.astimezone(UTC).isoformat(),
        "datacontenttype": "application/json",
    }
    return f'{json.dumps(attributes)[:-1]}, "data": {event_json(event)}}}'


def _batch_id(events: Sequence[Event]) -> str:
    """Return an id that is the same for the same events."""
    return f"msg_{hashlib.sha256(' '.join(event.id for event in events).encode()).hexdigest()[:32]}"


def _signed(batch_id: str, body: bytes, key: bytes | None) -> dict[str, str]:
    """Return the headers for content type, id, time and signature."""
    now = str(int(time.time()))
    headers = {
        "content-type": "application/cloudevents-batch+json",
        "webhook-id": batch_id,
        "webhook-timestamp": now,
    }
    if key is not None:
        digest = hmac.digest(key, f"{batch_id}.{now}.".encode() + body, "sha256")
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def _key(secret: str | bytes) -> bytes:
    """Return the signing key as bytes; raises `ConfigurationError`, which does not quote the secret."""
    expect("secret", secret, (str, bytes), "bytes, or a str in Base64")
    key = secret if isinstance(secret, bytes) else b""
    if isinstance(secret, str):
        with suppress(binascii.Error, ValueError):
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    if len(key) < _SHORTEST_KEY:
        raise ConfigurationError(
            f"secret must be at least {_SHORTEST_KEY} bytes: as bytes, or in Base64, with or without {_PREFIX}"
        )
    return key


def _checked_url(url: str) -> httpx.URL:
    expect("url", url, (str, httpx.URL), "an address")
    try:
        address = httpx.URL(url)
        address.raw_host.decode().encode("idna")  # an empty or too long label would fail each request
    except (httpx.InvalidURL, UnicodeError):
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host or (address.port or 0) >= 2**16:
        raise ConfigurationError("url must be an http:// or https:// URL, such as https://example.com/events")
    return address


def _checked_headers(address: httpx.URL, own_headers: Mapping[str, str]) -> httpx.Headers:
    """Return the headers of each request; raises `ConfigurationError`, which quotes no value."""
    for name, value in own_headers.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise ConfigurationError(f"invalid header name {name!r} (see RFC 9110, section 5.1)")
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise ConfigurationError(f"invalid value of the header {name}: it must be printable ASCII text")
    headers = httpx.Headers({"accept-encoding": "identity"})
    if address.userinfo:
        credentials = f"{address.username}:{address.password}"
        headers["authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    headers.update(own_headers)
    return headers


def _seconds(value: str | None) -> float | None:
    """Return the seconds to wait that `Retry-After` has, as a number or as a date (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}", value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
