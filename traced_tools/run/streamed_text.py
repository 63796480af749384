"""Which text of the answer the reader of a stream has received, and the step that delivers the rest.

A text passes the `on_chunk` methods on its way out, the innermost first. The places between them are the stages: stage
0 is the model's, the last one is the reader's. An advisor stands between two stages, which are one and the same if it
has no `on_chunk`.

When `advise` of an advisor returns, its answer counts. Text of the answer that has not left the advisor in chunks
leaves it then as one closing chunk, which passes only the advisors further out. By induction, the reader has the whole
text of the response at the end, as the `on_chunk` methods changed it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from traced_tools.flow.flow import StreamingStep

C = TypeVar("C")


class Release(StreamingStep[None, C], Generic[C]):
    """Deliver one chunk that no model streams; a step only so that the reader takes it before the run goes on.

    Args:
        deliver: makes the chunk; None for one that an advisor further out drops.
    """

    __slots__ = ("_deliver", "result")

    def __init__(self, deliver: Callable[[], C | None]) -> None:
        self._deliver = deliver

    def stream(self) -> Iterator[C]:
        """Give the chunk, blocking."""
        if (chunk := self._deliver()) is not None:
            yield chunk
        self.result = None

    async def astream(self) -> AsyncIterator[C]:
        """Give the chunk on asyncio."""
        if (chunk := self._deliver()) is not None:
            yield chunk
        self.result = None


class DeliveredAnswer(Protocol):
    """An answer on its way out through the chain."""

    @property
    def content(self) -> str:
        """The text of the answer."""

    @property
    def iteration(self) -> int:
        """The iteration of the loop that the answer belongs to; 0 outside a loop."""


Passed = int | str | tuple[int, str, Sequence[tuple[int, str]]]
"""An item of `Delivery.passed`. Almost every chunk is a plain text, which no `on_chunk` has changed."""


class Delivery:
    """The texts that one streamed run has delivered so far, stage by stage.

    Args:
        stages: for each entry of the chain (an advisor with `advise`, last the model) the stage where text reaches it
            and the stage where text leaves it.

    Attributes:
        passed: in order, an iteration number for the items after it, and for each chunk either its text or a tuple: the
            stage where it began, its text there, and (stage, text) for each change.
        restart: the stage that the last restart of the model's answer has not reached, because the chunk that says so
            was dropped there; 0 for none.
    """

    __slots__ = ("_answers", "_begun", "_stages", "_starts", "passed", "restart")

    def __init__(self, stages: tuple[tuple[int, int], ...]) -> None:
        self._stages = stages
        self.passed: list[Passed] = []
        self.restart = 0
        self._begun = [0] * (len(stages) + 1)
        self._answers: list[DeliveredAnswer | None] = [None] * (len(stages) + 1)
        self._starts = [0] * (len(stages) + 1)  # for each answer, the first of the items that hold its text

    def entered(self, entry: int) -> None:
        """Record that the entry is asked; nothing is known yet of the entry further in."""
        self._begun[entry] = self._begun[entry + 1] = len(self.passed)
        self._answers[entry] = self._answers[entry + 1] = None
        if entry == len(self._stages) - 1:  # a new answer of the model
            self.restart = 0

    def restarted(self) -> None:
        """Forget the texts of the model call under way: the model begins its answer again, and the reader clears it."""
        del self.passed[self._begun[-1] + 1 :]  # the first of the call is its pass of the loop

    def answered(self, entry: int, response: DeliveredAnswer) -> str:
        """Record what the entry answered, and return the text of it that has not left the entry in chunks.

        Only text since the entry's last `call_next` counts: an advisor that asks twice returns one answer.
        """
        own, inner, (arrives, leaves) = response.content, self._answers[entry + 1], self._stages[entry]
        self._answers[entry], self._starts[entry] = response, len(self.passed)
        if inner is None:  # it didn't call the next entry, or that call failed
            first = start = self._begun[entry + 1]
        elif response.iteration not in (0, inner.iteration):  # an answer of its own, such as the results of tools
            return own
        else:
            start = self._starts[entry + 1]
            first = self._first_of_pass(self._begun[entry + 1], start, inner.iteration)
            if inner.content and own.startswith(inner.content):
                self._starts[entry] = start
                arrived = "" if arrives == leaves else self._text(start, arrives)
                return self._held(entry, arrived, first, start) + own.removeprefix(inner.content)
        left = self._text(first, leaves)
        if not own.startswith(left):
            return own
        self._starts[entry] = first
        return own.removeprefix(left)

    def _held(self, entry: int, arrived: str, first: int, start: int) -> str:
        """Return what an entry has held back of an answer that `arrived`; text that it rewrote counts as delivered."""
        for begin in (first, start) if arrived else ():  # a failed attempt may have delivered the first part
            if arrived.startswith(left := self._text(begin, self._stages[entry][1])):
                self._starts[entry] = begin
                return arrived.removeprefix(left)
        return ""

    def _first_of_pass(self, begin: int, end: int, iteration: int) -> int:
        """Return the place of the first text of a pass of the loop between two places; `end` if there is none."""
        return next((place for place in range(begin, end) if self.passed[place] == iteration), end)

    def _text(self, start: int, stage: int) -> str:
        """Return the text that has reached `stage` since the item `start`."""
        pieces = self.passed[start:]
        if pieces and isinstance(pieces[0], int):
            del pieces[0]
        try:
            return "".join(pieces)  # type: ignore[arg-type]  # as almost always, they are all plain texts
        except TypeError:
            texts = (
                each if isinstance(each, str) else _at(stage, *each) for each in pieces if not isinstance(each, int)
            )
            return "".join(texts)


def _at(stage: int, began: int, text: str, changes: Sequence[tuple[int, str]]) -> str:
    """Return the text of a chunk at `stage`."""
    if stage < began:
        return ""
    for reached, changed in changes:
        if reached <= stage:
            text = changed
    return text
