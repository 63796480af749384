"""The contract of a repository of conversations, as checks of any repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any, Final, TypeVar, get_args
from uuid import uuid4

from traced_tools.core.messages import (
    AssistantMessage,
    ImagePart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from traced_tools.errors import ConversationConflict, ConversationDenied
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import Call
from traced_tools.flow.workers import run_all, run_async
from traced_tools.memory.conversation import Conversation, ConversationLog, dump_row
from traced_tools.memory.entries import CompactionEntry, EntryKind, MemoryEntry, MessageEntry
from traced_tools.memory.repository import ChatMemoryRepository

T = TypeVar("T")
Job = Callable[[], Awaitable[Any]]
_APPENDERS: Final = 20
_PARTS: Final[Sequence[Mapping[str, int]]] = ({}, {"limit": 3}, {"last": 3})


def check_chat_memory_repository(factory: Callable[[], ChatMemoryRepository]) -> None:
    """Check a repository against the contract, blocking and on asyncio.

    Args:
        factory: returns a repository with an empty store. It is called for each check, and closed after it.

    Raises:
        AssertionError: if a statement of the contract does not hold; the text names each of them.
    """
    failures: list[Exception] = []
    for statement, check in CONTRACT.items():
        for way in (_Blocking, _OnAsyncio):
            try:
                with factory() as repository:
                    way(repository).run(check)
            except Exception as error:
                failure = AssertionError(f"({way.name}) {statement}: {_reason(error)}")
                failures.append(failure.with_traceback(error.__traceback__))
    if failures:
        report = "\n".join(f"- {failure}" for failure in failures)
        raise AssertionError(f"{len(failures)} checks of the chat memory's contract fail:\n{report}") from failures[0]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


class _Blocking:
    """The blocking methods of a repository, for checks that are written once as coroutines."""

    name = "blocking"

    def __init__(self, repository: ChatMemoryRepository) -> None:
        self._repository = repository

    def run(self, check: Check) -> None:
        """Run a check to its end."""
        call(check(self))

    async def append(self, conversation: str, entries: Sequence[MemoryEntry], version: int, **options: Any) -> int:
        return self._repository.append(conversation, entries, version, **options)

    async def read(self, conversation: str, **options: Any) -> ConversationLog:
        return self._repository.read(conversation, **options)

    async def search(self, conversation: str, words: Sequence[str], **options: Any) -> list[int | None]:
        return [entry.position for entry in self._repository.search(conversation, words, **options)]

    async def version(self, conversation: str, **options: Any) -> int:
        return self._repository.version(conversation, **options)

    async def delete(self, conversation: str, **options: Any) -> bool:
        return self._repository.delete(conversation, **options)

    async def ids(self, **options: Any) -> list[str]:
        return [conversation.id for conversation in self._repository.conversations(**options)]

    async def attributes(self, conversation: str) -> Mapping[str, str]:
        conversations = self._repository.conversations()
        return next(candidate.attributes for candidate in conversations if candidate.id == conversation)

    async def delete_expired(self, by: datetime | None = None) -> int:
        return self._repository.delete_expired(by)

    async def find(self, conversation: str) -> Conversation:
        result = await Call[Conversation | None](self._repository.find_conversation, conversation)
        if result is None:
            raise AssertionError("find_conversation does not return a conversation that was stored")
        return result

    async def commit(self, before: Conversation | None, after: Conversation, *entries: MemoryEntry) -> bool:
        first = after.version - len(entries) + 1
        rows = [dump_row(entry, position) for position, entry in enumerate(entries, first)]
        return await Call[bool](self._repository.commit, before, after, rows)

    async def remove(self, conversation: Conversation) -> bool:
        return await Call[bool](self._repository.remove, conversation)

    async def together(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run jobs in threads, and return their results."""
        return _results(run_all([partial(_call, job) for job in jobs]))


