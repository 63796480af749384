"""Agents that ask other agents in the same conversation: each has its own branch of the log."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed, logged, remembering, sent
from tests.modes import MODES, run
from traced_tools import ChatClient, MemoryAdvisor, ToolCall, ToolContext, tool
from traced_tools.errors import ConversationDenied
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.testing import ScriptedChatModel


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[OUTSIDE, INSIDE], ids=["outside", "inside"])
def order(request: pytest.FixtureRequest) -> int:
    place: int = request.param
    return place


class Team:
    """A main agent whose tool `ask` asks another agent in the same conversation."""

    def __init__(self, turns: list[Any], inner: dict[str, list[Any]], order: int) -> None:
        self.repository = InMemoryChatMemoryRepository()
        advisor = MemoryAdvisor(MessageWindowChatMemory(self.repository), order=order)
        self.models = {name: ScriptedChatModel(each) for name, each in inner.items()}
        self.clients = {
            name: ChatClient(model, name=name, advisors=[advisor], tools=[self.ask])
            for name, model in self.models.items()
        }
        self.model = ScriptedChatModel(turns)
        self.main = ChatClient(self.model, name="main", advisors=[advisor], tools=[self.ask])

    @tool
    def ask(self, agent: str, what: str, context: ToolContext) -> str:
        """Ask an agent."""
        return (
            self.clients[agent].prompt(what, conversation_id=context.conversation_id, tools=[self.ask]).call().content
        )


def ask(agent: str, what: str, id: str | None = None) -> ToolCall:
    return ToolCall("ask", {"agent": agent, "what": what}, id=id)


def test_an_inner_agent_writes_to_its_own_branch_and_sees_what_came_before(mode: str, order: int) -> None:
    team = Team(["Hi.", [ask("search", "Find it.")], "Here."], {"search": ["Found."]}, order)
    run(mode, team.main.prompt("I am Ana.", conversation_id="c", principal="ana"))
    run(mode, team.main.prompt("Where is it?", conversation_id="c", principal="ana"))
    assert sent(team.models["search"]) == ["user I am Ana.", "assistant Hi.", "user Where is it?", "user Find it."]
    kept = [(entry.turn, entry.branch, entry.agent) for entry in team.repository.read("c", principal="ana").entries[3:]]
    rounds = [(2, "", "main")] if order == INSIDE else []
    assert kept == [*rounds, (2, "search", "search"), (2, "search", "search"), *rounds, (2, "", "main")]


def test_the_main_agent_does_not_see_the_branches(mode: str, order: int) -> None:
    team = Team([[ask("search", "Find it.")], "Here.", "Bye."], {"search": ["Found."]}, order)
    run(mode, team.main.prompt("Where is it?", conversation_id="c"))
    run(mode, team.main.prompt("Thanks.", conversation_id="c"))
    rounds = ["call ask", "tool Found."] if order == INSIDE else []
    assert sent(team.model) == ["user Where is it?", *rounds, "assistant Here.", "user Thanks."]


def test_siblings_do_not_see_each_other(mode: str, order: int) -> None:
    calls = [ask("search", "Find it.", "1"), ask("price", "What is it?", "2")]
    team = Team([calls, "Here."], {"search": ["Found."], "price": ["Ten."]}, order)
    run(mode, team.main.prompt("Where is it?", conversation_id="c"))
    assert sent(team.models["search"]) == ["user Where is it?", "user Find it."]
    assert sent(team.models["price"]) == ["user Where is it?", "user What is it?"]


def test_an_inner_agent_does_not_see_what_the_outer_agent_adds_later(order: int) -> None:
    team = Team([[ask("search", "One.")], [ask("search", "Two.")], "Here."], {"search": ["1", "2"]}, order)
    team.main.prompt("Go.", conversation_id="c").call()
    first = ["user Go.", "user One."]
    later = ["call ask", "tool 1"] if order == INSIDE else []
    assert sent(team.models["search"], 0) == first
    assert sent(team.models["search"], 1) == ["user Go.", *later, "user One.", "assistant 1", "user Two."]


def test_an_inner_agent_of_an_inner_agent_sees_both(mode: str, order: int) -> None:
    inner = {"search": [[ask("price", "How much?")], "Found for ten."], "price": ["Ten."]}
    team = Team([[ask("search", "Find it.")], "Here."], inner, order)
    run(mode, team.main.prompt("Where is it?", conversation_id="c"))
    assert sent(team.models["price"]) == ["user Where is it?", "user Find it.", "user How much?"]
    branches = {entry.branch for entry in team.repository.read("c").entries}
    assert branches == {"", "search", "search.price"}
    assert logged(team.repository, branches=["search.price"]) == ["user How much?", "assistant Ten."]


def test_an_agent_with_a_dot_in_its_name_or_a_long_name_has_a_branch(order: int) -> None:
    names = ["v1.search", "x" * 256]
    team = Team([[ask(name, "Go.")] for name in names] + ["Done."], {name: ["Yes."] for name in names}, order)
    team.main.prompt("Go.", conversation_id="c").call()
    branches = {entry.branch for entry in team.repository.read("c").entries}
    assert branches == {"", "v1_search", "x" * 256}


def test_a_deep_chain_of_agents_has_branches_of_bounded_length(order: int) -> None:
    names = [f"{index}{'x' * 90}" for index in range(6)]
    inner = {name: [[ask(next_name, "Go.")], "Yes."] for name, next_name in itertools.pairwise(names)}
    team = Team([[ask(names[0], "Go.")], "Done."], {**inner, names[-1]: ["Yes."]}, order)
    team.main.prompt("Go.", conversation_id="c").call()
    branches = {entry.branch for entry in team.repository.read("c").entries}
    assert len(branches) == 7
    assert max(map(len, branches)) <= 256


def test_an_agent_in_another_conversation_has_no_branch(order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    inner, _ = remembering(["Found."], repository, order=order, name="search")

    @tool
    def search() -> str:
        """Search."""
        return inner.prompt("Find it.", conversation_id="other").call().content

    client, _ = remembering([[ToolCall("search")], "Here."], repository, order=order, tools=[search])
    client.prompt("Where is it?", conversation_id="c").call()
    assert [entry.branch for entry in repository.read("other").entries] == ["", ""]


def test_an_inner_agent_of_another_owner_is_refused(order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    inner, _ = remembering(["Never."], repository, order=order, name="search")
    errors: list[Exception] = []

    @tool
    def search() -> str:
        """Search."""
        try:
            return inner.prompt("Find it.", conversation_id="c", principal="bob").call().content
        except ConversationDenied as error:
            errors.append(error)
            raise

    client, model = remembering([[ToolCall("search")], "Sorry."], repository, order=order, tools=[search])
    client.prompt("Where is it?", conversation_id="c", principal="ana").call()
    assert len(errors) == 1
    assert_well_formed(model.requests[-1].messages)
