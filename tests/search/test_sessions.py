"""Sessions of a tool search: what they remember, who shares them, how they end, and what they cost."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.modes import MODES, run
from tests.search.searching import (
    SEARCH,
    CountingIndex,
    client,
    feeding,
    feeds,
    looks,
    offered,
    results_in,
    searching,
    zoo,
)
from traced_tools import Approve, ChatClient, MemoryAdvisor, Policy, PolicyAdvisor, Rule, ToolCall, UserMessage
from traced_tools.approvals import PendingStore
from traced_tools.core import Composite, Lru, Never, ToolMetadata, Ttl, eviction
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.search import ToolMatch
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolCallingManager

PLACES = {"outside": 200, "inside": 400}


def discovered(advisor: Any, **prompt: Any) -> list[str]:
    """The names of the tools, without the search tool, that a new request is offered at first."""
    asking, model = client(advisor, "done")
    asking.prompt("?", **prompt).call()
    return offered(model.requests[0])[1:]


def discover(advisor: Any, animal: str, **prompt: Any) -> None:
    """Find the tool of one animal in a request of its own."""
    asking, _ = client(advisor, looks(animal, max_results=1), "done")
    asking.prompt("?", **prompt).call()


# Which session a request belongs to.


def test_a_session_is_that_of_the_params_else_the_conversation_else_the_run() -> None:
    advisor = searching()
    discover(advisor, "ant", conversation_id="c", params={"session_id": "s"})
    discover(advisor, "bat", conversation_id="c")
    discover(advisor, "cat")
    assert discovered(advisor, params={"session_id": "s"}) == ["feed_ant"]
    assert discovered(advisor, conversation_id="other", params={"session_id": "s"}) == ["feed_ant"]
    assert discovered(advisor, conversation_id="c") == ["feed_bat"]
    assert discovered(advisor, params={"session_id": None}, conversation_id="c") == ["feed_bat"]
    assert discovered(advisor) == []


def test_a_session_keeps_the_order_of_discovery_across_runs() -> None:
    advisor = searching()
    for animal in ("yak", "ant", "mole"):
        discover(advisor, animal, conversation_id="c")
    assert discovered(advisor, conversation_id="c") == ["feed_yak", "feed_ant", "feed_mole"]


def test_runs_at_the_same_time_share_their_session() -> None:
    advisor = searching()
    asking, model = client(advisor, looks("ant"), "done")
    driven = asking.prompt("?", conversation_id="c").start()
    step = driven.next()
    discover(advisor, "yak", conversation_id="c")
    while step is not None:
        driven.perform(step)
        step = driven.next()
    assert offered(model.requests[1]) == [SEARCH, "feed_yak", "feed_ant"]


def test_a_tool_that_is_gone_is_not_offered_and_is_offered_again_when_it_is_back() -> None:
    advisor = searching()
    for animal in ("ant", "bat"):
        discover(advisor, animal, conversation_id="c")
    asking, model = client(advisor, "done", "done")
    asking.prompt("?", conversation_id="c", tools=zoo("bat", "cat")).call()
    asking.prompt("?", conversation_id="c").call()
    assert [offered(each)[1:] for each in model.requests] == [["feed_bat"], ["feed_ant", "feed_bat"]]


def test_a_tool_whose_definition_has_changed_is_offered_with_the_new_one() -> None:
    index = CountingIndex()
    advisor = searching(index)
    discover(advisor, "ant", conversation_id="c")
    asking, model = client(advisor, looks("six legs"), "done", tools=[feeding("ant", description="Six legs.")])
    asking.prompt("?", conversation_id="c").call()
    assert [each.description for each in model.requests[0].tools][1:] == ["Six legs."]
    assert offered(model.requests[1]) == [SEARCH, "feed_ant"]
    assert len(index.added) == 2


def test_a_tool_whose_schema_alone_has_changed_is_found_by_its_new_parameters() -> None:
    index = CountingIndex()
    advisor = searching(index)
    for parameter in ("grams", "kilos"):
        schema = {"type": "object", "properties": {parameter: {"type": "integer"}}}
        weighing = FunctionToolCallback(lambda **_: "fed", name="feed", description="Feed.", input_schema=schema)
        asking, model = client(advisor, looks("kilos"), "done", tools=[weighing])
        asking.prompt("?").call()
        assert offered(model.requests[1])[1:] == (["feed"] if parameter == "kilos" else [])
    assert len(index.added) == 2


def test_the_id_of_a_session_must_be_hashable() -> None:
    asking, _ = client(searching(), "done")
    with pytest.raises(TypeError, match=r"params\['session_id'\] must be hashable, such as a str, not list"):
        asking.prompt("?", params={"session_id": ["a"]}).call()


# Indexing once.


@pytest.mark.slow
def test_the_same_definitions_are_indexed_once_in_one_batch_for_all_sessions_and_clients() -> None:
    index = CountingIndex()
    advisor = searching(index)
    for number in range(20):
        asking, _ = client(advisor, looks("ant"), "done", tools=zoo() if number % 2 else list(reversed(zoo())))
        asking.prompt("?", conversation_id=f"c-{number}").call()
    assert len(index.added) == 1
    assert len(index.added[0]) == 70
    assert index.removed == []


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_are_indexed_when_a_run_begins_and_once(mode: str) -> None:
    index = CountingIndex()
    asking, _ = client(searching(index), "done", "done")
    for _ in range(2):
        run(mode, asking.prompt("?", conversation_id="c"))
    assert len(index.added) == 1
    assert index.searched == []


def test_sessions_never_see_the_tools_of_others() -> None:
    advisor = searching()
    for animal, other in (("ant", "bat"), ("bat", "ant")):
        asking, _ = client(advisor, looks("feed", max_results=10), feeds(other), "done", tools=zoo(animal))
        response = asking.prompt("?").call()
        assert results_in(response.messages)[0] == f'["feed_{animal}"]'
        assert response.tool_results[1].decision == "unknown_tool"


def test_the_tools_that_run_are_those_of_the_request_and_not_of_another_with_the_same_definitions() -> None:
    advisor = searching()
    replies = []
    for user in ("ana", "bo"):

        def balance(user: str = user) -> str:
            return f"{user}'s balance"

        def of_user() -> str:
            """Get the balance."""
            return balance()

        asking, _ = client(advisor, looks("balance"), ToolCall("of_user"), "done", tools=[of_user])
        replies.append(results_in(asking.prompt("?", conversation_id="c").call().messages)[1])
    assert replies == ["ana's balance", "bo's balance"]


@pytest.mark.slow
def test_a_thousand_sessions_over_one_catalogue_stay_under_20_mb() -> None:
    advisor = searching(eviction=Never())
    asking, model = client(advisor)
    discover(advisor, "ant", conversation_id="first")
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1_000):
            model = ScriptedChatModel([looks("feed", max_results=10), "done"])
            asking.replace(model=model).prompt("?", conversation_id=f"c-{number}").call()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(advisor._sessions) == 1_001
    assert after - before < 20_000_000


# Eviction.


def test_with_a_capacity_of_one_a_second_session_evicts_the_first() -> None:
    advisor = searching(eviction=Lru(1))
    discover(advisor, "ant", conversation_id="a")
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]
    discover(advisor, "bat", conversation_id="b")
    assert discovered(advisor, conversation_id="a") == []


def test_an_idle_session_is_evicted_when_another_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(eviction.time, "monotonic", lambda: now[0])
    advisor = searching(eviction=Composite(Ttl(60), Lru(10)))
    discover(advisor, "ant", conversation_id="a")
    now[0] = 59.0
    discover(advisor, "bat", conversation_id="b")
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]
    now[0] = 119.0
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]
    assert discovered(advisor, conversation_id="b") == []


def test_never_forgets_nothing() -> None:
    advisor = searching(eviction=Never())
    discover(advisor, "ant", conversation_id="a")
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]


def test_a_session_is_evicted_by_hand_and_a_run_in_it_keeps_what_it_has() -> None:
    advisor = searching()
    discover(advisor, "ant", conversation_id="a")
    asking, model = client(advisor, looks("bat", max_results=1), "done")
    driven = asking.prompt("?", conversation_id="a").start()
    step = driven.next()
    assert advisor.evict_session("a") is True
    assert advisor.evict_session("a") is False
    while step is not None:
        driven.perform(step)
        step = driven.next()
    assert offered(model.requests[1]) == [SEARCH, "feed_ant", "feed_bat"]
    assert discovered(advisor, conversation_id="a") == []


def test_a_run_without_a_conversation_evicts_no_session() -> None:
    advisor = searching(eviction=Lru(1))
    discover(advisor, "ant", conversation_id="a")
    discover(advisor, "bat")
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]


def test_an_evicted_catalogue_leaves_the_index_but_for_what_others_share() -> None:
    index = CountingIndex()
    advisor = searching(index, catalogue_eviction=Lru(1))
    for animals in (("ant", "bat"), ("bat", "cat"), ("ant", "bat")):
        asking, _ = client(advisor, looks("feed"), "done", tools=zoo(*animals))
        response = asking.prompt("?").call()
        assert json.loads(results_in(response.messages)[0]) == [f"feed_{each}" for each in animals]
    assert index.added == [["feed_ant", "feed_bat"], ["feed_cat"], ["feed_ant"]]
    assert index.removed == [["feed_ant"], ["feed_cat"]]


def test_a_run_whose_catalogue_is_evicted_meanwhile_indexes_it_again() -> None:
    index = CountingIndex()
    advisor = searching(index, catalogue_eviction=Lru(1))
    asking, model = client(advisor, looks("ant"), "done")
    driven = asking.prompt("?").start()
    step = driven.next()
    other, _ = client(advisor, "done", tools=zoo("yak"))
    other.prompt("?").call()
    while step is not None:
        driven.perform(step)
        step = driven.next()
    assert offered(model.requests[1]) == [SEARCH, "feed_ant"]


def test_a_search_uses_its_catalogue() -> None:
    index = CountingIndex()
    advisor = searching(index, catalogue_eviction=Lru(2))
    asking, _ = client(advisor, looks("ant"), tools=zoo("ant"))
    driven = asking.prompt("?").start()
    while not isinstance(step := driven.next(), ExecuteTools):
        driven.perform(step)
    for animal in ("bat", "cat"):
        other, _ = client(advisor, "done", tools=zoo(animal))
        other.prompt("?").call()
        if animal == "bat":
            driven.perform(step)
    assert index.removed == [["feed_bat"]]


def test_a_run_whose_catalogue_is_evicted_before_each_search_finds_its_tools() -> None:
    advisor = searching(catalogue_eviction=Lru(1))
    asking, model = client(advisor, *(looks(each, max_results=1) for each in ("ant", "yak", "bee")), "done")
    driven, others = asking.prompt("?").start(), iter(("dog", "cat", "eel"))
    while (step := driven.next()) is not None:
        if isinstance(step, ExecuteTools):
            other, _ = client(advisor, "done", tools=zoo(next(others)))
            other.prompt("?").call()
        driven.perform(step)
    assert offered(model.requests[-1]) == [SEARCH, "feed_ant", "feed_yak", "feed_bee"]


class Interrupted(CountingIndex):
    """Does something else in the middle of its first search."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self._other = other

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        if not self.searched:
            self.searched.append((query, max_results))
            self._other()
        return super().search(query, max_results)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_search_finds_the_tools_of_a_catalogue_that_is_evicted_meanwhile(mode: str, by_hand: bool) -> None:
    def another_run(animal: str = "yak") -> None:
        other, _ = client(advisor, "done", tools=zoo(animal))
        other.prompt("?").call()

    index = Interrupted(lambda: advisor.evict_catalogues() if by_hand else another_run())
    advisor = searching(index, catalogue_eviction=Lru(1))
    asking, model = client(advisor, looks("ant"), "done", tools=zoo("ant", "bat"))
    run(mode, asking.prompt("?"))
    assert offered(model.requests[1]) == [SEARCH, "feed_ant"]
    another_run("zebra")
    assert [each.name for each in index.search("", 100)] == ["feed_zebra"]


