"""A server-sent events endpoint on top of the feed, with a real server and real clients."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import islice

import httpx
import pytest
from httpx_sse import connect_sse

from tests.events.made import batch
from tests.waiting import PATIENCE, in_time
from traced_tools.events import EventFeed, Subscription
from traced_tools.observe import Event, ToolStarted

starlette = pytest.importorskip("starlette", reason="needs starlette and uvicorn (the extra dev)")
uvicorn = pytest.importorskip("uvicorn", reason="needs starlette and uvicorn (the extra dev)")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402


def app_of(feed: EventFeed) -> Starlette:
    # What the docs show begins here.
    async def events(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            async with feed.subscribe(run_id=request.query_params.get("run_id")) as subscription:
                async for event in subscription:
                    yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"

        return StreamingResponse(body(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/events", events)])
    # And it ends here.
    return app


class Watched(EventFeed):
    """A feed that signals each subscription and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.left = threading.Semaphore(0), threading.Semaphore(0)

    def subscribe(self, *, run_id: str | None = None, capacity: int = 1024) -> Subscription:
        subscription = super().subscribe(run_id=run_id, capacity=capacity)
        self.came.release()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        super().forget(subscription)
        self.left.release()


@contextmanager
def serving(feed: EventFeed) -> Iterator[str]:
    config = uvicorn.Config(app_of(feed), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        feed.close()  # or those who listen would keep the server
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not end"


def test_a_client_gets_each_event_as_it_happens_and_an_end() -> None:
    feed = Watched()
    got: list[Event] = []
    first = threading.Event()

    def listen(url: str) -> None:
        with httpx.Client(timeout=PATIENCE) as client, connect_sse(client, "GET", f"{url}/events") as source:
            for sse in source.iter_sse():
                event = ToolStarted.model_validate_json(sse.data)
                assert (sse.id, sse.event) == (event.id, event.type)
                got.append(event)
                first.set()

    with serving(feed) as url:
        thread = threading.Thread(target=listen, args=(url,), daemon=True)
        thread.start()
        assert feed.came.acquire(timeout=PATIENCE)
        feed.export(batch(1))
        assert first.wait(PATIENCE)  # before there is another one
        feed.export(batch(2, 2))
    thread.join(PATIENCE)
    assert got == batch(3)


def test_a_client_of_one_run_gets_that_run() -> None:
    feed = Watched()
    with serving(feed) as url, httpx.Client(timeout=PATIENCE) as client:
        with connect_sse(client, "GET", f"{url}/events", params={"run_id": "b"}) as source:
            assert feed.came.acquire(timeout=PATIENCE)
            feed.export([*batch(1, 1, run_id="a"), *batch(1, 2, run_id="b")])
            assert next(source.iter_sse()).id == batch(1, 2)[0].id


def test_a_client_that_disconnects_is_unsubscribed_without_affecting_others() -> None:
    feed = Watched()
    with serving(feed) as url, httpx.Client(timeout=PATIENCE) as stays, httpx.Client(timeout=PATIENCE) as goes:
        with connect_sse(stays, "GET", f"{url}/events") as source:
            with connect_sse(goes, "GET", f"{url}/events") as other:
                assert feed.came.acquire(timeout=PATIENCE)
                assert feed.came.acquire(timeout=PATIENCE)
                feed.export(batch(1))
                assert in_time(lambda: next(other.iter_sse())).id == batch(1)[0].id
            assert feed.left.acquire(timeout=PATIENCE)
            assert len(feed._current()) == 1
            feed.export(batch(1, 2))
            assert [sse.id for sse in islice(source.iter_sse(), 2)] == [event.id for event in batch(2)]
