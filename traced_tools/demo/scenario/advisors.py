"""The advisors of the scenario: two policies, a cache, a referee, two slow advisors and one that fails."""

from __future__ import annotations

import time

from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.steps import perform
from traced_tools.loop.advisor import AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.tools.invocation import CallNext, ToolInvocation


class BudgetPolicy(Advisor):
    """Refuses tool calls that cost money."""

    name, order = "spending_policy", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Refuse bookings."""
        return call.denied("bookings need a budget", code="over_budget")


class PrivacyPolicy(Advisor):
    """Refuses tool calls that read personal data."""

    name, order = "privacy_policy", 351

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Refuse personal data."""
        return call.denied("customers are private", code="personal_data")


class Cache(Advisor):
    """Answers tool calls without running the tool."""

    name, order = "cache", 352

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Answer the call."""
        return call.answered("sunny, as an hour ago")


class Referee(Advisor):
    """Ends the run with a result."""

    name, order = "referee", 353

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Run the tool and end the run."""
        return call.end(await call_next(call))


class SlowMemory(Advisor):
    """Takes long to look something up before the model is called.

    Args:
        seconds: how long the lookup takes.
    """

    name, order = "slow_memory", 200

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Look something up."""
        await perform(time.sleep, self._seconds)
        return await call_next(request)


class SlowRedactor(Advisor):
    """Takes long to redact each chunk of a streamed answer.

    Args:
        seconds: how long a chunk takes.
    """

    name, order = "slow_redactor", 400

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Redact the chunk."""
        time.sleep(self._seconds)
        return chunk


class BrokenMemory(Advisor):
    """Raises before the model is called."""

    name, order = "broken_memory", 201

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Raise a `LookupError`."""
        raise LookupError("the memory has no index")