def test_catalogues_are_evicted_by_hand() -> None:
    index = CountingIndex()
    advisor = searching(index)
    discover(advisor, "ant", conversation_id="a")
    advisor.evict_catalogues()
    assert [len(each) for each in index.removed] == [70]
    assert discovered(advisor, conversation_id="a") == ["feed_ant"]
    assert len(index.added) == 2


def test_two_tools_with_one_name_and_other_definitions_are_both_found_by_those_who_have_them() -> None:
    advisor = searching()
    for description, query in (("Feed the ant.", "ant"), ("Wash the elephant.", "elephant")) * 2:
        asking, model = client(advisor, looks(query), "done", tools=[feeding("it", description=description)])
        asking.prompt("?").call()
        assert offered(model.requests[1]) == [SEARCH, "feed_it"]


def test_entries_that_an_index_has_from_elsewhere_hide_no_tool() -> None:
    index = CountingIndex()
    index.add([feeding(f"aa_{number}").definition for number in range(200)])
    asking, model = client(searching(index), looks("feed", max_results=2), "done", tools=zoo("yak", "zebra"))
    asking.prompt("?").call()
    assert offered(model.requests[1]) == [SEARCH, "feed_yak", "feed_zebra"]
    assert [wanted for _, wanted in index.searched] == [2, 8, 32, 128, 512]


