"""The advisor that blocks requests and answers with sensitive words."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.messages import AssistantMessage, Message, ReasoningPart, TextPart, ToolMessage
from traced_tools.flow.steps import perform
from traced_tools.loop.advisor import MEMORY_ORDER, AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.models.base import ChatResponse
from traced_tools.observe.answers import observe_block

Blocks = Callable[[str], bool | Awaitable[bool]]


class SafeguardAdvisor(Advisor):
    """Blocks requests and answers that contain sensitive words, or that your own function rejects.

    If a text of the prompt matches, the model is not called and the response is a fixed answer. Messages that a memory
    adds to the prompt are not checked again. If the model's answer matches, the fixed answer replaces it. Either way,
    the stop reason is `advisor` and the finish reason `content_filter`. A stream delivers no part of an answer that
    could still become a sensitive word, and no reasoning.

    Words are compared without regard to case, accents' encoding, width and locale (Unicode case folding and NFKC).
    They match anywhere, also inside longer words. The advisor does not replace moderation: synonyms, misspellings,
    invisible characters, images, and the arguments of tool calls pass.

    Args:
        words: the sensitive words or phrases.
        blocks: a plain or async function that takes a text and returns whether to block it: the texts of the prompt,
            joined with line breaks, or the answer. With it, a stream delivers an answer only when it is complete.
        answer: the fixed answer.
        order: the position in the chain, by default outside the memory, which then keeps no blocked requests.
        name: the advisor's name in telemetry.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument, and no word.
    """

    def __init__(
        self,
        words: Iterable[str] = (),
        *,
        blocks: Blocks | None = None,
        answer: str = "I can't help with that.",
        order: int = MEMORY_ORDER - 100,
        name: str = "safeguard",
    ) -> None:
        if isinstance(words, str):
            raise TypeError("words must be a list of words, not a str: pass [word] for a single one")
        expect("words", words, Iterable, "a list of words")
        entries = tuple(words)
        for index, word in enumerate(entries):
            expect(f"words[{index}]", word, str, "a str")
            if not _starters(word).strip():
                raise ValueError(f"words[{index}] must not be blank")
        expect_callable("blocks", blocks)
        if not entries and blocks is None:
            raise ValueError("a SafeguardAdvisor needs words or blocks=")
        expect("answer", answer, str, "a str")
        if not answer.strip():
            raise ValueError("answer must not be blank")
        expect_whole("order", order, -sys.maxsize)
        self.order = order
        self.name = name
        self._words = SensitiveWords(entries)
        self._blocks = blocks
        self._answer = AssistantMessage(answer)
        self._streamed: dict[str, _GuardedAnswer] = {}

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Answer a blocked request without the model, and replace a blocked answer."""
        run = request.run
        if await self._matches([text for message in _new_messages(request) for text in _texts(message)]):
            observe_block(run, self.name, "request", request.iteration)
            return ChatClientResponse(
                run,
                ChatResponse(self._answer, finish_reason="content_filter"),
                (*request.messages, self._answer),
                stop_reason="advisor",
                context=request.context,
                iteration=request.iteration,
            )
        answer = self._streamed[run.id] = _GuardedAnswer(None if self._blocks else self._words)
        try:
            response = await call_next(request)
        finally:
            self._streamed.pop(run.id, None)
        if not await self._matches([*_texts(response.message)]):
            return response
        if not answer.is_blocked:  # else it is recorded already
            observe_block(run, self.name, "response", response.iteration)
        return self._replace_answer(response)

    async def _matches(self, texts: Sequence[str]) -> bool:
        if any(map(self._words.are_in, texts)):
            return True
        return self._blocks is not None and any(texts) and bool(await perform(self._blocks, "\n".join(texts)))

    def _replace_answer(self, response: ChatClientResponse) -> ChatClientResponse:
        messages = response.messages
        if messages and isinstance(messages[-1], AssistantMessage):
            messages = messages[:-1]
        last = response.chat_response or ChatResponse(self._answer)
        return response.replace(
            chat_response=last.replace(message=self._answer, finish_reason="content_filter"),
            messages=(*messages, self._answer),
            stop_reason="advisor",
        )

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        """Hold back text that could become a sensitive word; drop a blocked answer."""
        answer = self._streamed.get(chunk.run.id)
        if answer is None or chunk.delta is None:
            return chunk
        was_blocked = answer.is_blocked
        released = answer.pass_on(chunk)
        if answer.is_blocked and not was_blocked:
            observe_block(chunk.run, self.name, "response", chunk.iteration)
        return released


