"""The demo's agent: a trip planner with a flaky tool and a tool that a policy refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import date

from traced_tools import (
    Advisor,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Policy,
    PolicyAdvisor,
    Rule,
    SystemMessage,
    tool,
)
from traced_tools.models import ChatModel
from traced_tools.observe.run_telemetry import TelemetryOptions

QUESTION = "Plan a weekend in Lisbon for two from Oslo, 12 to 14 June 2026, for at most 900 euros, and book the hotel."
POLICY = Policy(
    [Rule("costs-money", tool="book_*", then="deny", reason="bookings are made by the traveller")], default="allow"
)
SYSTEM = "You plan trips. Look things up before you answer, several at once where you can. Be brief."


class TripTools:
    """The tools of the trip planner."""

    def __init__(self) -> None:
        self._hotel_requests = 0

    @tool
    async def get_weather(self, city: str, day: date) -> str:
        """Get the weather forecast for a city on one day."""
        await asyncio.sleep(0.06)
        return f"{city}, {day:%d %B}: sunny, 26 degrees, light wind from the river"

    @tool
    def find_flights(self, origin: str, destination: str, out: date, back: date) -> list[dict[str, object]]:
        """Find return flights, cheapest first; prices in euros per person."""
        time.sleep(0.11)
        return [
            {
                "carrier": "TAP",
                "from": origin,
                "to": destination,
                "out": out.isoformat(),
                "back": back.isoformat(),
                "price": 214,
            },
            {
                "carrier": "SAS",
                "from": origin,
                "to": destination,
                "out": out.isoformat(),
                "back": back.isoformat(),
                "price": 251,
            },
        ]

    @tool
    def find_hotels(self, city: str, nights: int) -> list[dict[str, object]]:
        """Find hotels for two, cheapest first; prices in euros for the whole stay."""
        time.sleep(0.04)
        self._hotel_requests += 1
        if self._hotel_requests == 1:
            raise TimeoutError("the hotel search did not answer; try again")
        return [
            {"hotel": "Casa do Rio", "city": city, "price": 118 * nights},
            {"hotel": "Alfama Terrace", "price": 164 * nights},
        ]

    @tool
    def book_hotel(self, hotel: str, nights: int) -> str:
        """Book a hotel room, at the traveller's expense."""
        return f"booked {hotel} for {nights} nights"


class TravellerProfile(Advisor):
    """Adds the traveller's profile to the request; outside the loop, so once per run."""

    name, order = "profile", 200

    async def advise(
        self, request: ChatClientRequest, call_next: Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]
    ) -> ChatClientResponse:
        """Add the profile before the conversation."""
        profile = SystemMessage("The traveller likes quiet hotels and no early flights.")
        return await call_next(request.replace(messages=(profile, *request.messages)))


class Observer(Advisor):
    """Counts the iterations; inside the loop, so once per iteration."""

    name, order = "observer", 400

    def __init__(self) -> None:
        self.iterations = 0

    async def advise(
        self, request: ChatClientRequest, call_next: Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]
    ) -> ChatClientResponse:
        """Count this iteration."""
        self.iterations += 1
        return await call_next(request)


def trip_planner(model: ChatModel, telemetry: TelemetryOptions, trail: AuditTrail) -> ChatClient:
    """Return the demo's agent, whose tool calls are recorded in `trail`."""
    return ChatClient(
        model,
        name="trip_planner",
        system=SYSTEM,
        tools=[TripTools()],
        advisors=[TravellerProfile(), AuditAdvisor(trail), PolicyAdvisor(POLICY), Observer()],
        telemetry=telemetry,
    )