# Memory.


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_forgotten_when_the_conversation_is_trimmed(mode: str, place: str) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=2), order=PLACES[place])
    advisor = searching()
    turns = [looks("ant"), feeds("ant"), "one", "two", "three", feeds("ant"), "four"]
    asking, model = client(advisor, *turns, advisors=[memory])
    for _ in range(4):
        response = run(mode, asking.prompt("?", conversation_id="c"))
    assert response.content == "four"
    assert [offered(each) for each in model.requests[1:]] == [[SEARCH, "feed_ant"]] * 6
    assert "fed the ant 1 g" in results_in(response.messages)


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_that_keeps_no_history_forgets_nothing(mode: str) -> None:
    asking, model = client(searching(keep_history=False), looks("ant"), looks("yak"), feeds("ant"), "done")
    run(mode, asking.prompt("?"))
    assert offered(model.requests[-1]) == [SEARCH, "feed_ant", "feed_yak"]


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_of_a_client_with_memory_inside_searches(mode: str) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=3), order=400)
    model = ScriptedChatModel([looks("ant"), feeds("ant"), "done", "again"])
    asking = ChatClient(model, tools=zoo(), tool_calling_advisor=searching(), advisors=[memory])
    for _ in range(2):
        run(mode, asking.prompt("?", conversation_id="c"))
    assert offered(model.requests[-1]) == [SEARCH, "feed_ant"]


