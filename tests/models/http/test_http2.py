"""HTTP/2 with a real server: TLS on loopback, with a negotiated protocol."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import modes
from tests.modes import ALL_MODES
from tests.waiting import PATIENCE
from traced_tools import ChatClient
from traced_tools.models import OpenAIChatModel

asgi = pytest.importorskip("hypercorn.asyncio", reason="needs hypercorn and trustme (the extra dev)")
config = pytest.importorskip("hypercorn.config")
trustme = pytest.importorskip("trustme")

SEEN: list[str] = []


async def provider(scope: Any, receive: Any, send: Any) -> None:
    """Answer in words whole or in chunks, as asked, and note the protocol."""
    if scope["type"] == "lifespan":
        return
    SEEN.append(scope["http_version"])
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    streamed = json.loads(body).get("stream")
    said = {"delta" if streamed else "message": {"content": "fine"}, "finish_reason": "stop"}
    text = json.dumps({"choices": [said]})
    kind = b"text/event-stream" if streamed else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    answer = f"data: {text}\n\ndata: [DONE]\n\n" if streamed else text
    await send({"type": "http.response.body", "body": answer.encode()})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server that speaks HTTP/2: its address, and the certificate to trust."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    settings = config.Config()
    settings.bind = ["127.0.0.1:0"]
    settings.certfile = settings.keyfile = str(folder / "server.pem")
    settings.accesslog = settings.errorlog = None
    (listening,) = settings.create_sockets().secure_sockets
    listening.listen()  # so that a client that is early waits
    port = listening.getsockname()[1]
    settings.bind = [f"fd://{listening.detach()}"]
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    serving = asgi.serve(provider, settings, shutdown_trigger=stop.wait)
    thread = threading.Thread(target=lambda: loop.run_until_complete(serving), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{port}/v1", folder / "ca.pem"
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE)
    loop.close()


@pytest.mark.parametrize(("http2", "version"), [(True, "2"), (False, "1.1")])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_http2_is_spoken_when_asked_for(
    mode: str, http2: bool, version: str, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, certificate = server
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    model = OpenAIChatModel("m", base_url=address, http2=http2, retries=0)
    assert modes.run(mode, ChatClient(model).prompt("hi"), model).content == "fine"
    assert SEEN[-1] == version
