"""Random appends, reads and deletes: every repository answers as a list of entries would."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.memory.made import said
from traced_tools.errors import ConversationConflict, ConversationDenied
from traced_tools.memory import ChatMemoryRepository, CompactionEntry, MemoryEntry
from traced_tools.memory.entries import EntryKind

NAMES = ("c", "d")
OWNERS = (*["ana"] * 6, "bob", None)
BRANCHES = ("", "", "a", "a.b")
PARTS: tuple[dict[str, int], ...] = ({}, {"limit": 2}, {"last": 2})
SMALL = st.integers(1, 6)
APPEND = st.tuples(
    st.just("append"),
    st.sampled_from(NAMES),
    st.sampled_from(OWNERS),
    st.lists(st.tuples(SMALL, st.booleans(), st.sampled_from(BRANCHES)), min_size=1, max_size=4),
    st.sampled_from([0, 0, 0, 0, -1, 1]),  # how far the expected version is from the log's
)
AGAIN = st.tuples(st.just("again"), st.sampled_from(NAMES), st.sampled_from(OWNERS), st.integers(0, 5))
DELETE = st.tuples(st.just("delete"), st.sampled_from(NAMES), st.sampled_from(OWNERS))
READ = st.tuples(
    st.just("read"),
    st.sampled_from(NAMES),
    st.sampled_from(OWNERS),
    st.fixed_dictionaries(
        {"after": st.integers(0, 4)},
        optional={
            "last_turns": SMALL,
            "kind": st.sampled_from(["message", "compaction"]),
            "branches": st.sampled_from([[""], ["a"], ["a.b", ""]]),
        },
    ),
    st.one_of(st.just({}), st.fixed_dictionaries({"limit": SMALL}), st.fixed_dictionaries({"last": SMALL})),
)


class Model:
    """Conversations as lists of entries."""

    def __init__(self) -> None:
        self.logs: dict[str, list[MemoryEntry]] = {}
        self.owners: dict[str, str | None] = {}
        self.appended: dict[str, list[tuple[list[MemoryEntry], int]]] = {name: [] for name in NAMES}

    def refuses(self, name: str, owner: str | None) -> bool:
        return name in self.logs and self.owners[name] != owner

    def read(
        self,
        name: str,
        after: int,
        part: dict[str, Any],
        kind: Any = None,
        last_turns: int = 99,
        branches: Any = BRANCHES,
    ) -> Any:
        log = self.logs.get(name, [])
        newest = max((entry.turn for entry in log), default=0)
        found = [
            entry.at(name, position)
            for position, entry in enumerate(log, 1)
            if position > after
            and entry.turn > newest - last_turns
            and entry.branch in branches
            and kind in (None, "compaction" if isinstance(entry, CompactionEntry) else "message")
        ]
        if "limit" in part:
            return found[: part["limit"]]
        return found[-part["last"] :] if "last" in part else found


def made(turn: int, is_compaction: bool, branch: str) -> MemoryEntry:
    if is_compaction:
        return CompactionEntry(turn=turn, branch=branch, through=1, trigger="turns", strategy="keep_turns")
    return said("text", turn, branch=branch)


def play(repository: ChatMemoryRepository, model: Model, step: Any) -> None:
    action, name, owner, *rest = step
    if model.refuses(name, owner):
        with pytest.raises(ConversationDenied):
            if action == "read":
                repository.read(name, principal=owner)
            elif action == "delete":
                repository.delete(name, principal=owner)
            else:
                repository.append(name, [said("denied")], 0, principal=owner)
        return
    log = model.logs.get(name, [])
    if action == "append":
        entries = [made(*each) for each in rest[0]]
        expected = max(0, len(log) + rest[1])
        if expected == len(log):
            assert repository.append(name, entries, expected, principal=owner) == len(log) + len(entries)
            model.logs.setdefault(name, []).extend(entries)
            model.owners.setdefault(name, owner)
            model.appended[name].append((entries, len(model.logs[name])))
        else:
            with pytest.raises(ConversationConflict) as caught:
                repository.append(name, entries, expected, principal=owner)
            assert caught.value.version == len(log)
    elif action == "again" and model.appended[name]:
        entries, version = model.appended[name][rest[0] % len(model.appended[name])]
        for expected in {version - len(entries), len(log)}:
            assert repository.append(name, entries, expected, principal=owner) == version
    elif action == "delete":
        assert repository.delete(name, principal=owner) is (name in model.logs)
        model.logs.pop(name, None)
        model.owners.pop(name, None)
        model.appended[name].clear()
    elif action == "read":
        found = repository.read(name, **rest[0], **rest[1], principal=owner)
        assert found.version == len(log)
        assert list(found.entries) == model.read(name, part=rest[1], **rest[0])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(APPEND, APPEND, AGAIN, READ, READ, DELETE), max_size=30))
def test_a_repository_answers_as_a_list_of_entries_would(repository: ChatMemoryRepository, steps: list[Any]) -> None:
    for each in repository.conversations():
        repository.delete(each.id, principal=each.principal)
    model = Model()
    for step in steps:
        play(repository, model, step)
    kinds: tuple[EntryKind | None, ...] = (None, "message", "compaction")
    for name, log in model.logs.items():
        for after, part, turns, kind, some in product((0, len(log) - 1), PARTS, (99, 1, 2), kinds, (BRANCHES, [""])):
            found = repository.read(
                name, after=after, last_turns=turns, kind=kind, branches=some, **part, principal=model.owners[name]
            )
            assert list(found.entries) == model.read(name, after, part, kind, turns, some)
    assert [(each.id, each.version) for each in repository.conversations()] == [
        (name, len(log)) for name, log in model.logs.items()
    ]
