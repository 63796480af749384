"""The tool by which a model searches what it is not sent of its conversation anymore."""

from __future__ import annotations

from typing import Final

from traced_tools.core.checks import expect
from traced_tools.core.messages import AssistantMessage, Message, ToolMessage
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.memory.chat_memory import ChatMemory
from traced_tools.memory.entries import MessageEntry
from traced_tools.memory.log_reader import is_active
from traced_tools.memory.session import MemorySession, session_of
from traced_tools.memory.telemetry import observe_memory
from traced_tools.memory.words import MOST_WORD, MOST_WORDS, Match
from traced_tools.tools.decorator import tool
from traced_tools.tools.selection import tool_callbacks

RECALL: Final = "recall"
"""The name of the tool."""
_MOST_FOUND: Final = 10
_MOST_EXCERPT: Final = 1_000
_MATCHES: Final[tuple[Match, ...]] = ("all", "any")
_MORE: Final = f"Only the newest {_MOST_FOUND} messages are shown. Add words to find others."
_NOTHING: Final = "Nothing was found. Try other words, or fewer."


def recall_tool(memory: ChatMemory) -> ToolCallback:
    """Return a tool by which the model searches the messages of its conversation that it is not sent anymore.

    The tool is named `recall`. It searches the whole log of the run's own conversation, with its compacted messages, or
    returns one entry of it whole, such as a tool result that a compaction has cut. A run of an inner agent searches its
    own branch, and what the outer agents had said before it began. Telemetry never captures its arguments and results
    as those of a tool, because they may be those of tools with `capture=False`. If content is captured, the span of the
    search has the messages without answers of the assistant, calls and results of tools only if they may be captured,
    and the words if the run has no other tool with `capture=False`.

    Args:
        memory: the memory of the `MemoryAdvisor` in the client's advisors.

    Raises:
        TypeError: if `memory` is not a `ChatMemory`.
    """
    expect("memory", memory, ChatMemory, "a ChatMemory, the one that the MemoryAdvisor has")

    @tool(repeatable=True, capture=False)  # what it finds may be arguments and results of tools with capture disabled
    def recall(context: ToolContext, words: str = "", entry: int | None = None) -> str:
        """Look up earlier messages of this conversation that are not shown anymore.

        Args:
            context: identifies the run.
            words: words to search for; a message that has all of them is preferred.
            entry: the number of an entry to read whole, instead of a search.
        """
        session = session_of(context.run_id, memory=memory)
        if session is None or session.run.conversation_id is None:
            raise RuntimeError("recall needs a MemoryAdvisor with its memory, and a request with a conversation id")
        with observe_memory(session.run, "search_memory", context.iteration) as observed:
            observed.looks_up(RECALL, words)
            matches = _search(session, words.split()) if entry is None else _entry(session, entry)
            results = matches[:_MOST_FOUND]
            observed.read(len(results), 0, lambda: results[::-1])
        if entry is not None:
            return (
                "\n".join(_text(match.message) for match in matches)
                or f"There is no entry {entry} in this conversation."
            )
        more = [_MORE] if len(matches) > len(results) else []
        return "\n\n".join([*map(_excerpt, results), *more]) or _NOTHING

    (callback,) = tool_callbacks(recall)
    return callback


def _search(session: MemorySession, words: list[str]) -> list[MessageEntry]:
    """Return the newest messages with all words, or else with any of them, without those that the model is shown.

    If there are more than are returned to the model, at least one more is found.
    """
    visible_ids = session.shown_whole()
    words = [word[:MOST_WORD] for word in words[:MOST_WORDS]]
    for match in _MATCHES if words else ():
        matches = [
            entry
            for branch, through in session.visible_branches().items()
            for entry in session.memory.repository.search(
                session.conversation_id,
                words,
                match=match,
                branches=[branch],
                through=through,
                limit=_MOST_FOUND + 1 + len(visible_ids),
                principal=session.run.principal,
            )
            if entry.id not in visible_ids and not is_active(entry)
        ]
        if matches:
            return sorted(matches, key=lambda entry: entry.position or 0, reverse=True)
    return []


def _entry(session: MemorySession, position: int) -> list[MessageEntry]:
    """Return the entry at a position that the run may see, in a list; an empty list if there is none."""
    if position < 1:
        return []
    log = session.memory.repository.read(
        session.conversation_id, after=position - 1, limit=1, kind="message", principal=session.run.principal
    )
    visible = session.visible_branches()
    return [
        entry
        for entry in log.entries
        if isinstance(entry, MessageEntry)
        and entry.position == position
        and entry.branch in visible
        and position <= (visible[entry.branch] or position)
    ]


def _excerpt(entry: MessageEntry) -> str:
    text = _text(entry.message)
    cut = f"{text[:_MOST_EXCERPT]} [...]" if len(text) > _MOST_EXCERPT else text
    return f"Entry {entry.position}, turn {entry.turn}, {entry.message.role}: {cut}"


def _text(message: Message) -> str:
    """Return what a message says, calls and returns."""
    if isinstance(message, ToolMessage):
        return "\n".join(f"{part.name}: {part.content}" for part in message.results)
    if isinstance(message, AssistantMessage):
        calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
        return "\n".join(filter(None, [message.text, *calls]))
    return message.text
