"""What the tests of the tool search share: many tools, an index that counts, and clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from typing import Any

from traced_tools import ChatClient, Message, ToolCall, ToolMessage, ToolSearchToolCallingAdvisor
from traced_tools.core import ToolCallback, ToolDefinition
from traced_tools.models import ChatRequest
from traced_tools.search import RegexToolIndex, ToolMatch
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, tool_callbacks

SEARCH = "search_tools"
ANIMALS = (
    *("ant", "bat", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kiwi", "lynx", "mole", "newt"),
    *("owl", "pug", "quail", "rat", "seal", "toad", "urchin", "vole", "wolf", "yak", "zebra", "ape", "bee"),
    *("cod", "deer", "emu", "frog", "goat", "hare", "iguana", "jackal", "koala", "lamb", "moth", "narwhal"),
    *("otter", "pig", "rabbit", "shark", "tiger", "viper", "wasp", "ox", "boar", "crab", "duck", "elk", "flea"),
    *("gull", "hawk", "impala", "jaguar", "krill", "lion", "mink", "numbat", "oryx", "puma", "ray", "sloth"),
    *("tapir", "uakari", "weasel", "xerus", "bison", "camel"),
)


def feeding(animal: str, **settings: Any) -> ToolCallback:
    """A tool that feeds one animal."""

    def feed(grams: int = 1) -> str:
        return f"fed the {animal} {grams} g"

    description = settings.pop("description", f"Feed the {animal} in the zoo.")
    return FunctionToolCallback(feed, name=f"feed_{animal}", description=description, **settings)


def zoo(*animals: str) -> list[ToolCallback]:
    """A tool for each animal, 70 by default."""
    return [feeding(each) for each in animals or ANIMALS]


_clients = count()


@cache
def _kept_zoo(number: int) -> tuple[ToolCallback, ...]:
    return tuple(zoo())


def looks(query: str, id: str | None = None, **arguments: Any) -> ToolCall:
    """A call of the search tool."""
    return ToolCall(SEARCH, {"query": query, **arguments}, id=id)


def feeds(animal: str, id: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(f"feed_{animal}", arguments, id=id)


class CountingIndex(RegexToolIndex):
    """Records what is added, removed and looked up, and how often it fails before it works."""

    def __init__(self, failing_adds: int = 0, failing_searches: int = 0) -> None:
        super().__init__()
        self.added: list[list[str]] = []
        self.removed: list[list[str]] = []
        self.searched: list[tuple[str, int]] = []
        self._failing_adds, self._failing_searches = failing_adds, failing_searches

    def add(self, tools: Iterable[ToolDefinition | ToolCallback]) -> None:
        tools = list(tools)
        self.added.append([tool.name for tool in tools if isinstance(tool, ToolDefinition)])
        if self._failing_adds:
            self._failing_adds -= 1
            raise ConnectionError("the index is down: secret")
        super().add(tools)

    def remove(self, names: Iterable[str]) -> None:
        names = list(names)
        self.removed.append(names)
        super().remove(names)

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        self.searched.append((query, max_results))
        if self._failing_searches:
            self._failing_searches -= 1
            raise ConnectionError("the index is down: secret")
        return super().search(query, max_results)


def searching(index: RegexToolIndex | None = None, **settings: Any) -> ToolSearchToolCallingAdvisor:
    return ToolSearchToolCallingAdvisor(index=index or RegexToolIndex(), **settings)


def client(
    advisor: ToolSearchToolCallingAdvisor, *turns: Any, advisors: Sequence[Any] = (), **settings: Any
) -> tuple[ChatClient, ScriptedChatModel]:
    """A client of the zoo, and its model. The tools of the next client are equal, and other objects."""
    model, tools = ScriptedChatModel(list(turns)), _kept_zoo(next(_clients) % 2)
    return ChatClient(model, **{"tools": tools, "advisors": [advisor, *advisors], **settings}), model


def offered(request: ChatRequest) -> list[str]:
    """The names of the tools that a request offers."""
    return [definition.name for definition in request.tools]


def results_in(messages: Sequence[Message]) -> list[str]:
    return [each.content for part in messages if isinstance(part, ToolMessage) for each in part.results]


ZOO = {each.definition.name for each in tool_callbacks(*zoo())}
