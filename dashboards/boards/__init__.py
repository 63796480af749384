"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import home

BOARDS: Final = (home.BOARD,)
"""All boards, in the order of their menu."""
