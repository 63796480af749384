"""The boards, each in a module of its own."""

from __future__ import annotations

from typing import Final

from dashboards.boards import audit, conversation, home, loops, tools

BOARDS: Final = (home.BOARD, loops.BOARD, tools.BOARD, audit.BOARD, conversation.BOARD)
"""All boards, in the order of their menu."""
