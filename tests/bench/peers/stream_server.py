"""Answers each request with a streamed answer of OpenAI's API, an event at a time: `stream_server CHUNKS`."""

from __future__ import annotations

import asyncio
import sys

from tests.bench.openai_events import openai_events
from tests.bench.peers.servers import end_with_parent
from tests.bench.peers.streams import TEXT
from tests.bench.peers.worker import LOOPBACK

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MOST_CONNECTIONS = 1_000


async def main(chunks: int) -> None:
    """Serve until the process ends, and print the port."""
    pieces = [b"%x\r\n%s\r\n" % (len(event), event) for event in openai_events({"content": TEXT}, chunks)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(_length(head))
                writer.write(HEAD)
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)  # the other streams get their next piece
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, backlog=MOST_CONNECTIONS)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _length(head: bytes) -> int:
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main(int(sys.argv[1])))
