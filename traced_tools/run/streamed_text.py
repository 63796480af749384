"""Tracks which text of a streamed answer the consumer has received, and delivers the rest.

Text passes the `on_chunk` methods on its way to the consumer, the innermost first. The positions between these methods
are called stages: stage 0 is at the model, the last stage is at the consumer. Text reaches an advisor at one stage and
leaves it at another one. If the advisor has no `on_chunk`, both are the same stage.

When `advise` of an advisor returns, its answer is final. Text of the answer that has not left the advisor in chunks is
delivered as one closing chunk, which passes only the outer advisors. By induction, the consumer has the whole text of
the response at the end, as the `on_chunk` methods changed it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from traced_tools.flow.flow import StreamingStep

C = TypeVar("C")


class Release(StreamingStep[None, C], Generic[C]):
    """Deliver one chunk that does not come from a model. It is a step, so the consumer gets it before the run goes on.

    Args:
        deliver: returns the chunk, or None if an outer advisor drops it.
    """

    __slots__ = ("_deliver", "result")

    def __init__(self, deliver: Callable[[], C | None]) -> None:
        self._deliver = deliver

    def stream(self) -> Iterator[C]:
        """Yield the chunk, blocking."""
        if (chunk := self._deliver()) is not None:
            yield chunk
        self.result = None

    async def astream(self) -> AsyncIterator[C]:
        """Yield the chunk on asyncio."""
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
"""An item of `Delivery.passed`. Almost every item is a str: the text of a chunk that no `on_chunk` has changed."""


class Delivery:
    """Records the text that one streamed run has delivered so far at each stage.

    Args:
        stages: the stage where text reaches an entry and the stage where text leaves it, for each entry of the chain.
            The entries are the advisors with `advise` and, last, the model.

    Attributes:
        passed: the delivered items in order. An int is the iteration of the items after it. A chunk is either its text
            or a tuple: the stage where it began, its text there, and (stage, text) for each change.
        restart: the stage where the chunk that announces the last restart of the model's answer was dropped; 0 if
            none was dropped.
        replaces: whether the text that `answered` returned last replaces text that has left the entry.
    """

    __slots__ = ("_answers", "_begun", "_stages", "_starts", "passed", "replaces", "restart")

    def __init__(self, stages: tuple[tuple[int, int], ...]) -> None:
        self._stages = stages
        self.passed: list[Passed] = []
        self.restart = 0
        self.replaces = False
        self._begun = [0] * (len(stages) + 1)
        self._answers: list[DeliveredAnswer | None] = [None] * (len(stages) + 1)
        self._starts = [0] * (len(stages) + 1)  # for each answer, the index of the first item with its text

    def entered(self, entry: int) -> None:
        """Record that the entry is called, and forget the earlier answers of this entry and the next inner one."""
        self._begun[entry] = self._begun[entry + 1] = len(self.passed)
        self._answers[entry] = self._answers[entry + 1] = None
        if entry == len(self._stages) - 1:  # a new answer of the model
            self.restart = 0

    def restarted(self) -> None:
        """Forget the text of the current model call: the model restarts its answer, and the consumer discards it."""
        del self.passed[self._begun[-1] + 1 :]  # the first item of the call is its iteration

    def answered(self, entry: int, response: DeliveredAnswer) -> str:
        """Record an entry's answer, and return the text of the answer that has not left the entry in chunks.

        Only text since the entry's last `call_next` counts, because an advisor that calls it twice returns one answer.
        """
        own, inner, (arrives, leaves) = response.content, self._answers[entry + 1], self._stages[entry]
        self._answers[entry], self._starts[entry] = response, len(self.passed)
        self.replaces = False
        if inner is None:  # it didn't call the next entry, or that call failed
            first = start = self._begun[entry + 1]
        elif response.iteration not in (0, inner.iteration):  # the entry's own answer, such as tool results
            self.replaces = response.iteration < inner.iteration  # or the answer of an earlier attempt
            return own
        else:
            start = self._starts[entry + 1]
            first = self._index_of_iteration(self._begun[entry + 1], start, inner.iteration)
            if inner.content and own.startswith(inner.content):
                self._starts[entry] = start
                arrived = "" if arrives == leaves else self._text(start, arrives)
                return self._held(entry, arrived, first, start) + own.removeprefix(inner.content)
        prefix = self._text(first, leaves)
        if not own.startswith(prefix):
            self.replaces = True
            return own
        self._starts[entry] = first
        return own.removeprefix(prefix)

    def _held(self, entry: int, arrived: str, first: int, start: int) -> str:
        """Return the text of the answer `arrived` that an entry has held back; rewritten text counts as delivered."""
        for begin in (first, start) if arrived else ():  # a failed attempt may have delivered the first part
            if arrived.startswith(prefix := self._text(begin, self._stages[entry][1])):
                self._starts[entry] = begin
                return arrived.removeprefix(prefix)
        return ""

    def _index_of_iteration(self, begin: int, end: int, iteration: int) -> int:
        """Return the index of the iteration's item in `passed` between `begin` and `end`; `end` if there is none."""
        return next((place for place in range(begin, end) if self.passed[place] == iteration), end)

    def _text(self, start: int, stage: int) -> str:
        """Return the text that has reached `stage` since the item `start`."""
        pieces = self.passed[start:]
        if pieces and isinstance(pieces[0], int):
            del pieces[0]
        try:
            return "".join(pieces)  # type: ignore[arg-type]  # almost always, every item is a str
        except TypeError:
            texts = (
                piece if isinstance(piece, str) else _at(stage, *piece)
                for piece in pieces
                if not isinstance(piece, int)
            )
            return "".join(texts)


def _at(stage: int, began: int, text: str, changes: Sequence[tuple[int, str]]) -> str:
    """Return the text of a chunk at `stage`."""
    if stage < began:
        return ""
    for position, replacement in changes:
        if position <= stage:
            text = replacement
    return text
