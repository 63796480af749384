"""Durable runs with everything that the boards show of them."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from threading import Event, Thread

from tests.waiting import PATIENCE
from traced_tools import ChatClient, TelemetryOptions, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.errors import RunTaken
from traced_tools.testing import ScriptedChatModel

_KEYS = count()


def drive_runs(store: PendingStore, telemetry: TelemetryOptions | None = None) -> None:
    """Keep a run that nobody drives, and a run that a second process takes over while a tool of the first one runs."""

    @tool
    def charge() -> str:
        """Charge a card."""
        if other_lives:
            other_lives.pop().start()
            has_taken_over.wait(PATIENCE)
        return "charged"

    def take_over() -> None:
        desk.replace(model=ScriptedChatModel(["The card was charged, perhaps."])).drive(key)
        has_taken_over.set()

    key, has_taken_over, other_lives = f"order-{next(_KEYS)}", Event(), [Thread(target=take_over)]
    model = ScriptedChatModel([ToolCall("charge", id="c1"), "never"])
    desk = ChatClient(model, name="support_desk", tools=[charge], pending_store=store, telemetry=telemetry)
    desk.submit("Charge the card.", key=f"{key}-later")
    desk.submit("Charge the card.", key=key)
    with suppress(RunTaken):
        desk.drive(key)


def drive_runs_until(is_over: Event, store: PendingStore) -> None:
    """Drive such runs once a second."""
    while not is_over.wait(1):
        drive_runs(store)