# Approvals, and runs that are resumed.


def paying(animal: str) -> list[Any]:
    """The zoo, in which the tool of one animal requires approval."""
    return [*zoo(), feeding(animal, metadata=ToolMetadata(requires_approval=True))]


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_is_offered_again_what_was_discovered(mode: str) -> None:
    tools = paying("panda")
    first = searching()
    discover(first, "yak", conversation_id="c")
    asking, _ = client(first, looks("panda"), [feeds("panda", id="p"), looks("ant", id="l")], tools=tools)
    response = run(mode, asking.prompt("?", conversation_id="c"))
    assert [each.call_id for each in response.pending] == ["p"]
    other, model = client(searching(), "done", tools=tools)
    assert response.state is not None
    resumed = run(mode, other.resume(response.state, {"p": Approve()}))
    assert resumed.content == "done"
    assert resumed.tool_results[0].content == "fed the panda 1 g"
    assert offered(model.requests[0]) == [SEARCH, "feed_yak", "feed_panda", "feed_ant"]
    assert discovered(searching(), conversation_id="c") == []


@pytest.mark.parametrize("mode", MODES)
def test_an_undiscovered_tool_that_waits_for_approval_runs_after_the_run_is_resumed(mode: str) -> None:
    tools = paying("panda")
    asking, _ = client(searching(), feeds("panda", id="p"), tools=tools)
    response = run(mode, asking.prompt("?"))
    other, model = client(searching(), "done", tools=tools)
    assert response.state is not None
    resumed = run(mode, other.resume(response.state, {"p": Approve()}))
    assert resumed.tool_results[0].content == "fed the panda 1 g"
    assert offered(model.requests[0]) == [SEARCH, "feed_panda"]


