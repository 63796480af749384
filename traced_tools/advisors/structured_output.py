"""The advisor that makes the answer of a run a value of a Python type."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic import Field

from traced_tools.advisors.attempts import Attempts, KeptAnswer, KeptAttempts, RestartMark
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import SystemMessage, Value
from traced_tools.errors import OutputValidationError
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse, ValidatedOutput
from traced_tools.loop.state import AnyText
from traced_tools.models.base import CUT_OFF_REASONS
from traced_tools.observe.answers import observe_answer_retry
from traced_tools.run.context import RunContext
from traced_tools.tools.schema.output import InvalidOutput, OutputFormat, PartialOutput, output_format

_CUT_OFF: Final = "the answer was cut off at the maximum length: answer more briefly"
_NO_ANSWER: Final = InvalidOutput(("there is no final answer",), ("there is no final answer",))


class _PausedOutput(Value):
    """What is kept of a run that pauses.

    Attributes:
        attempts: what the model was sent, and what it has used.
        made: the number of attempts whose answers were invalid.
        last: the last of these answers; None if there is none.
        problems, places: what is wrong with it; see `InvalidOutput`.
    """

    attempts: KeptAttempts = KeptAttempts()
    made: int = Field(default=0, ge=0)
    last: KeptAnswer | None = None
    problems: tuple[AnyText, ...] = Field(default=_NO_ANSWER.problems, repr=False)
    places: tuple[AnyText, ...] = Field(default=_NO_ANSWER.places, repr=False)


class StructuredOutputAdvisor(Advisor):
    """Makes the answer a value of `output`, and asks the model again if the answer is invalid.

    `client.prompt(..., output=Invoice)` adds this advisor. If the model enforces a schema for its answer, the request
    contains the schema, and an answer that is not an object is requested as the field `value` of an object. Otherwise
    the instructions contain the schema, and words or a code fence around the JSON are ignored. Plain words are a valid
    answer for `str` and for a union that has it, such as `Person | str`.

    If an answer is invalid, the model is shown that answer and its problems, and no earlier ones. Answers that call
    tools are not validated. Nor does the model get another attempt after the run has reached a limit, or if a tool's
    result is the answer. The response contains neither the instructions nor the invalid answers.

    Args:
        output: the type of the answer: any type that pydantic can validate. A function is not a type.
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
        self._paused: WeakKeyDictionary[RunContext, _PausedOutput] = WeakKeyDictionary()

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Ask for an output until an answer is valid."""
        form, run = self._choose_format(request), request.run
        paused = self._paused.pop(run, _PausedOutput())
        attempts = Attempts(request, _asking(request, form), paused.attempts)
        streamed = self._streamed[run.id] = _StreamedOutput(form)
        attempt, last = paused.made, ChatClientResponse(run) if paused.last is None else paused.last.response(attempts)
        problems = InvalidOutput(paused.problems, paused.places)
        run.read_output = form.read
        try:
            while attempt < self.max_attempts:
                if attempt > paused.made:
                    observe_answer_retry(run, self.name, "invalid_output")
                response = attempts.add(await call_next(attempts.next_request()))
                if response.pending:
                    self._paused[run] = _PausedOutput(
                        attempts=attempts.kept(),
                        made=attempt,
                        last=KeptAnswer.of(last) if attempt else None,
                        problems=problems.problems,
                        places=problems.places,
                    )
                    return response
                if response.tool_calls and response.stop_reason == "answered":
                    return response  # for the loop around this advisor, or for the caller
                # a limit prevented the attempt
                if response.chat_response is None and response.stop_reason != "answered":
                    last = last.replace(usage=response.usage, stop_reason=response.stop_reason) if attempt else response
                    break
                attempt, last = attempt + 1, response
                output = self._read(response, form)
                if not isinstance(output, InvalidOutput):
                    return response.replace(validated=ValidatedOutput(response.content, output))
                problems = output
                if response.stop_reason != "answered":
                    break
                attempts.correct(response, _correction(response, problems))
                streamed.restart()
        finally:
            del self._streamed[run.id]
        raise OutputValidationError(last, problems.problems, problems.places, attempt)

    def paused_state(self, run: RunContext) -> Mapping[str, Any] | None:
        """Return the attempts of a run that pauses during one of them."""
        paused = self._paused.pop(run, None)
        return None if paused is None else paused.model_dump(mode="json")

    def restore(self, run: RunContext, state: Mapping[str, Any]) -> None:
        """Take the attempts of the run that `run` resumes."""
        self._paused[run] = _PausedOutput.model_validate_json(json.dumps(state))

    def _choose_format(self, request: ChatClientRequest) -> OutputFormat[Any]:
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
        return form.read(response.content, is_cut_off=response.finish_reason in CUT_OFF_REASONS)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Add the output so far to the chunk."""
        streamed = self._streamed.get(chunk.run.id)
        return chunk if streamed is None else streamed.with_partial_output(chunk)


class _StreamedOutput(RestartMark):
    """Collects the text of one streamed answer at a time."""

    def __init__(self, form: OutputFormat[Any]) -> None:
        self._form = form
        self._pieces: list[str] = []
        self._iteration = 0

    def restart(self) -> None:
        """Forget the answer: the next chunk belongs to another attempt."""
        super().restart()
        self._pieces = []

    def with_partial_output(self, chunk: ChatClientResponse) -> ChatClientResponse:
        if chunk.delta is None:
            return chunk
        if chunk.delta.restarts or chunk.iteration != self._iteration:
            self._pieces, self._iteration = [], chunk.iteration
        if chunk.text:
            self._pieces.append(chunk.text)
        return self.on(chunk).replace(partial_output=PartialOutput(self._form, self._pieces))


def _asking(request: ChatClientRequest, form: OutputFormat[Any]) -> ChatClientRequest:
    """Return the request with the schema, in the options or else in the instructions."""
    if form.enforced:
        return request.replace(options=request.options.replace(output_schema=form.schema))
    messages = request.messages
    if messages and isinstance(messages[0], SystemMessage):
        return request.replace(messages=(SystemMessage(f"{messages[0].text}\n\n{form.instructions}"), *messages[1:]))
    return request.replace(messages=(SystemMessage(form.instructions), *messages))


def _correction(response: ChatClientResponse, invalid: InvalidOutput) -> str:
    """Return the text that tells the model what is wrong with its answer and asks for another one."""
    problems = [_CUT_OFF] if response.finish_reason == "length" else invalid.problems
    lines = "\n".join(f"- {problem}" for problem in problems)
    return f"The answer is invalid:\n{lines}\nAnswer again, with the corrected JSON only."
