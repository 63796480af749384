"""Runs Phoenix, in its own environment, without its gRPC port: it opens that to all, whatever PHOENIX_HOST says."""

from __future__ import annotations

from typing import Any

from phoenix.server.grpc_server import GrpcServer  # type: ignore[import-not-found, unused-ignore]
from phoenix.server.main import main  # type: ignore[import-not-found, unused-ignore]


async def listen_nowhere(server: Any) -> None:
    """Take the place of what opens the port."""


GrpcServer.__aenter__ = listen_nowhere
main()