class SensitiveWords:
    """Words that are searched for in texts.

    Args:
        words: the words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        entries = [*words]
        self._folded = tuple(map(_folded, entries))
        self._starters = tuple(map(_starters, entries))
        self._longest = max(map(len, self._starters), default=0)

    def are_in(self, text: str) -> bool:
        """Return whether a text contains one of the words."""
        folded = _folded(text) if self._folded else ""
        return any(word in folded for word in self._folded)

    def held_from(self, text: str) -> int:
        """Return the index from which the end of a text is one of the words or could become one with more text."""
        end, begin, start = "", len(text), len(text)
        while begin and len(end) < self._longest:
            begin -= 1
            letters = _starters(text[begin])  # several for a character such as ß, and a word may begin with any of them
            end = letters + end
            if any(self._begins_with(end[index:]) for index in range(len(letters))):
                start = begin
        return start

    def _begins_with(self, letters: str) -> bool:
        return any(word.startswith(letters) for word in self._starters)


class _GuardedAnswer:
    """A streamed answer on its way to the reader.

    If an answer has tool calls, the end of its text stays held back if it could begin a word, because more text may
    follow.
    """

    def __init__(self, words: SensitiveWords | None) -> None:
        self._words = words  # None to hold everything back
        self._held = ""
        self._iteration = 0
        self.is_blocked = False

    def pass_on(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        """Return what may be shown of a chunk; None for nothing."""
        delta = chunk.delta
        assert delta is not None
        if delta.restarts or chunk.iteration != self._iteration:
            self._held, self._iteration, self.is_blocked = "", chunk.iteration, False
        released = self._release(chunk.text)
        parts = tuple(part for part in delta.parts if not isinstance(part, TextPart | ReasoningPart))
        if not released and (chunk.text or delta.reasoning or len(parts) < len(delta.parts)):
            return None
        visible = chunk.replace(delta=replace(delta, text=released, reasoning="", parts=parts))
        # the partial output would contain the text that is held back
        return visible.replace(partial_output=None) if self._held else visible

    def _release(self, text: str) -> str:
        """Add a piece of text, and return the text that no word can begin in anymore."""
        if self._words is None or self.is_blocked:
            return ""
        text = self._held + text
        place = self._words.held_from(text)
        self._held = text[place:]
        if self._words.are_in(text):
            # a word at the end waits for the next piece, which can change its last letter
            waits = self._words.are_in(self._held) and not self._words.are_in(text[:-1])
            self.is_blocked = not waits
        return "" if self.is_blocked else text[:place]


def _new_messages(request: ChatClientRequest) -> list[Message]:
    """Return the messages that no memory has added to a request: the others were checked when they were new."""
    remembered_ids = {id(message) for message in request.run.remembered or ()}
    return [message for message in request.messages if id(message) not in remembered_ids]


def _texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message: also reasoning and the results of tools."""
    if isinstance(message, ToolMessage):
        yield from (result.content for result in message.results)
        return
    yield message.text
    yield from (part.text for part in getattr(message, "parts", ()) if isinstance(part, ReasoningPart))


def _folded(text: str) -> str:
    """Return a text that is equal for texts that differ in case or in the encoding of their characters only."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    return unicodedata.normalize("NFKC", folded.casefold())


def _starters(text: str) -> str:
    """Return the decomposed letters of a folded text, without marks such as accents.

    Each character of a text can be converted alone, so this decides what a text could become.
    """
    folded = unicodedata.normalize("NFKD", _folded(text))
    return "".join(character for character in folded if not unicodedata.combining(character))
