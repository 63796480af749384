"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import cost, home, models, telemetry

BOARDS: Final = (home.BOARD, models.BOARD, cost.BOARD, telemetry.BOARD)
"""All boards, in the order of their menu."""
