"""What a session has discovered of its tools, and the search of one run in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Final

from traced_tools.core.messages import AssistantMessage, Message, ToolMessage
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.run.context import RunContext
from traced_tools.search.catalogue import CatalogueIndex, estimate_tokens
from traced_tools.search.telemetry import observe_discovery, observe_tool_search, observe_withheld_tools
from traced_tools.tools.toolset import ToolSet


class SearchSession:
    """The names of the tools that were discovered, in the order of discovery. Runs at the same time can share it."""

    __slots__ = ("_discovered",)

    def __init__(self) -> None:
        self._discovered: dict[str, object] = {}

    def discover(self, names: Iterable[str]) -> list[str]:
        """Add names, and return those that are new."""
        mine = object()  # `setdefault` tells which of several threads was the first
        return [name for name in dict.fromkeys(names) if self._discovered.setdefault(name, mine) is mine]

    @property
    def discovered(self) -> tuple[str, ...]:
        """The names, in the order of discovery."""
        return tuple(self._discovered)


class RunSearch:
    """The search of one run: what it may search, and what the model is offered.

    Args:
        run: the run.
        session: what was discovered before; discoveries of the run are added.
        index: the index.
        tools: the tools of the run, which are the catalogue.
        search_tool: the tool by which the model searches.

    Attributes:
        run, session: as above.
    """

    def __init__(
        self, run: RunContext, session: SearchSession, index: CatalogueIndex, tools: ToolSet, search_tool: ToolCallback
    ) -> None:
        self.run: Final = run
        self.session: Final = session
        self._index = index
        self._tools = tools
        self._catalogue = index.catalogue_of(tools)
        self._search_tool = search_tool
        self._offered = frozenset[str]()
        self._names_by_call: dict[str, Sequence[str]] = {}
        self._answer_discoveries = SearchSession()
        _CURRENT.set(self)

    async def prepare(self) -> None:
        """Index the tools unless they are indexed, as a flow."""
        await self._index.prepare(self._catalogue, self._tools)

    def restore(self, names: Iterable[str]) -> None:
        """Discover tools that the model knows from before this run; names of other tools are ignored."""
        self._discover(names)

    def expect_calls(self, call_ids: Iterable[str]) -> None:
        """Set the order of the calls of an answer: what its searches find is discovered in it, whichever ends first."""
        self._names_by_call = dict.fromkeys(call_ids, ())
        self._answer_discoveries = SearchSession()

    def settle(self) -> None:
        """Discover what the searches of an answer have found, in the order of the calls."""
        names_by_call, self._names_by_call = self._names_by_call, {}
        self._discover([name for names in names_by_call.values() for name in names])

    def offer(self, tools: ToolSet) -> ToolSet:
        """Return the tools of the next request: `tools`, and then those that are discovered and not among them."""
        self.settle()
        candidates = (self._tools.by_name.get(name) for name in self.session.discovered if name not in tools.by_name)
        new = [candidate for candidate in candidates if candidate is not None]
        offered = ToolSet((*tools, *new)) if new else tools
        self._offered = frozenset(offered.by_name)
        return offered

    def report_withheld(self, tools: ToolSet) -> None:
        """Report how many tools a request with `tools` withholds from the model, and the tokens that this saves."""
        definitions = [tool.definition for tool in tools if tool.definition.name in self._tools.by_name]

        def saved() -> int:
            tokens = estimate_tokens((*definitions, self._search_tool.definition))
            return max(0, self._catalogue.tokens(self._tools) - tokens)

        observe_withheld_tools(self.run, self._index.kind, len(self._tools) - len(definitions), saved)

    def discover_called(self, names: Iterable[str], iteration: int) -> list[ToolCallback]:
        """Return the tools that the model calls without being offered them; they are discovered by that."""
        own_names = [name for name in names if name in self._tools.by_name and name not in self._offered]
        if new := self._discover(own_names):
            observe_discovery(self.run, self._index.kind, new, iteration)
        return [self._tools.by_name[name] for name in dict.fromkeys(own_names)]

    async def search(self, query: str, max_results: int, context: ToolContext) -> list[str]:
        """Search the tools, and return the names of those that fit, as a flow; the next request offers them."""
        kind, iteration = self._index.kind, context.iteration
        with observe_tool_search(self.run, kind, query, max_results, iteration, self._search_tool) as observed:
            matches = await self._index.search(self.run, self._tools, query, max_results)
            names = [match.name for match in matches]
            self._names_by_call[context.call_id] = names
            discovered = self.session.discovered
            new = self._answer_discoveries.discover(name for name in names if name not in discovered)
            observed.found([(match.name, match.score) for match in matches], new)
        return names

    def _discover(self, names: Iterable[str]) -> list[str]:
        """Add tools to what the session has discovered, and return the names of those that are new."""
        new = self.session.discover([name for name in names if name in self._tools.by_name])
        self.run.discovered_tools = self.session.discovered
        return new


_CURRENT: ContextVar[RunSearch | None] = ContextVar("traced_tools_run_search", default=None)


def search_of(run: RunContext) -> RunSearch | None:
    """Return the search of `run`, whose context must be current; None if there is none."""
    search = _CURRENT.get()
    return search if search is not None and search.run is run else None


def current_search() -> RunSearch:
    """Return the search of the run that the current code belongs to.

    Raises:
        RuntimeError: if there is none.
    """
    search = _CURRENT.get()
    if search is None:
        raise RuntimeError("the search tool works only in a run whose loop is a ToolSearchToolCallingAdvisor")
    return search


def names_in(messages: Sequence[Message], search_tool: str) -> list[str]:
    """Return the names of tools that a conversation has found or called, in order; some may be of no tool.

    Args:
        messages: the conversation.
        search_tool: the name of the search tool.
    """
    names: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            names += (call.name for call in message.tool_calls)
        elif isinstance(message, ToolMessage):
            names += (
                name
                for result in message.results
                if result.name == search_tool and not result.is_error
                for name in _parse_names(result.content)
            )
    return names


def _parse_names(result: str) -> list[str]:
    """Return the names in the result of a search; empty for any other text, such as one that an advisor has written."""
    try:
        names = json.loads(result)
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
