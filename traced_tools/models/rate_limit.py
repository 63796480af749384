"""A model that sends no more requests than its rate limits allow."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from traced_tools.core.checks import expect_whole
from traced_tools.core.fork import on_fork
from traced_tools.errors import ConfigurationError, RateLimited
from traced_tools.flow.steps import Pause
from traced_tools.models.base import AskModel, ChatModel, ChatResponse
from traced_tools.models.routing import RoutingModel
from traced_tools.observe.observations import observe_rate_limit_wait
from traced_tools.observe.sanitize import drop_invalid_counts
from traced_tools.run.context import current_run

WINDOW: Final = 60.0
"""The seconds over which requests and tokens are counted."""


class RateLimitedModel(RoutingModel):
    """Waits before a request until the limits of its model allow it. All threads and event loops share the limits.

    Args:
        model: the model.
        requests_per_minute: how many requests may begin in any 60 seconds; None for any number.
        tokens_per_minute: a request waits while the answers of the last 60 seconds have reported at least this number
            of input and output tokens; None for any number. The tokens of a request are known only after its answer, so
            requests in progress can exceed the limit.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a limit is below 1, or there is none.
    """

    def __init__(
        self, model: ChatModel, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
    ) -> None:
        super().__init__([model])
        for argument, limit in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if limit is not None:
                expect_whole(argument, limit, 1)
        if requests_per_minute is None and tokens_per_minute is None:
            raise ConfigurationError("a RateLimitedModel needs a limit: pass requests_per_minute or tokens_per_minute")
        self._limit = RateLimit(requests_per_minute, tokens_per_minute)

    async def route(self, ask: AskModel) -> ChatResponse:
        """Return the answer of the model, after a wait if the limits require it.

        Raises:
            RateLimited: if the wait would end after the deadline of the run.
            ModelError: if the model does not answer.
        """
        (model,) = self.models
        await self._wait(model)
        response = await model.route(ask)
        if (usage := drop_invalid_counts(response.usage)) is not None:
            self._limit.spend(usage.total_tokens or 0)
        return response

    async def _wait(self, model: ChatModel) -> None:
        run, began = current_run(), time.monotonic()
        deadline = None if run is None else run.tally.deadline
        while (seconds := self._limit.begin()) is not None:
            if deadline is not None and time.monotonic() + seconds >= deadline:
                problem = f"the rate limit allows the request in {seconds:.3g} s, after the deadline of the run"
                raise RateLimited(problem, provider=self.provider, retryable=True, retry_after=seconds)
            await Pause(seconds)
        if run is not None:
            observe_rate_limit_wait(run, model, time.monotonic() - began)


class RateLimit:
    """Counts requests and tokens of the last 60 seconds. Threads can share it; a forked child begins anew.

    Args:
        requests: how many requests may begin in any 60 seconds; None for any number.
        tokens: no request begins while this number of tokens was spent in the last 60 seconds; None for any number.
    """

    def __init__(self, requests: int | None, tokens: int | None) -> None:
        self._requests = requests
        self._tokens = tokens
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._begun: deque[float] = deque()  # when
        self._token_uses: deque[tuple[float, int]] = deque()  # when, and how many tokens

    def begin(self) -> float | None:
        """Begin a request and return None; if a limit is reached, return the seconds until the next attempt."""
        with self._lock:
            now = time.monotonic()
            while self._begun and self._begun[0] + WINDOW <= now:
                self._begun.popleft()
            while self._token_uses and self._token_uses[0][0] + WINDOW <= now:
                self._token_uses.popleft()
            if self._requests is not None and len(self._begun) >= self._requests:
                return self._begun[0] + WINDOW - now
            if self._tokens is not None and (free_at := self._free_at(self._tokens)) is not None:
                return free_at - now
            if self._requests is not None:
                self._begun.append(now)
            return None

    def _free_at(self, limit: int) -> float | None:
        """Return when fewer than `limit` tokens were spent within the window; None if that is so now."""
        tokens_in_window, free_at = sum(tokens for _, tokens in self._token_uses), None
        for used_at, tokens in self._token_uses:
            if tokens_in_window < limit:
                break
            tokens_in_window, free_at = tokens_in_window - tokens, used_at + WINDOW
        return free_at

    def spend(self, tokens: int) -> None:
        """Count tokens of an answer that arrived now."""
        if self._tokens is not None:
            with self._lock:
                self._token_uses.append((time.monotonic(), tokens))
