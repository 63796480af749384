"""The evaluation of an answer."""

from __future__ import annotations

from dataclasses import field

from traced_tools.core.checks import expect
from traced_tools.core.frozen import frozen


@frozen
class Evaluation:
    """What a judge found about an answer.

    Args:
        score: how good the answer is, from 0 to 1.
        label: what the score means, such as `relevant`. It is a metric label, so use few fixed labels. By default,
            `EvaluationAdvisor` sets `pass` or `fail`.
        feedback: what to improve. The model reads it if the score is below the threshold.
        name: what is evaluated, such as `relevance`; by default, the name of the judge. It is a metric label.
        passed: whether the score reaches the threshold; `EvaluationAdvisor` sets it.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.
    """

    score: float
    label: str | None = None
    feedback: str | None = field(default=None, repr=False)
    name: str | None = None
    passed: bool | None = None

    def __post_init__(self) -> None:
        expect("score", self.score, (int, float), "a number from 0 to 1")
        if not 0 <= self.score <= 1:
            raise ValueError(f"score must be from 0 to 1; it is {self.score}")
        object.__setattr__(self, "score", float(self.score))
        for argument in ("label", "feedback", "name"):
            expect(argument, getattr(self, argument), (str, type(None)), "a str or None")