class _OnAsyncio(_Blocking):
    """The async methods of a repository."""

    name = "asyncio"

    def run(self, check: Check) -> None:
        run_async(lambda: acall(check(self)))

    async def append(self, conversation: str, entries: Sequence[MemoryEntry], version: int, **options: Any) -> int:
        return await self._repository.aappend(conversation, entries, version, **options)

    async def read(self, conversation: str, **options: Any) -> ConversationLog:
        return await self._repository.aread(conversation, **options)

    async def search(self, conversation: str, words: Sequence[str], **options: Any) -> list[int | None]:
        return [entry.position for entry in await self._repository.asearch(conversation, words, **options)]

    async def version(self, conversation: str, **options: Any) -> int:
        return await self._repository.aversion(conversation, **options)

    async def delete(self, conversation: str, **options: Any) -> bool:
        return await self._repository.adelete(conversation, **options)

    async def ids(self, **options: Any) -> list[str]:
        return [conversation.id for conversation in await self._repository.aconversations(**options)]

    async def attributes(self, conversation: str) -> Mapping[str, str]:
        conversations = await self._repository.aconversations()
        return next(candidate.attributes for candidate in conversations if candidate.id == conversation)

    async def delete_expired(self, by: datetime | None = None) -> int:
        return await self._repository.adelete_expired(by)

    async def together(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run jobs as tasks, and return their results."""
        return _results(await asyncio.gather(*(job() for job in jobs), return_exceptions=True))


Check = Callable[[_Blocking], Any]
CONTRACT: Final[dict[str, Check]] = {}
"""The checks of the contract, by the statement that each of them proves."""


def _states(statement: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CONTRACT[statement] = check
        return check

    return register


def _call(job: Callable[[], Any]) -> Any:
    return call(job())


def _results(outcomes: Sequence[Any]) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def _expect_error(by: type[Exception], what: str) -> Iterator[None]:
    try:
        yield
    except by:
        return
    raise AssertionError(f"{what} raises no {by.__name__}")


def _user_entry(text: str, turn: int = 1, **fields: Any) -> MessageEntry:
    return MessageEntry(UserMessage(text), turn=turn, **fields)


def _texts(log: ConversationLog) -> list[str]:
    return [message.text for message in log.messages if isinstance(message, UserMessage)]


def _new_name() -> str:
    return f"conversation-{uuid4()}"


@_states("a conversation that nobody began has an empty log of version 0")
async def _(memory: _Blocking) -> None:
    log = await memory.read("nobody")
    _expect((log.version, log.entries) == (0, ()), f"the log has version {log.version} and {len(log.entries)} entries")
    _expect(await memory.version("nobody") == 0, "its version is not 0")
    _expect(await memory.delete("nobody") is False, "delete returns that there was one")


@_states("entries are returned as they were appended, with everything in them, in their order")
async def _(memory: _Blocking) -> None:
    image = ImagePart(data=b"\x89PNG\r\n\x1a\n\x00\xff")
    called = ToolCall("search", {"q": "\x00 \\0 ümläut 𝄞 \u2028"}, "c1", signature="s")
    result = ToolResultPart(call_id="c1", name="search", content="'; --", images=(image,))
    entries = [
        MessageEntry(SystemMessage("Be brief."), turn=1, run_id="r1", agent="assistant"),
        MessageEntry(UserMessage([TextPart("What is this?\n\x00"), image]), turn=1, run_id="r1"),
        MessageEntry(AssistantMessage([ReasoningPart("hm", signature="x", id="i"), TextPart("one"), called]), turn=1),
        MessageEntry(ToolMessage([result]), turn=1),
        _user_entry("from below", 1, branch="research.search", agent="search", time=datetime(2020, 1, 2, tzinfo=UTC)),
        CompactionEntry(
            turn=2, through=4, keeps=("a",), summary=(UserMessage("short"),), trigger="tokens", strategy="summarize"
        ),
    ]
    name = _new_name()
    _expect(await memory.append(name, entries, 0) == len(entries), "append does not return the number of entries")
    log = await memory.read(name)
    _expect(log.version == len(entries), f"the version is {log.version} after {len(entries)} entries")
    for position, (entry, read) in enumerate(zip(entries, log.entries, strict=True), 1):
        _expect(read == entry.at(name, position), f"entry {position} is read as another")


@_states("an append with another version than the log has is refused and changes nothing")
async def _(memory: _Blocking) -> None:
    name = _new_name()
    with _expect_error(ConversationConflict, "an append at version 1 of a new conversation"):
        await memory.append(name, [_user_entry("early")], 1)
    await memory.append(name, [_user_entry("one"), _user_entry("two")], 0)
    for version in (0, 1, 3):
        with _expect_error(ConversationConflict, f"an append at version {version} of 2"):
            await memory.append(name, [_user_entry("late")], version)
    _expect(_texts(await memory.read(name)) == ["one", "two"], "the log has other entries than before")
    _expect(await memory.append(name, [_user_entry("three")], 2) == 3, "an append at the log's version is not stored")


@_states("an append that is repeated changes nothing and returns the same version")
async def _(memory: _Blocking) -> None:
    name, first, second = _new_name(), [_user_entry("one"), _user_entry("two")], [_user_entry("three")]
    await memory.append(name, first, 0)
    _expect(await memory.append(name, first, 0) == 2, "the first append, repeated at its version, does not return 2")
    _expect(await memory.append(name, first, 2) == 2, "the first append, repeated at version 2, does not return 2")
    await memory.append(name, second, 2)
    _expect(await memory.append(name, first, 0) == 2, "an earlier append, repeated, does not return its version")
    _expect(_texts(await memory.read(name)) == ["one", "two", "three"], "the log repeats or lacks entries")


@_states("an append of which a part is stored already, or with an id that is taken, is refused as a whole")
async def _(memory: _Blocking) -> None:
    name, first = _new_name(), _user_entry("one")
    await memory.append(name, [first], 0)
    for what, entries in (
        ("an append with a new and an old entry", [_user_entry("new"), first]),
        ("an append with an old and a new entry", [first, _user_entry("new")]),
        ("another entry with the same id", [_user_entry("other", id=first.id)]),
    ):
        with _expect_error(ValueError, what):
            await memory.append(name, entries, 1)
    log = await memory.read(name)
    _expect((log.version, _texts(log)) == (1, ["one"]), "a part of the append is stored")


@_states("commit and remove change nothing if the conversation has changed since it was found")
async def _(memory: _Blocking) -> None:
    name, first = _new_name(), _user_entry("one")
    await memory.append(name, [first], 0, principal="ana")
    old = await memory.find(name)
    await memory.append(name, [_user_entry("two")], 1, principal="ana")
    current = await memory.find(name)
    for what, before, after, entries in (
        ("from an outdated version", old, old.replace(version=2), [_user_entry("lost")]),
        (
            "from no conversation, of an id that exists",
            None,
            old.replace(key="other", version=1),
            [_user_entry("lost")],
        ),
        (
            "from a conversation with another key",
            current.replace(key="other"),
            current.replace(version=3),
            [_user_entry("x")],
        ),
        ("with the id of a stored entry", current, current.replace(version=4), [_user_entry("half"), first]),
    ):
        _expect(await memory.commit(before, after, *entries) is False, f"a commit {what} returns that it is stored")
        log = await memory.read(name, principal="ana")
        _expect((log.version, _texts(log)) == (2, ["one", "two"]), f"a commit {what} changes the log")
    for what, outdated in (("version", old), ("key", current.replace(key="other"))):
        _expect(await memory.remove(outdated) is False, f"a remove of an outdated {what} returns that it is removed")
        _expect(await memory.version(name, principal="ana") == 2, f"a remove of an outdated {what} removes the log")


@_states("entries with the same id in different conversations don't disturb each other")
async def _(memory: _Blocking) -> None:
    entry, here, there = _user_entry("same"), _new_name(), _new_name()
    for name in (here, there):
        _expect(await memory.append(name, [entry], 0) == 1, "the entry is not stored in both conversations")
        _expect(_texts(await memory.read(name)) == ["same"], "the entry is not read from both conversations")


@_states("a part of the log can be read: after a position, the first, the last, the last turns, of one kind")
async def _(memory: _Blocking) -> None:
    name = _new_name()
    entries: list[MemoryEntry] = [_user_entry(f"{turn}.{part}", turn) for turn in (1, 2, 3, 4) for part in (1, 2, 3)]
    entries.insert(6, CompactionEntry(turn=2, through=3, trigger="turns", strategy="keep_turns"))
    entries.append(_user_entry("2.late", 2))
    await memory.append(name, entries, 0)
    positions = range(1, len(entries) + 1)
    late = [position for position, entry in zip(positions, entries, strict=True) if entry.turn >= 3]
    for options, expected in (
        ({"after": 5}, list(positions[5:])),
        ({"after": len(entries)}, []),
        ({"after": 1000}, []),
        ({"limit": 4}, list(positions[:4])),
        ({"after": 5, "limit": 3}, list(positions[5:8])),
        ({"last": 3}, list(positions[-3:])),
        ({"last": 1000}, list(positions)),
        ({"after": 12, "last": 1000}, list(positions[12:])),
        ({"last_turns": 2}, late),
        ({"last_turns": 2, "last": 2}, late[-2:]),
        ({"last_turns": 2, "after": late[0]}, late[1:]),
        ({"last_turns": 1000}, list(positions)),
        ({"kind": "compaction"}, [7]),
        ({"kind": "compaction", "last": 1}, [7]),
        ({"kind": "message", "limit": 8}, [*positions[:6], 8, 9]),
    ):
        log = await memory.read(name, **options)
        read = [entry.position for entry in log.entries]
        _expect(read == expected, f"read({options}) returns the positions {read} and not {expected}")
        _expect(log.version == len(entries), f"read({options}) returns version {log.version} and not {len(entries)}")


@_states("the entries of branches can be read, together with every other condition")
async def _(memory: _Blocking) -> None:
    name = _new_name()
    branches = ("", "*", "re|search", "re", "re|search.a\x00\\0", "Re", "")
    entries: list[MemoryEntry] = [
        _user_entry(f"{turn}", turn, branch=branch) for turn in (1, 2, 3) for branch in branches for _ in range(2)
    ]
    for place, branch in ((30, ""), (18, "re|search"), (5, "")):
        entries.insert(place, CompactionEntry(turn=3, branch=branch, through=1, trigger="turns", strategy="keep_turns"))
    await memory.append(name, entries, 0)
    for subset in (
        [""],
        ["re"],
        ["re|search"],
        ["*"],
        ["re|search.a\x00\\0"],
        ["", "re|search", ""],
        ["r", "", "no"],
    ):
        for kind, after, turns, part in product((None, *get_args(EntryKind)), (0, 11), (9, 2, 1), _PARTS):
            options = {"kind": kind, "after": after, "last_turns": turns, **part}
            log = await memory.read(name, branches=subset, **options)
            matches = [
                position
                for position, entry in enumerate(entries, 1)
                if entry.branch in subset
                and kind in (None, "compaction" if isinstance(entry, CompactionEntry) else "message")
                and position > after
                and entry.turn > 3 - turns
            ]
            expected = matches[: part["limit"]] if "limit" in part else matches[-part.get("last", len(matches)) :]
            read = [entry.position for entry in log.entries]
            _expect(read == expected, f"read(branches={subset}, {options}) returns {read} and not {expected}")
            _expect(log.version == len(entries), f"read(branches={subset}) returns version {log.version}")


@_states("messages are found by their words, the newest first")
async def _(memory: _Blocking) -> None:
    name = _new_name()
    called = ToolCall("look_up", {"City": "line\nbreak", "deep": [{"n": 42}]}, "c1")
    thought = ReasoningPart("pondering", signature="sealed")
    image = ImagePart(data=b"picture", media_type="image/png")
    result = ToolResultPart(call_id="c1", name="look_up", content="Cafe\u0301 -- 'open'; NOT closed* \x00 near")
    entries = [
        _user_entry("The quick brown Fox, the LAZY dog."),
        MessageEntry(AssistantMessage([thought, TextPart("Let us"), TextPart("see"), called], provider="p"), turn=1),
        MessageEntry(ToolMessage([result]), turn=1),
        CompactionEntry(turn=1, through=2, summary=(UserMessage("quick"),), trigger="turns", strategy="keep_turns"),
        MessageEntry(UserMessage([TextPart("a fox in 東京に Straße"), image]), turn=2, branch="a"),
        _user_entry("foxes " * 3 + "x" * 5000 + " fox", 2),
    ]
    await memory.append(name, entries[:3], 0)
    _expect(await memory.search(name, ["fox"]) == [1], "search(['fox']) does not find the first message")
    await memory.append(name, entries[3:], 3)
    expectations: dict[tuple[str, ...], list[int]] = {
        ("FOX",): [6, 5, 1],
        ("fox", "dog"): [1],
        ("quick",): [1],
        ("the lazy",): [1],
        ("dog the", "brown"): [1],
        ("fo",): [],
        ("fox*",): [6, 5, 1],
        ("fox AND dog",): [],
        ("fox OR",): [],
        ("NEAR",): [3],
        ("'open'; NOT",): [3],
        ('"open',): [3],
        ("*",): [],
        ("fox", "-"): [],
        ("look_up",): [3, 2],
        ("city", "break", "42"): [2],
        ("ussee",): [2],
        ("pondering",): [2],
        ("sealed",): [],
        ("picture",): [],
        ("café",): [3],
        ("CAFE\u0301",): [3],
        ("cafe",): [],
        ("京",): [5],
        ("STRASSE",): [5],
        ("x" * 200,): [6],
        ("x" * 199,): [],
        ("a\x00 in",): [5],
        ("=", "fox"): [],
        (name,): [],
    }
    for words, expected in expectations.items():
        positions = await memory.search(name, words)
        _expect(
            positions == expected, f"search({[word[:20] for word in words]}) returns {positions} and not {expected}"
        )
    for options, expected in (
        ({"limit": 2}, [6, 5]),
        ({"before": 5}, [1]),
        ({"through": 5}, [5, 1]),
        ({"before": 6, "limit": 1}, [5]),
        ({"through": 1000, "before": 1}, []),
        ({"branches": [""]}, [6, 1]),
        ({"branches": ["a", "no"]}, [5]),
        ({"branches": [""], "limit": 1, "before": 6}, [1]),
    ):
        positions = await memory.search(name, ["fox"], **options)
        _expect(positions == expected, f"search(['fox'], {options}) returns {positions} and not {expected}")
    for words, expected in {("dog", "京"): [5, 1], ("dog the", "fox dog 京", "*"): [1], ("*", "-"): []}.items():
        positions = await memory.search(name, words, match="any")
        _expect(positions == expected, f"search({words}, match='any') returns {positions} and not {expected}")


@_states("a search finds nothing of other conversations, other owners and deleted conversations")
async def _(memory: _Blocking) -> None:
    name, other = _new_name(), _new_name()
    await memory.append(name, [_user_entry("mine")], 0, principal="ana")
    await memory.append(other, [_user_entry("yours")], 0)
    _expect(await memory.search(name, ["mine"], principal="ana") == [1], "the owner does not find a message")
    _expect(await memory.search(other, ["mine"]) == [], "a search finds a message of another conversation")
    _expect(await memory.search("nobody", ["mine"]) == [], "a search finds something in no conversation")
    for principal in ("bob", None):
        with _expect_error(ConversationDenied, f"search by {principal!r} for a conversation of 'ana'"):
            await memory.search(name, ["mine"], principal=principal)
    await memory.delete(name, principal="ana")
    _expect(await memory.search(name, ["mine"], principal="ana") == [], "a search finds a deleted message")
    await memory.append(name, [_user_entry("new")], 0, principal="ana")
    _expect(await memory.search(name, ["mine"], principal="ana") == [], "a search finds a message of a deleted log")
    _expect(await memory.search(name, ["new"], principal="ana") == [1], "a search of a new conversation fails")


@_states("a conversation is only for the principal that began it")
async def _(memory: _Blocking) -> None:
    name, unowned = _new_name(), _new_name()
    await memory.append(name, [_user_entry("mine")], 0, principal="ana")
    await memory.append(unowned, [_user_entry("nobody's")], 0)
    for conversation, other in ((name, "bob"), (name, None), (name, "Ana"), (unowned, "ana")):
        who = f"{other!r} for a conversation of {'ana' if conversation == name else 'nobody'}"
        with _expect_error(ConversationDenied, f"read by {who}"):
            await memory.read(conversation, principal=other)
        with _expect_error(ConversationDenied, f"version by {who}"):
            await memory.version(conversation, principal=other)
        with _expect_error(ConversationDenied, f"append by {who}"):
            await memory.append(conversation, [_user_entry("theirs")], 1, principal=other)
        with _expect_error(ConversationDenied, f"delete by {who}"):
            await memory.delete(conversation, principal=other)
    await memory.append(name, [_user_entry("mine too")], 1, principal="ana")
    log = await memory.read(name, principal="ana")
    _expect(_texts(log) == ["mine", "mine too"], "the owner cannot read what the owner has appended")


@_states("conversations are found by owner and attributes, the oldest first")
async def _(memory: _Blocking) -> None:
    one, two, three = (_new_name() for _ in range(3))
    await memory.append(one, [_user_entry("1")], 0, principal="ana", attributes={"user": "u1", "team": "red"})
    await memory.append(two, [_user_entry("2")], 0, principal="ana", attributes={"user": "u2", "team": "red"})
    await memory.append(three, [_user_entry("3")], 0, attributes={"user": "u1", "te\x00am\\": "%_*?[\\"})
    await memory.append(one, [_user_entry("4")], 1, principal="ana", attributes={"ticket": "7"})
    for options, expected in (
        ({}, [one, two, three]),
        ({"principal": "ana"}, [one, two]),
        ({"principal": "bob"}, []),
        ({"attributes": {"user": "u1"}}, [one, three]),
        ({"attributes": {"user": "u1", "team": "red"}}, [one]),
        ({"attributes": {"user": "u1"}, "principal": "ana"}, [one]),
        ({"attributes": {"user": "red"}}, []),
        ({"attributes": {"te\x00am\\": "%_*?[\\"}}, [three]),
        ({"attributes": {"ticket": "7"}}, [one]),
    ):
        ids = await memory.ids(**options)
        _expect(ids == expected, f"conversations({options}) returns {ids} and not {expected}")
    _expect(
        await memory.attributes(one) == {"user": "u1", "team": "red", "ticket": "7"},
        "attributes of a later append are not added to those of the conversation",
    )


@_states("a deleted conversation is gone, and a new one with its id has nothing of it")
async def _(memory: _Blocking) -> None:
    name, first = _new_name(), _user_entry("old")
    await memory.append(name, [first, _user_entry("older")], 0, principal="ana", attributes={"user": "u1"})
    _expect(await memory.delete(name, principal="ana") is True, "delete does not return that there was one")
    _expect(await memory.version(name) == 0, "it still has a version")
    _expect(await memory.ids(attributes={"user": "u1"}) == [], "it is still found by its attributes")
    with _expect_error(ConversationConflict, "an append at the version of the deleted conversation"):
        await memory.append(name, [_user_entry("late")], 2)
    _expect(await memory.append(name, [first], 0) == 1, "an entry of the deleted one cannot be appended to the new one")
    log = await memory.read(name)
    _expect(_texts(log) == ["old"], "the new conversation has entries of the deleted one")
    _expect(await memory.ids(principal="ana") == [], "the new conversation has the owner of the deleted one")


@_states("delete_expired deletes the conversations that have expired, and only them")
async def _(memory: _Blocking) -> None:
    name = _new_name()
    await memory.append(name, [_user_entry("kept")], 0, principal="ana", attributes={"user": "u1"})
    _expect(await memory.delete_expired() == 0, "a conversation that has not expired is deleted")
    _expect(await memory.version(name, principal="ana") == 1, "a conversation that has not expired is gone")
    if await memory.delete_expired(datetime.now(UTC) + timedelta(days=36_500)):
        _expect(await memory.version(name) == 0, "an expired conversation is still there")
        _expect(await memory.ids(principal="ana") == [], "an expired conversation is still found by its owner")
    else:
        _expect(await memory.version(name, principal="ana") == 1, "a conversation is deleted and not counted")


@_states("ids, owners and attributes are any text, and texts that look alike are different")
async def _(memory: _Blocking) -> None:
    names = [
        *("'; DROP TABLE x; --", "a:b", "a%3Ab", "a*", "a", "A", "a ", "a\\0", "a\x00", "a\\\\0", "{x}", "[a]"),
        *("line\nbreak\r", "ümläut", "u\u0308", "\u00fc", "𝄞" * 256, "x" * 256, "/../..", " ", "\ufeff", "$a.b"),
    ]
    owners = {name: name if name.strip() else f"{name}-" for name in names}  # a principal is not blank
    for name, owner in owners.items():
        await memory.append(
            name, [_user_entry(name, id=name, agent=name)], 0, principal=owner, attributes={f"a{name}"[:128]: name}
        )
    for name, owner in owners.items():
        log = await memory.read(name, principal=owner)
        _expect(_texts(log) == [name], f"the conversation {name[:20]!r} has other entries than its own")
        _expect(log.entries[0].id == name, f"the entry {name[:20]!r} has another id")
        for options in ({"principal": owner}, {"attributes": {f"a{name}"[:128]: name}}):
            ids = await memory.ids(**options)
            _expect(ids == [name], f"conversations() by {name[:20]!r} returns {[id_[:20] for id_ in ids]}")
    _expect(sorted(await memory.ids()) == sorted(names), "conversations() does not return all ids as they were given")


@_states("appends of twenty callers at once, each repeated on conflict, lose nothing and repeat nothing")
async def _(memory: _Blocking) -> None:
    name = _new_name()

    async def append(caller: int) -> None:
        entries = [_user_entry(f"{caller}.{part}", caller + 1) for part in range(3)]
        for attempt in range(1000):
            try:
                await memory.append(name, entries, await memory.version(name))
            except ConversationConflict:
                if attempt % 2:
                    await memory.read(name, last=1)
            else:
                return
        raise AssertionError("an append is refused a thousand times")

    await memory.together([partial(append, caller) for caller in range(_APPENDERS)])
    texts = _texts(await memory.read(name))
    expected = sorted(f"{caller}.{part}" for caller in range(_APPENDERS) for part in range(3))
    _expect(sorted(texts) == expected, f"the log has {len(texts)} entries, {len(set(texts))} different ones")
    firsts = [text for text in texts if text.endswith(".0")]
    _expect(texts == [f"{text[:-1]}{part}" for text in firsts for part in range(3)], "entries of appends are mixed")


@_states("of appends at the same version, one is stored")
async def _(memory: _Blocking) -> None:
    name = _new_name()

    async def append(caller: int) -> bool:
        try:
            await memory.append(name, [_user_entry(str(caller))], 0)
        except ConversationConflict:
            return False
        return True

    outcomes = await memory.together([partial(append, caller) for caller in range(_APPENDERS)])
    _expect(sum(outcomes) == 1, f"{sum(outcomes)} of {_APPENDERS} appends are stored")
    _expect(await memory.version(name) == 1, "the log has not one entry")


@_states("an append that is sent twice at once is stored once")
async def _(memory: _Blocking) -> None:
    name, entries = _new_name(), [_user_entry("one"), _user_entry("two")]
    versions = await memory.together([partial(memory.append, name, entries, 0) for _ in range(8)])
    _expect(versions == [2] * 8, f"the appends return {versions}")
    _expect(_texts(await memory.read(name)) == ["one", "two"], "the log repeats or lacks entries")
