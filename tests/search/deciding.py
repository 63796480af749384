"""Models for the tests of indexes: one that decides by words, and one that embeds words."""

from __future__ import annotations

import json
import zlib
from typing import Any

from traced_tools import AssistantMessage, Usage
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, EmbeddingModel, EmbeddingResponse
from traced_tools.search.words import query_words, words_of

USAGE = Usage(input_tokens=100, output_tokens=10)


class DecidingModel(ChatModel):
    """Finds a tool likely if its name or description has a word of the task.

    Attributes:
        requests: what it was asked.
    """

    model, provider = "decider", "test"

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer."""
        self.requests.append(request)
        task, *tools = asked(request)
        wanted = {*query_words(task["task"])}
        return answering(
            *(
                (each["number"], 0.9)
                for each in tools
                if not wanted.isdisjoint(words_of(" ".join(map(str, each.values()))))
            )
        )


def asked(request: ChatRequest) -> list[Any]:
    """Return the lines of the message to the model."""
    (_, message) = request.messages
    assert hasattr(message, "text")
    return [json.loads(line) for line in message.text.splitlines()]


def answering(*decisions: tuple[int, float]) -> ChatResponse:
    """Return an answer with probabilities."""
    tools = [{"number": number, "probability": probability} for number, probability in decisions]
    return ChatResponse(AssistantMessage(json.dumps({"tools": tools})), usage=USAGE)


class WordEmbeddings(EmbeddingModel):
    """A vector counts the words of a text, without a word that many share.

    Attributes:
        texts: what it was asked to embed.
    """

    model, provider = "words", "test"

    def __init__(self, dimensions: int = 512) -> None:
        self._length = dimensions
        self.texts: list[str] = []

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed."""
        self.texts += texts
        return EmbeddingResponse([self._vector(text) for text in texts])

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._length
        for word in query_words(text):
            vector[zlib.crc32(word.encode()) % self._length] += 1
        return vector
