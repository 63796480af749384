"""The advisor that logs requests and responses with Python's logging."""

from __future__ import annotations

import logging
import sys
from time import perf_counter
from typing import Any

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import AssistantMessage
from traced_tools.core.readable import readable_json
from traced_tools.flow.deferred import defer, is_in_finalizer
from traced_tools.loop.advisor import MEMORY_ORDER, AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.models.base import ChatResponse
from traced_tools.observe import names
from traced_tools.observe.content import LazyContent
from traced_tools.observe.failures import error_type, stop_reason_of
from traced_tools.observe.genai_messages import conversation_makers
from traced_tools.run.context import RunContext


class LoggingAdvisor(Advisor):
    """Logs each request and its response, as the advisor sees them at its place in the chain.

    A record has a readable message and the same facts as attributes (`extra=`): the run id, the agent, the number of
    messages, the stop reason, tokens, the duration. A streamed response is logged once, when it ends, also if the
    reader leaves the stream. A failed run is logged with the type of its error.

    Messages are logged as JSON if content is captured on events, after the redactor and up to the size limit of
    `ContentCapture`. Otherwise, records contain no content.

    Args:
        logger: the logger, or its name.
        level: the level of the records, such as `logging.DEBUG`.
        order: the position in the chain, by default outside the memory and the safeguard: one request and its final
            response per run. Inside the tool loop (above `TOOL_LOOP_ORDER`), each iteration is logged.
        name: the advisor's name in telemetry.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "traced_tools.chat",
        level: int = logging.INFO,
        order: int = MEMORY_ORDER - 150,
        *,
        name: str = "logging",
    ) -> None:
        expect("logger", logger, (logging.Logger, logging.LoggerAdapter, str), "a Logger or its name")
        expect_whole("level", level, 0)
        expect_whole("order", order, -sys.maxsize)
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level
        self.order = order
        self.name = name
        self._pieces: dict[str, list[str]] = {}

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Log the request, then the response or the error."""
        if not self._logger.isEnabledFor(self._level):
            return await call_next(request)
        run, began = request.run, perf_counter()
        run.telemetry.guarded(self._log_request, request)
        pieces = self._pieces[run.id] = []
        try:
            response = await call_next(request)
        except BaseException as error:
            partial_response = ChatClientResponse(
                run,
                ChatResponse(AssistantMessage("".join(pieces))) if pieces else None,
                stop_reason=stop_reason_of(error),
                iteration=request.iteration,
            )
            self._log_end(request, partial_response, perf_counter() - began, error_type(error))
            raise
        finally:
            self._pieces.pop(run.id, None)
        self._log_end(request, response, perf_counter() - began, None)
        return response

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Collect the text of the answer, to log it if the stream does not end by itself."""
        pieces = self._pieces.get(chunk.run.id)
        if pieces is not None:
            if chunk.delta is not None and chunk.delta.restarts:
                pieces.clear()
            pieces.append(chunk.text)
        return chunk

    def _log_request(self, request: ChatClientRequest) -> None:
        facts = {"messages": len(request.messages), "tools": len(request.tools)}
        captured = _capture_messages(request, None, names.INPUT_MESSAGES)
        self._log("request", request, facts, "input_messages", captured)

    def _log_end(
        self, request: ChatClientRequest, response: ChatClientResponse, seconds: float, failure: str | None
    ) -> None:
        def log() -> None:
            request.run.telemetry.guarded(self._log_response, request, response, seconds, failure)

        if is_in_finalizer():  # this thread may hold the locks of handlers
            defer(log)
        else:
            log()

    def _log_response(
        self, request: ChatClientRequest, response: ChatClientResponse, seconds: float, failure: str | None
    ) -> None:
        usage = response.usage
        facts = {
            "stop_reason": response.stop_reason,
            "finish_reason": response.finish_reason,
            "error_type": failure,
            "tool_calls": len(response.tool_calls),
            "input_tokens": None if usage is None else usage.input_tokens,
            "output_tokens": None if usage is None else usage.output_tokens,
            "duration": round(seconds, 3),
        }
        captured = _capture_messages(request, response, names.OUTPUT_MESSAGES)
        self._log("response", request, facts, "output_messages", captured)

    def _log(
        self, subject: str, request: ChatClientRequest, facts: dict[str, Any], content: str, captured: str | None
    ) -> None:
        run = request.run
        fields = {name: value for name, value in facts.items() if value is not None}
        summary = ", ".join(f"{name} {value}" for name, value in fields.items())
        text = "" if captured is None else f": {readable_json(captured, len(captured))}"
        extra = {**fields, **_identity(run, request.iteration)}
        if captured is not None:
            extra[content] = captured
        self._logger.log(self._level, "%s of %s: %s%s", subject, run.agent, summary, text, extra=extra)


def _identity(run: RunContext, iteration: int) -> dict[str, Any]:
    identity = {
        "run_id": run.id,
        "agent": run.agent,
        "conversation_id": run.conversation_id,
        "trace_id": run.trace_id,
        "iteration": iteration or None,
    }
    return {name: value for name, value in identity.items() if value is not None}


def _capture_messages(request: ChatClientRequest, response: ChatClientResponse | None, name: str) -> str | None:
    """Return messages as JSON; None unless the run captures content on events."""
    run = request.run
    content = run.telemetry.content_on_events()
    if content is None:
        return None
    content.register_tools(request.tools)
    if response is not None and not (
        response.chat_response and content.may_capture_answer(response.stop_reason, run.totals.tool_calls)
    ):
        return None
    return LazyContent(content, conversation_makers(request, response, content)).text(name)
