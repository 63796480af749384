"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import cost, home, loops, models, tools

BOARDS: Final = (home.BOARD, loops.BOARD, tools.BOARD, models.BOARD, cost.BOARD)
"""All boards, in the order of their menu."""
