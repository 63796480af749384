"""What a server asks back during one call of one of its tools.

A server without a handshake returns its questions instead of a result, and the call is made again with the answers. An
older one sends requests of its own while the call waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from mcp_types import ErrorData, InputRequiredResult, InputResponse, InputResponses, RequestParams

from traced_tools.core.messages import ToolCall
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_input import GivenInput, InputRequest, PendingInput, Provide
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import InputRequired, McpRequestError
from traced_tools.flow.flow import acall
from traced_tools.mcp.answering import Answering, response_of
from traced_tools.observe.observations import observe_iteration
from traced_tools.run.context import RunContext, current_run
from traced_tools.tools.batch import ExecuteTools
from traced_tools.tools.toolset import ToolSet

T = TypeVar("T")
MOST_ROUNDS = 10
"""How often a server may ask back during one call."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25
"""Seconds before a call is made again for a server that asks nothing and only wants to be asked again."""
_REFUSED = -1
"""The code with which the specification has a client refuse a sampling."""


class Questions:
    """The questions of a server during one call, which are answered on the event loop and in the context of the call.

    Args:
        server: the configured name of the server.
        answering: who answers.
        context: the context of the call.
    """

    def __init__(self, server: str, answering: Answering, context: ToolContext) -> None:
        self._server = server
        self._answering = answering
        self._call_id = context.call_id
        self._provided = context.input
        self._rounds = 0 if self._provided is None else self._provided.asked.round
        self._samplings = self._asked_so_far = 0
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._open: set[asyncio.Task[Any]] = set()

    async def given(self) -> tuple[InputResponses | None, str | None]:
        """Return the answers with which the call goes on after its run paused, and the state of the server, if any.

        Raises:
            InputRequired: if a question has no answer, and no answer is possible now.
        """
        if self._provided is None:
            return None, None
        return await self._responses(self._provided.asked, self._provided), self._provided.asked.state

    async def answered(self, result: InputRequiredResult) -> tuple[InputResponses | None, str | None]:
        """Return the answers to the questions that the server returned instead of a result, and its state.

        Raises:
            InputRequired: if no answer is possible now.
            McpRequestError: if a sampling is refused, or the server asks too often.
        """
        self._count_round()
        if not result.input_requests:
            await asyncio.sleep(min(_FIRST_PAUSE * 2 ** (self._rounds - 1), _LONGEST_PAUSE))
            return None, result.request_state
        requests = [
            InputRequest(key=key, method=request.method, params=as_json(request.params))
            for key, request in result.input_requests.items()
        ]
        pending = PendingInput(requests=tuple(requests), state=result.request_state, round=self._rounds)
        return await self._responses(pending, None), pending.state

    async def requested(self, question: InputRequest) -> InputResponse | ErrorData:
        """Return the answer to a request that the server sent during the call; on any event loop."""
        try:
            return await self._in_call(partial(self._answer_request, question))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return ErrorData(code=_REFUSED, message="the call has ended")

    async def _answer_request(self, question: InputRequest) -> InputResponse | ErrorData:
        try:
            self._count_round()
            result = await self._ask_question(question)
        except McpRequestError as error:
            return ErrorData(code=_REFUSED, message=str(error))
        response = None if result.pending is not None else response_of(question, result)
        return response or ErrorData(code=_REFUSED, message="nobody answers the request")

    async def close(self) -> None:
        """Stop asking, because the call has ended, and wait until that has stopped."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _responses(self, pending: PendingInput, provided_input: GivenInput | None) -> InputResponses:
        responses: InputResponses = {}
        answers = pending.answers
        if provided_input is not None:
            answers = {**answers, **provided_input.provided.answers}
        by = None if provided_input is None else provided_input.provided.by
        for question in pending.requests:
            provided = Provide({question.key: answers[question.key]}, by=by) if question.key in answers else None
            result = await self._in_call(partial(self._ask_question, question, provided))
            if result.pending is not None:
                raise InputRequired(replace(pending, answers=answers))
            response = response_of(question, result)
            if response is None:
                raise McpRequestError(self._server, f"asked for {question.method}, which was refused")
            responses[question.key] = response
        return responses

    async def _ask_question(self, question: InputRequest, provided: Provide | None = None) -> ToolResult:
        """Have a question answered, unless its answer is provided."""
        if provided is not None and question.key in provided.answers:
            return await self._perform_call(question, provided)
        if question.method == "sampling/createMessage" and self._answering.sample is not None:
            self._samplings += 1
            if self._samplings > self._answering.sample.max_requests:
                most = self._answering.sample.max_requests
                raise McpRequestError(self._server, f"asked for more than {most} samplings in one call")
        return await self._perform_call(question)

    async def _perform_call(self, question: InputRequest, provided: Provide | None = None) -> ToolResult:
        """Perform a question as a call in a run of its own, in a task of its own, whose context belongs to the run.

        With a provided answer, the call is approved, and returns the answer unless a policy denies it.
        """
        outer = current_run()
        run = RunContext() if outer is None else outer.nested()
        self._asked_so_far += 1
        call = ToolCall(question.method, json.dumps(dict(question.params)), id=f"{self._call_id}/{self._asked_so_far}")
        tools = ToolSet([self._answering.tool(question, provided)])

        async def performed() -> ToolResult:
            with run, observe_iteration(run, 0) as observed:
                observed.requested(1)
                run.tool_names, run.totals.tool_calls = tools.by_name, 1
                step = ExecuteTools(run, (call,), tools, 0)
                if provided is not None:
                    step.approve(call.id, by=provided.by)
                return (await step)[0]

        return await acall(performed())

    def _count_round(self) -> None:
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            raise McpRequestError(self._server, f"asked back more than {MOST_ROUNDS} times during one call")

    async def _in_call(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await `begin()` in a task of its own, on the event loop and in the context of the call."""
        context, registered = self._context.copy(), self._run_registered(begin)
        if asyncio.get_running_loop() is self._loop:
            return await self._loop.create_task(registered, context=context)
        return await asyncio.wrap_future(context.run(asyncio.run_coroutine_threadsafe, registered, self._loop))

    async def _run_registered(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            return await begin()
        finally:
            self._open.discard(task)


Ask = Callable[[InputRequest], Awaitable[InputResponse | ErrorData]]
"""Returns the answer to a request that the server sent."""


def as_json(params: RequestParams | None) -> dict[str, Any]:
    """Return the parameters of a question as a JSON object."""
    if params is None:
        return {}
    value: dict[str, Any] = params.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
    return value
