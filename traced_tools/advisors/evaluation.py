"""The advisor that has answers judged, and asks the model again if an answer is not good enough."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from pydantic import Field

from traced_tools.advisors.attempts import Attempts, KeptAnswer, KeptAttempts, RestartMark
from traced_tools.advisors.model_judge import ModelJudge
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import StopReason
from traced_tools.core.evaluation import Evaluation
from traced_tools.core.messages import Value
from traced_tools.flow.steps import perform
from traced_tools.loop.advisor import MEMORY_ORDER, AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse, ValidatedOutput
from traced_tools.loop.state import AnyText
from traced_tools.observe.answers import observe_answer_retry, observe_evaluation
from traced_tools.run.context import RunContext
from traced_tools.tools.schema.output import InvalidOutput

Verdict = Evaluation | float
"""What a judge returns; a bool is 1 or 0."""
Judge = Callable[[ChatClientResponse], Verdict | Awaitable[Verdict]] | ModelJudge

_NO_LIMITS: Final = ("answered", "return_direct", "advisor")


class _KeptEvaluation(Value):
    """An evaluation of an answer; see `Evaluation`."""

    score: float
    label: AnyText | None
    feedback: AnyText | None = Field(repr=False)
    name: AnyText | None
    passed: bool | None


class _KeptVerdict(Value):
    """An answer that was judged, and its evaluations.

    Attributes:
        answer: the answer.
        evaluations: what the judges found.
    """

    answer: KeptAnswer
    evaluations: tuple[_KeptEvaluation, ...]

    @classmethod
    def of(cls, judged: ChatClientResponse) -> Self:
        """Return what is kept of an answer."""
        names = _KeptEvaluation.model_fields
        evaluations = [_KeptEvaluation(**{name: getattr(item, name) for name in names}) for item in judged.evaluations]
        return cls(answer=KeptAnswer.of(judged), evaluations=tuple(evaluations))

    def response(self, attempts: Attempts) -> ChatClientResponse:
        """Return the answer as it was judged, in the run that goes on."""
        evaluations = tuple(Evaluation(**evaluation.model_dump()) for evaluation in self.evaluations)
        return self.answer.response(attempts).replace(evaluations=evaluations)


class _PausedEvaluation(Value):
    """What is kept of a run that pauses.

    Attributes:
        attempts: what the model was sent, and what it has used.
        judged: the number of answers that have not passed.
        best: the best of them; None if there is none.
    """

    attempts: KeptAttempts = KeptAttempts()
    judged: int = Field(default=0, ge=0)
    best: _KeptVerdict | None = None


class EvaluationAdvisor(Advisor):
    """Has each final answer judged, and asks the model again if a score is below the threshold.

    The model is shown its answer and the feedback of the judges whose score is too low, and no earlier answers. If no
    answer passes, the response is the one with the best score; `response.evaluations` shows that it did not pass. Of
    several scores of an answer, the lowest one counts; of equal answers, the last one.

    Only final answers of the model are judged: no answers that call tools, no results of tools that are the answer, and
    nothing after the run has reached a limit. The model gets no further attempt after a limit either.

    A judge that raises an exception fails the run with it, so that no answer passes without being judged.

    Args:
        judge: a plain or async function that takes the response and returns an `Evaluation`, a bool or a score from 0
            to 1; a `ModelJudge`; or a list of these, which all must give a score that passes.
        threshold: the lowest score that passes, from 0 to 1.
        max_attempts: how often the model is asked for a final answer, at most.
        order: the position in the chain, by default between the memory and the structured output, so that the memory
            gets the final answer only, and judges get valid answers.
        name: the advisor's name in telemetry.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.
    """

    def __init__(
        self,
        judge: Judge | Iterable[Judge],
        threshold: float = 0.5,
        max_attempts: int = 3,
        order: int = MEMORY_ORDER + 40,
        *,
        name: str = "evaluation",
    ) -> None:
        self._judges = tuple(judge) if isinstance(judge, Iterable) else (judge,)
        if not self._judges:
            raise ValueError("judge must be a judge or a list of at least one")
        for item in self._judges:
            if not isinstance(item, ModelJudge) and not callable(item):
                raise TypeError(f"judge must be a function or a ModelJudge, not {type(item).__name__}")
        expect("threshold", threshold, (int, float), "a number from 0 to 1")
        if not 0 <= threshold <= 1:
            raise ValueError("threshold must be from 0 to 1")
        expect_whole("max_attempts", max_attempts, 1)
        expect_whole("order", order, -sys.maxsize)
        self.threshold = threshold
        self.max_attempts = max_attempts
        self.order = order
        self.name = name
        self._streamed: dict[str, RestartMark] = {}
        self._paused: WeakKeyDictionary[RunContext, _PausedEvaluation] = WeakKeyDictionary()

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Ask for an answer until one passes."""
        run, paused = request.run, self._paused.pop(request.run, _PausedEvaluation())
        attempts, judged = Attempts(request, request, paused.attempts), paused.judged
        best = None if paused.best is None else paused.best.response(attempts)
        mark = self._streamed[run.id] = RestartMark()
        try:
            while True:
                response = attempts.add(await call_next(attempts.next_request()))
                if response.pending:
                    verdict = None if best is None else _KeptVerdict.of(best)
                    self._paused[run] = _PausedEvaluation(attempts=attempts.kept(), judged=judged, best=verdict)
                    return response
                if not _is_final(response):
                    if best is not None and response.stop_reason not in _NO_LIMITS:
                        return _conclude(best, attempts, response, response.stop_reason)
                    return response
                response = response.replace(evaluations=await self._evaluations(request, response))
                if all(evaluation.passed for evaluation in response.evaluations):
                    return response
                judged += 1
                if best is None or _score(response) >= _score(best):
                    best = response
                stop_reason = "answered" if judged == self.max_attempts else self._limit(request)
                if stop_reason is not None:
                    return _conclude(best, attempts, response, stop_reason)
                observe_answer_retry(run, self.name, "evaluation")
                attempts.correct(response, self._feedback(response.evaluations))
                mark.restart()
        finally:
            self._streamed.pop(run.id, None)

    def paused_state(self, run: RunContext) -> Mapping[str, Any] | None:
        """Return the attempts of a run that pauses during one of them, and the best answer so far."""
        paused = self._paused.pop(run, None)
        return None if paused is None else paused.model_dump(mode="json")

    def restore(self, run: RunContext, state: Mapping[str, Any]) -> None:
        """Take the attempts of the run that `run` resumes."""
        self._paused[run] = _PausedEvaluation.model_validate_json(json.dumps(state))

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Mark the first chunk of each further attempt."""
        mark = self._streamed.get(chunk.run.id)
        return chunk if mark is None else mark.on(chunk)

    async def _evaluations(self, request: ChatClientRequest, response: ChatClientResponse) -> tuple[Evaluation, ...]:
        return tuple([await self._evaluate(judge, request, response) for judge in self._judges])

    async def _evaluate(self, judge: Judge, request: ChatClientRequest, response: ChatClientResponse) -> Evaluation:
        name, of_answer = _judge_name(judge), response.chat_response
        observed: dict[str, Any] = {
            "iteration": response.iteration,
            "response_id": None if of_answer is None else of_answer.id,
        }
        try:
            if isinstance(judge, ModelJudge):
                verdict: Verdict = await judge.evaluate(request, response)
            else:
                verdict = await perform(judge, response)  # plain or async
            evaluation = self._complete(verdict, name)
        except Exception as error:
            observe_evaluation(request.run, self.name, name, error, **observed)
            raise
        observe_evaluation(request.run, self.name, evaluation.name or name, evaluation, **observed)
        return evaluation

    def _complete(self, verdict: object, name: str) -> Evaluation:
        """Return what a judge found as an evaluation with a name, a label, and whether it passed."""
        if not isinstance(verdict, Evaluation):
            expect(f"the result of the judge {name}", verdict, (bool, int, float), "an Evaluation, a bool or a score")
            verdict = Evaluation(verdict)  # type: ignore[arg-type]
        passed = verdict.score >= self.threshold
        label = verdict.label or ("pass" if passed else "fail")
        return replace(verdict, name=verdict.name or name, label=label, passed=passed)

    def _limit(self, request: ChatClientRequest) -> StopReason | None:
        """Return the limit that prevents another attempt. With `on_limit="raise"`, the loop raises it."""
        run = request.run
        # inside the loop, an attempt doesn't count as an iteration
        if request.iteration or run.limits.on_limit == "raise":
            return None
        return run.tally.limit_before(run.next_iteration(), run.spent())

    def _feedback(self, evaluations: Sequence[Evaluation]) -> str:
        """Return the text that tells the model what is wrong with its answer and asks for another one."""
        score = "the score is {:g}, and at least {:g} is required"
        lines = "\n".join(
            f"- {evaluation.name}: {evaluation.feedback or score.format(evaluation.score, self.threshold)}"
            for evaluation in evaluations
            if not evaluation.passed
        )
        return f"The answer is not good enough:\n{lines}\nAnswer again in full, without mentioning this feedback."


def _is_final(response: ChatClientResponse) -> bool:
    """Return whether a response is a final answer of the model."""
    return response.stop_reason == "answered" and response.chat_response is not None and not response.tool_calls


def _score(judged: ChatClientResponse) -> float:
    return min(evaluation.score for evaluation in judged.evaluations)


def _conclude(
    best: ChatClientResponse, attempts: Attempts, last: ChatClientResponse, stop_reason: StopReason
) -> ChatClientResponse:
    """Return the best of the judged answers as the response of all attempts; `last` is the last response."""
    messages = best.messages if best is last else attempts.conversation_with(best.message)
    if best.validated is None and (read := best.run.read_output) is not None:  # a state holds its text alone
        output = read(best.content)
        best = best.replace(
            validated=None if isinstance(output, InvalidOutput) else ValidatedOutput(best.content, output)
        )
    return best.replace(messages=messages, usage=last.usage, stop_reason=stop_reason, tool_results=last.tool_results)


def _judge_name(judge: Judge) -> str:
    if isinstance(judge, ModelJudge):
        return judge.name
    name: str = getattr(judge, "__name__", type(judge).__name__)
    return "judge" if name == "<lambda>" else name
