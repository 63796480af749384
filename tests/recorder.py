"""An advisor that keeps what passes it."""

from __future__ import annotations

from traced_tools import Advisor, ChatClientRequest, ChatClientResponse
from traced_tools.loop.advisor import AdviseNext


class Recorder(Advisor):
    """Keeps every request and response that passes it."""

    def __init__(self, name: str = "recorder", order: int = 400) -> None:
        self.name = name
        self.order = order
        self.requests: list[ChatClientRequest] = []
        self.responses: list[ChatClientResponse] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.requests.append(request)
        response = await call_next(request)
        self.responses.append(response)
        return response
