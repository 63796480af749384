"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import home, tools

BOARDS: Final = (home.BOARD, tools.BOARD)
"""All boards, in the order of their menu."""
