"""The advisor that makes the answer of a run a value of a Python type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from traced_tools.advisors.base import TOOL_LOOP_ORDER, AdviseNext, Advisor
from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse, ValidatedOutput
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import AssistantMessage, Message, SystemMessage, UsageSum, UserMessage
from traced_tools.errors import OutputValidationError
from traced_tools.tools.schema.output import InvalidOutput, OutputFormat, PartialOutput, output_format

_CUT_OFF: Final = "the answer was cut off at the maximum length: answer more briefly"
_NO_ANSWER: Final = InvalidOutput(("there is no final answer",), ("there is no final answer",))


class StructuredOutputAdvisor(Advisor):
    """Makes the answer a value of `output`, and asks the model again if the answer is invalid.

    `client.prompt(..., output=Invoice)` adds this advisor. If the model enforces a schema for its answer, the request
    contains the schema, and an answer that is not an object is requested as the field `value` of an object. Otherwise
    the instructions contain the schema, and words or a code fence around the JSON are ignored.

    If an answer is invalid, the model is shown that answer and its problems, and no earlier ones. Answers that call
    tools are not validated. Nor does the model get another attempt after the run has reached a limit, or if a tool's
    result is the answer. The response contains neither the instructions nor the invalid answers.

    Args:
        output: the type of the answer: any type that pydantic can validate.
        max_attempts: how often the model is asked for a final answer, at most.
        order: the position in the chain, by default between the memory and the tool loop.
        native: whether to send the schema as `ChatOptions.output_schema`; by default, if the model's `enforces_schema`
            returns True. Pass False for a model that lacks what its provider supports.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.

    In a run, it raises `OutputValidationError` if no attempt is valid.
    """

    name = "structured_output"

    def __init__(
        self, output: Any, max_attempts: int = 3, order: int = TOOL_LOOP_ORDER - 50, *, native: bool | None = None
    ) -> None:
        expect_whole("max_attempts", max_attempts, 1)
        expect_whole("order", order, -sys.maxsize)
        expect("native", native, (bool, type(None)), "True, False or None")
        self.max_attempts = max_attempts
        self.order = order
        self._native = native
        self._plain = output_format(output, enforced=False)
        self._enforced = output_format(output, enforced=True)
        self._streamed: dict[str, _StreamedOutput] = {}

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Ask for an output until an answer is valid."""
        form = self._format_for(request)
        asking = _asking(request, form)
        streamed = self._streamed[request.run.id] = _StreamedOutput(form)
        exchanges: Sequence[Message] = ()  # the tool calls of earlier attempts and their results
        correction: Sequence[Message] = ()
        usage, attempt, last = UsageSum(), 0, ChatClientResponse(request.run)
        problems = _NO_ANSWER
        try:
            while attempt < self.max_attempts:
                sent = asking.replace(messages=(*asking.messages, *exchanges, *correction)) if attempt else asking
                response = await call_next(sent)
                usage.add(response.usage)
                response = response.replace(usage=usage.total)
                if response.messages[: len(sent.messages)] == sent.messages:  # unless an advisor replaced them
                    added = (*exchanges, *response.messages[len(sent.messages) :])
                    response = response.replace(messages=(*request.messages, *added))
                    exchanges = added[:-1] if added and isinstance(added[-1], AssistantMessage) else added
                if response.tool_calls and response.stop_reason == "answered":
                    return response  # for the loop around this advisor, or for the caller
                if (
                    response.chat_response is None and response.stop_reason != "answered"
                ):  # a limit prevented the attempt
                    last = last.replace(usage=response.usage, stop_reason=response.stop_reason) if attempt else response
                    break
                attempt, last = attempt + 1, response
                found = self._read(response, form)
                if not isinstance(found, InvalidOutput):
                    return response.replace(validated=ValidatedOutput(response.content, found))
                problems = found
                if response.stop_reason != "answered":
                    break
                correction = _correction(response, problems)
                streamed.restart()
        finally:
            del self._streamed[request.run.id]
        raise OutputValidationError(last, problems.problems, problems.places, attempt)

    def _format_for(self, request: ChatClientRequest) -> OutputFormat[Any]:
        enforces = self._native
        if enforces is None and (ask := request.run.enforces_schema) is not None:
            enforces = ask(self._enforced.schema, with_tools=bool(request.tools))
        return self._enforced if enforces else self._plain

    def _read(self, response: ChatClientResponse, form: OutputFormat[Any]) -> Any:
        """Return the output in a final answer, or what is wrong with the answer."""
        if response.tool_calls:
            return _NO_ANSWER
        if response.stop_reason in ("return_direct", "advisor"):
            form = self._plain  # the model did not write this answer
        return form.read(response.content)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Add the output so far to the chunk."""
        streamed = self._streamed.get(chunk.run.id)
        return chunk if streamed is None else streamed.with_partial_output(chunk)


class _StreamedOutput:
    """Collects the text of one streamed answer at a time."""

    def __init__(self, form: OutputFormat[Any]) -> None:
        self._form = form
        self._pieces: list[str] = []
        self._iteration = 0
        self._is_shown = self._restarts = False

    def restart(self) -> None:
        """Forget the answer: the next chunk belongs to another attempt."""
        self._pieces = []
        self._restarts = self._is_shown

    def with_partial_output(self, chunk: ChatClientResponse) -> ChatClientResponse:
        delta = chunk.delta
        if delta is None:
            return chunk
        if delta.restarts or chunk.iteration != self._iteration:
            self._pieces, self._iteration = [], chunk.iteration
        if self._restarts:
            delta, self._restarts = replace(delta, restarts=True), False
        if chunk.text:
            self._pieces.append(chunk.text)
            self._is_shown = True
        return chunk.replace(delta=delta, partial_output=PartialOutput(self._form, self._pieces))


def _asking(request: ChatClientRequest, form: OutputFormat[Any]) -> ChatClientRequest:
    """Return the request with the schema, in the options or else in the instructions."""
    if form.enforced:
        return request.replace(options=request.options.replace(output_schema=form.schema))
    messages = request.messages
    if messages and isinstance(messages[0], SystemMessage):
        return request.replace(messages=(SystemMessage(f"{messages[0].text}\n\n{form.instructions}"), *messages[1:]))
    return request.replace(messages=(SystemMessage(form.instructions), *messages))


def _correction(response: ChatClientResponse, invalid: InvalidOutput) -> Sequence[Message]:
    """Return the messages that show the model its invalid answer and ask for another one."""
    problems = [_CUT_OFF] if response.finish_reason == "length" else invalid.problems
    listed = "\n".join(f"- {each}" for each in problems)
    ask = UserMessage(f"The answer is invalid:\n{listed}\nAnswer again, with the corrected JSON only.")
    return (response.message, ask) if response.content.strip() else (ask,)  # providers refuse an empty message
