"""A web server that receives events, and helpers that inspect errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from traced_tools.events import WebhookExporter
from traced_tools.testing import ReplayServer, Reply
from traced_tools.testing.reply import Piece

TAKEN = Reply(status=204)


@contextmanager
def posting(*replies: Reply | Piece, path: str = "/hook", **options: Any) -> Iterator[tuple[WebhookExporter, Any]]:
    """An exporter, and the server it posts to."""
    with ReplayServer(replies) as server:
        exporter = WebhookExporter(f"{server.url}{path}", **options)
        yield exporter, server
        exporter.close()


def text_with_causes(error: BaseException) -> str:
    """The complete text of an error and its causes."""
    return f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
