"""What the reader of a stream has of the answer, and the step that delivers what is missing.

A text passes the `on_chunk` methods on its way out, the innermost first. The places between them are the stages: stage
0 is the model's, the last one is the reader's. An advisor stands between two stages, which are one and the same if it
has no `on_chunk`.

When `advise` of an advisor returns, its answer counts. Text of the answer that has not left the advisor in chunks
leaves it then as one closing chunk, which passes only the advisors further out. By induction, the reader has the whole
text of the response at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from traced_tools._flow import StreamingStep
from traced_tools.advisors.exchange import ChatClientResponse

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


Passed = int | str | tuple[int, str, Sequence[tuple[int, str]]]
"""What `Delivery.passed` lists; a plain text for a chunk that no `on_chunk` has changed, which is nearly every one."""


class Delivery:
    """The texts that one streamed run has delivered so far, stage by stage.

    Args:
        stages: for each entry of the chain (an advisor with `advise`, last the model) the stage where text reaches it
            and the stage where text leaves it.

    Attributes:
        passed: in order, the pass of the loop that texts belong to from there on, and for each chunk its text, or the
            stage where it began, its text there, and the text from a later stage on as it was changed.
    """

    __slots__ = ("_answers", "_begun", "_stages", "passed")

    def __init__(self, stages: tuple[tuple[int, int], ...]) -> None:
        self._stages = stages
        self.passed: list[Passed] = []
        self._begun = [0] * (len(stages) + 1)
        self._answers: list[ChatClientResponse | None] = [None] * (len(stages) + 1)

    def entered(self, entry: int) -> None:
        """Record that the entry is asked; nothing is known yet of the entry further in."""
        self._begun[entry] = self._begun[entry + 1] = len(self.passed)
        self._answers[entry] = self._answers[entry + 1] = None

    def restarted(self) -> None:
        """Forget the texts of the model call under way: the model begins its answer again, and the reader clears it."""
        del self.passed[self._begun[-1] + 1 :]  # the first of the call is its pass of the loop

    def answered(self, entry: int, response: ChatClientResponse) -> None:
        """Record what the entry answered."""
        self._answers[entry] = response

    def missing(self, entry: int, response: ChatClientResponse) -> str:
        """Return the text of the entry's answer that has not left it in chunks.

        Only what passed since the entry last asked further in counts: whoever asks twice hands back one answer.
        """
        own, inner, (arrives, leaves) = response.content, self._answers[entry + 1], self._stages[entry]
        if not own:
            return ""
        if inner is None:  # it asked nobody, or without success
            left = self._text(entry, leaves)
            return own.removeprefix(left)
        if response.iteration not in (0, inner.iteration):  # an answer of its own, such as the results of tools
            return own
        if arrives == leaves:
            return own.removeprefix(inner.content)
        arrived = self._text(entry, arrives, inner.iteration)
        left = self._text(entry, leaves, inner.iteration)
        if left == arrived:
            return own.removeprefix(inner.content)
        if own.startswith(left):  # held back from some place on, and now released
            return own.removeprefix(left)
        is_rewritten = own == inner.content and not arrived.startswith(left)
        return "" if is_rewritten else own  # what stands in place of the text counts as the text

    def _text(self, entry: int, stage: int, iteration: int | None = None) -> str:
        """Return the text that reached `stage` since the entry last asked further in, of one pass or of all."""
        found: list[str] = []
        wanted = iteration is None
        for piece in self.passed[self._begun[entry + 1] :]:
            if isinstance(piece, int):
                wanted = iteration in (None, piece)
            elif wanted:
                found.append(piece if isinstance(piece, str) else _at(stage, *piece))
        return "".join(found)


def _at(stage: int, began: int, text: str, changes: Sequence[tuple[int, str]]) -> str:
    """Return the text of a chunk at `stage`."""
    if stage < began:
        return ""
    for reached, changed in changes:
        if reached <= stage:
            text = changed
    return text