@pytest.mark.parametrize("mode", MODES)
def test_a_search_that_waits_for_approval_is_resumed(mode: str) -> None:
    policy = Policy([Rule("ask", tool=SEARCH, then="require_approval")], default="allow")
    asking, _ = client(searching(), looks("ant", id="l"), advisors=[PolicyAdvisor(policy)])
    response = run(mode, asking.prompt("?"))
    assert [each.tool for each in response.pending] == [SEARCH]
    other, model = client(searching(), "done", advisors=[PolicyAdvisor(policy)])
    assert response.state is not None
    assert run(mode, other.resume(response.state, {"l": Approve()})).content == "done"
    assert offered(model.requests[0]) == [SEARCH, "feed_ant"]


def test_a_run_that_pauses_twice_carries_on_what_was_discovered() -> None:
    tools = paying("panda")
    asking, _ = client(searching(), looks("ant"), feeds("panda", id="p"), tools=tools)
    first = asking.prompt("?").call()
    going_on, _ = client(searching(), looks("yak"), feeds("panda", id="q"), tools=tools)
    second = going_on.resume(first.state or "", {"p": Approve()}).call()
    last, model = client(searching(), "done", tools=tools)
    last.resume(second.state or "", {"q": Approve()}).call()
    assert offered(model.requests[0]) == [SEARCH, "feed_ant", "feed_panda", "feed_yak"]


def test_a_tool_that_is_gone_when_a_run_is_resumed_is_not_offered() -> None:
    tools = paying("panda")
    asking, _ = client(searching(), looks("ant"), feeds("panda", id="p"), tools=tools)
    response = asking.prompt("?").call()
    other, model = client(searching(), "done", tools=[each for each in tools if each.definition.name != "feed_ant"])
    other.resume(response.state or "", {"p": Approve()}).call()
    assert offered(model.requests[0]) == [SEARCH, "feed_panda"]


RESUMING = """
import sys
from pathlib import Path
from tests.search.searching import client, offered, searching
from tests.search.test_sessions import paying
from traced_tools import Approve
from traced_tools.approvals import PendingStore

with PendingStore(sys.argv[2]) as store:
    resuming, model = client(searching(), "done", tools=paying("panda"), pending_store=store)
    state = Path(sys.argv[1]).read_text()
    assert resuming.resume(state, {"p": Approve(by="ana")}).call().content == "done"
print(*offered(model.requests[0]))
"""


@pytest.mark.slow
def test_another_process_that_resumes_a_run_offers_what_was_discovered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pending.db'}"
    advisor = searching()
    discover(advisor, "yak", conversation_id="c")
    with PendingStore(url) as store:
        asking, _ = client(advisor, looks("panda"), feeds("panda", id="p"), tools=paying("panda"), pending_store=store)
        response = asking.prompt("?", conversation_id="c").call()
    (tmp_path / "state").write_text(response.state or "")
    done = subprocess.run(
        [sys.executable, "-c", RESUMING, str(tmp_path / "state"), url],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [SEARCH, "feed_yak", "feed_panda"], done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_held_searches_once_its_calls_are_decided(mode: str) -> None:
    tools, manager = paying("panda"), ToolCallingManager(hold="batch")
    asking, _ = client(searching(manager=manager), [feeds("panda", id="p"), looks("ant", id="l")], tools=tools)
    response = run(mode, asking.prompt("?"))
    assert {each.call_id for each in response.pending} == {"p", "l"}
    other, model = client(searching(manager=manager), "done", tools=tools)
    run(mode, other.resume(response.state or "", {"p": Approve(), "l": Approve()}))
    assert offered(model.requests[0]) == [SEARCH, "feed_panda", "feed_ant"]


def test_the_driver_of_a_run_denies_a_search() -> None:
    asking, model = client(searching(), looks("ant", id="l"), "done")
    driven = asking.prompt("?").start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.deny("l", "not now")
        driven.perform(step)
    assert offered(model.requests[1]) == [SEARCH]
    assert model.requests[0].messages == (UserMessage("?"),)
