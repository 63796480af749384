"""The tool loop for many tools: the model first sees a search tool, and is offered what it finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Final

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.eviction import EvictingStore, Eviction, Lru
from traced_tools.core.messages import Message, SystemMessage
from traced_tools.errors import ToolDefinitionError
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, AdviseNext
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.loop.tool_calling import ToolCallingAdvisor
from traced_tools.observe.failures import error_type
from traced_tools.search.catalogue import CatalogueIndex
from traced_tools.search.index import ToolIndex
from traced_tools.search.session import RunSearch, SearchSession, names_in, search_of
from traced_tools.search.tool import search_tool
from traced_tools.tools.manager import ToolCallingManager
from traced_tools.tools.toolset import ToolSet

SESSION_ID: Final = "session_id"
"""The key in `params=` of a request that names its search session."""
_LOG: Final = logging.getLogger(__name__)


class ToolSearchToolCallingAdvisor(ToolCallingAdvisor):
    """The tool loop for many tools. The model is first offered a search tool only, and then each tool that it finds.

        ChatClient(model, tools=hundreds, advisors=[ToolSearchToolCallingAdvisor(index=KeywordToolIndex())])

    What was found is offered for the rest of the session, in the order of discovery. The session of a request is the
    value of `session_id` in its `params=`, else its `conversation_id`, else the run. A tool that the model calls
    without having found it is discovered by that, and runs.

    The definitions of the tools are indexed once for all sessions, when the first run begins. If that fails, the run
    goes on, and each search tries again. A search that fails is answered as the error of a tool is.

    A subclass that overrides `initialize`, `before` or `after` must call the method of `super()`.

    Args:
        index: finds the tools, such as `KeywordToolIndex()`. It belongs to this advisor.
        max_results: how many tools a search finds at most, unless the model asks for another number, up to 10.
        eviction: decides which sessions forget what they have discovered: `Lru`, `Ttl`, `Composite`, `Never`.
        catalogue_eviction: decides which catalogues, each the tools of some requests, are removed from the index.
        tool_name: the name of the search tool.
        system_suffix: a text that is appended to the system message, such as advice on when to search.
        manager: runs the tools.
        order: the position in the chain. Advisors with higher orders run in every iteration.
        keep_history: as in `ToolCallingAdvisor`.
        is_tool_call: as in `ToolCallingAdvisor`.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.

    In a run, it raises `ToolDefinitionError` if a tool of the request has the name of the search tool.
    """

    name = "tool_search"

    def __init__(
        self,
        index: ToolIndex,
        *,
        max_results: int = 5,
        eviction: Eviction | None = None,
        catalogue_eviction: Eviction | None = None,
        tool_name: str = "search_tools",
        system_suffix: str | None = None,
        manager: ToolCallingManager | None = None,
        order: int = TOOL_LOOP_ORDER,
        keep_history: bool = True,
        is_tool_call: Callable[[ChatClientResponse], bool] | None = None,
    ) -> None:
        super().__init__(manager, order, keep_history, is_tool_call)
        expect("index", index, ToolIndex, "a ToolIndex, such as KeywordToolIndex()")
        expect_whole("max_results", max_results, 1)
        for argument, value in (("eviction", eviction), ("catalogue_eviction", catalogue_eviction)):
            expect(argument, value, (Eviction, type(None)), "an Eviction, such as Lru(1000), or None")
        expect("tool_name", tool_name, str, "a str")
        expect("system_suffix", system_suffix, (str, type(None)), "a str or None")
        if system_suffix is not None and not system_suffix.strip():
            raise ValueError("system_suffix must not be blank: pass None for no suffix")
        self._search_tool = search_tool(tool_name, max_results, index.query_hint)
        self.own_tools = (self._search_tool,)
        self._index = CatalogueIndex(index, catalogue_eviction or Lru(100))
        self._sessions: EvictingStore[Hashable, SearchSession] = EvictingStore(eviction or Lru(1000))
        self._suffix = system_suffix

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Run the loop."""
        try:
            return await super().advise(request, call_next)
        finally:  # also if no request follows the last search
            if (search := search_of(request.run)) is not None:
                search.settle()

    async def initialize(self, request: ChatClientRequest) -> Any:
        """Return the request with the search tool, and the tools that its session has discovered, as its tools."""
        tools = self._get_catalogue(request.tools)
        if not tools:
            return request
        search = self._get_search(request, tools)
        try:
            await search.prepare()
        except Exception as error:
            _LOG.warning("%s could not index the tools (%s): each search tries again", self.name, error_type(error))
        messages = request.messages if self._suffix is None else _with_suffix(request.messages, self._suffix)
        return request.replace(messages=messages, tools=search.offer(ToolSet(self.own_tools)))

    def before(self, request: ChatClientRequest) -> Any:
        """Return the request with the tools that were discovered since the last one."""
        search = search_of(request.run)
        if search is None or not self._offers_search(request.tools):
            return request
        search.settle()
        # the results, too: an advisor may have answered a search, such as from a cache
        search.restore(names_in(request.messages[-1:], self._search_tool.definition.name))
        offered = search.offer(request.tools)
        search.report_withheld(offered)
        return request if request.tools is offered else request.replace(tools=offered)

    def after(self, response: ChatClientResponse) -> Any:
        """Return the response so that tools can run that the model calls without having found them."""
        search = search_of(response.run)
        if search is None or not response.tool_calls:
            return response
        search.expect_calls(call.id or "" for call in response.tool_calls)
        if not self._offers_search(response.offered):
            return response
        called = [call.name for call in response.tool_calls if call.name not in response.offered.by_name]
        new = search.discover_called(called, response.iteration) if called else ()
        return response.replace(offered=ToolSet((*response.offered, *new))) if new else response

    def evict_session(self, session_id: Hashable) -> bool:
        """Forget what a session has discovered, and return whether there was anything to forget.

        A run that goes on in the session keeps what it has discovered.
        """
        return bool(self._sessions.evict([session_id]))

    def evict_catalogues(self) -> None:
        """Remove all tools from the index; they are indexed again when the next run begins or searches."""
        self._index.evict()

    def _get_search(self, request: ChatClientRequest, tools: ToolSet) -> RunSearch:
        """Return the search of a run, with the state of its session."""
        run = request.run
        before = search_of(run)  # an outer advisor may have the loop run again
        session = self._get_session(request) if before is None else before.session
        search = RunSearch(run, session, self._index, tools, self._search_tool)
        if run.resumption is not None:
            search.restore(run.resumption.paused.discovered_tools)
            answer = run.resumption.paused.answer
            if answer is not None and not run.resumption.has_begun:
                search.expect_calls(call.id or "" for call in answer.tool_calls)
        search.restore(names_in(request.messages, self._search_tool.definition.name))
        if request.options.tool_choice is not None:
            search.restore([request.options.tool_choice])
        return search

    def _get_session(self, request: ChatClientRequest) -> SearchSession:
        session_id = request.context.get(SESSION_ID)
        session_id = request.conversation_id if session_id is None else session_id
        if session_id is None:
            return SearchSession()
        expect(f"params[{SESSION_ID!r}]", session_id, Hashable, "hashable, such as a str")
        return self._sessions.use(session_id, SearchSession)[0]

    def _offers_search(self, tools: ToolSet) -> bool:
        return self._search_tool.definition.name in tools.by_name

    def _get_catalogue(self, tools: ToolSet) -> ToolSet:
        name = self._search_tool.definition.name
        if name not in tools.by_name:
            return tools
        raise ToolDefinitionError(
            f"a tool of the request has the name of the search tool, {name!r}: pass another tool_name= to {self.name}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._index.kind}: {len(self._sessions)} sessions, order {self.order}>"


def _with_suffix(messages: tuple[Message, ...], suffix: str) -> tuple[Message, ...]:
    """Return the messages with a text at the end of the first system message, which is made if there is none."""
    for index, message in enumerate(messages):
        if isinstance(message, SystemMessage):
            if message.text.endswith(suffix):  # such as that of a conversation that the caller continues
                return messages
            new_message = message.replace(text=f"{message.text}\n\n{suffix}")
            return (*messages[:index], new_message, *messages[index + 1 :])
    return (SystemMessage(suffix), *messages)
