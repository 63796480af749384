"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import audit, conversation, cost, home, loops, models, slo, telemetry, tools, versions

BOARDS: Final = (
    home.BOARD,
    loops.BOARD,
    versions.BOARD,
    tools.BOARD,
    models.BOARD,
    cost.BOARD,
    audit.BOARD,
    slo.BOARD,
    telemetry.BOARD,
    conversation.BOARD,
)
"""All boards, in the order of their menu."""
