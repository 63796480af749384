"""The advisor that has answers judged, and asks the model again if an answer is not good enough."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from traced_tools.advisors.attempts import Attempts, RestartMark
from traced_tools.advisors.base import MEMORY_ORDER, AdviseNext, Advisor
from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.advisors.model_judge import ModelJudge
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import StopReason
from traced_tools.core.evaluation import Evaluation
from traced_tools.flow.steps import perform
from traced_tools.observe.answers import observe_answer_retry, observe_evaluation

Verdict = Evaluation | float
"""What a judge returns; a bool is 1 or 0."""
Judge = Callable[[ChatClientResponse], Verdict | Awaitable[Verdict]] | ModelJudge

_NO_LIMITS: Final = ("answered", "return_direct", "advisor")


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
        for each in self._judges:
            if not isinstance(each, ModelJudge) and not callable(each):
                raise TypeError(f"judge must be a function or a ModelJudge, not {type(each).__name__}")
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

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Ask for an answer until one passes."""
        run, attempts, judged = request.run, Attempts(request, request), list[ChatClientResponse]()
        mark = self._streamed[run.id] = RestartMark()
        try:
            while True:
                response = attempts.add(await call_next(attempts.next_request()))
                if not _is_final(response):
                    if judged and response.stop_reason not in _NO_LIMITS and not response.pending:
                        return _best(judged, attempts, response, response.stop_reason)
                    return response
                response = response.replace(evaluations=await self._evaluations(request, response))
                if all(each.passed for each in response.evaluations):
                    return response
                judged.append(response)
                limit = None if len(judged) == self.max_attempts else self._limit(request)
                if limit is not None or len(judged) == self.max_attempts:
                    return _best(judged, attempts, response, limit or "answered")
                observe_answer_retry(run, self.name, "evaluation")
                attempts.correct(response, self._feedback(response.evaluations))
                mark.restart()
        finally:
            self._streamed.pop(run.id, None)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        """Mark the first chunk of each further attempt."""
        mark = self._streamed.get(chunk.run.id)
        return chunk if mark is None else mark.on(chunk)

    async def _evaluations(self, request: ChatClientRequest, response: ChatClientResponse) -> tuple[Evaluation, ...]:
        return tuple([await self._evaluate(judge, request, response) for judge in self._judges])

    async def _evaluate(self, judge: Judge, request: ChatClientRequest, response: ChatClientResponse) -> Evaluation:
        name, of_answer = _name_of(judge), response.chat_response
        observed: dict[str, Any] = {
            "iteration": response.iteration,
            "response_id": None if of_answer is None else of_answer.id,
        }
        try:
            if isinstance(judge, ModelJudge):
                found: Verdict = await judge.evaluate(request, response)
            else:
                found = await perform(judge, response)  # plain or async
            evaluation = self._completed(found, name)
        except Exception as error:
            observe_evaluation(request.run, self.name, name, error, **observed)
            raise
        observe_evaluation(request.run, self.name, evaluation.name or name, evaluation, **observed)
        return evaluation

    def _completed(self, found: object, name: str) -> Evaluation:
        """Return what a judge found as an evaluation with a name, a label, and whether it passed."""
        if not isinstance(found, Evaluation):
            expect(f"the result of the judge {name}", found, (bool, int, float), "an Evaluation, a bool or a score")
            found = Evaluation(found)  # type: ignore[arg-type]
        passed = found.score >= self.threshold
        label = found.label or ("pass" if passed else "fail")
        return replace(found, name=found.name or name, label=label, passed=passed)

    def _limit(self, request: ChatClientRequest) -> StopReason | None:
        """Return the limit that prevents another attempt. With `on_limit="raise"`, the loop raises it."""
        run = request.run
        if request.iteration or run.limits.on_limit == "raise":  # inside the loop, an attempt is no iteration
            return None
        return run.tally.limit_before(run.totals.iterations + 1, run.totals.spent)

    def _feedback(self, evaluations: Sequence[Evaluation]) -> str:
        """Return the text that tells the model what is wrong with its answer and asks for another one."""
        score = "the score is {:g}, and at least {:g} is required"
        listed = "\n".join(
            f"- {each.name}: {each.feedback or score.format(each.score, self.threshold)}"
            for each in evaluations
            if not each.passed
        )
        return f"The answer is not good enough:\n{listed}\nAnswer again in full, without mentioning this feedback."


def _is_final(response: ChatClientResponse) -> bool:
    """Return whether a response is a final answer of the model."""
    return response.stop_reason == "answered" and response.chat_response is not None and not response.tool_calls


def _best(
    judged: Sequence[ChatClientResponse], attempts: Attempts, last: ChatClientResponse, stop_reason: StopReason
) -> ChatClientResponse:
    """Return the best of the judged answers, the last one of equals, as the response of all attempts."""
    best: ChatClientResponse = max(
        reversed(judged), key=lambda each: min(evaluation.score for evaluation in each.evaluations)
    )
    messages = best.messages if best is last else attempts.conversation_with(best.message)
    return best.replace(messages=messages, usage=last.usage, stop_reason=stop_reason, tool_results=last.tool_results)


def _name_of(judge: Judge) -> str:
    if isinstance(judge, ModelJudge):
        return judge.name
    name: str = getattr(judge, "__name__", type(judge).__name__)
    return "judge" if name == "<lambda>" else name
