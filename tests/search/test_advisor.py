"""The tool loop that searches: what the model is offered, what it finds, and what it calls without having found it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from threading import Event, Thread
from typing import Any

import pytest
from pydantic import BaseModel

from tests.modes import MODES, run, run_chunks
from tests.search.searching import (
    SEARCH,
    ZOO,
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
from tests.waiting import PATIENCE
from traced_tools import (
    Advisor,
    AssistantMessage,
    CacheToolAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    EvaluationAdvisor,
    LoopLimits,
    Policy,
    PolicyAdvisor,
    Rule,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSearchToolCallingAdvisor,
    UserMessage,
    tool,
)
from traced_tools.core import ToolErrors, ToolMetadata, ToolResultPart
from traced_tools.errors import ToolDefinitionError, ToolExecutionError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatRequest
from traced_tools.models.model_call import call_model
from traced_tools.search import KeywordToolIndex, RegexToolIndex, ToolIndex, ToolMatch
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

# What the model is offered.


@pytest.mark.parametrize("index", [RegexToolIndex, KeywordToolIndex])
@pytest.mark.parametrize("mode", MODES)
def test_the_model_first_sees_the_search_tool_and_then_what_it_finds(mode: str, index: type[RegexToolIndex]) -> None:
    asking, model = client(searching(index()), looks("feed the zebra", max_results=1), feeds("zebra", grams=2), "done")
    response = run(mode, asking.prompt("?"))
    assert response.content == "done"
    assert [offered(request) for request in model.requests] == [
        [SEARCH],
        [SEARCH, "feed_zebra"],
        [SEARCH, "feed_zebra"],
    ]
    assert results_in(response.messages) == ['["feed_zebra"]', "fed the zebra 2 g"]
    assert [(each.tool, each.decision) for each in response.tool_results] == [
        (SEARCH, "allowed"),
        ("feed_zebra", "allowed"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_tools_are_offered_in_the_order_of_discovery_and_never_reordered(mode: str) -> None:
    asking, model = client(
        searching(), looks("zebra"), [looks("yak"), looks("ant")], looks("zebra yak bat"), feeds("ape"), "done"
    )
    run(mode, asking.prompt("?"))
    seen = [offered(request) for request in model.requests]
    for earlier, later in pairwise(seen):
        assert later[: len(earlier)] == earlier
    assert seen[1] == [SEARCH, "feed_zebra"]
    assert {*seen[2][2:]} >= {"feed_yak", "feed_ant"}
    assert len({*seen[-1]}) == len(seen[-1])
    assert seen[-1][-1] == "feed_ape"


@pytest.mark.parametrize("mode", MODES)
def test_a_search_that_the_model_repeats_finds_what_it_found(mode: str) -> None:
    asking, model = client(searching(), *[looks("zebra yak")] * 6, [looks("zebra yak"), looks("zebra yak")], "done")
    results = run(mode, asking.prompt("?", conversation_id="c")).tool_results
    assert [(each.decision, each.content) for each in results] == [("allowed", '["feed_yak","feed_zebra"]')] * 8
    again = asking.replace(model=ScriptedChatModel([looks("zebra yak"), "done"]))
    (result,) = run(mode, again.prompt("?", conversation_id="c")).tool_results
    assert result.content == '["feed_yak","feed_zebra"]'
    assert all(offered(request) == [SEARCH, "feed_yak", "feed_zebra"] for request in model.requests[1:])


@pytest.mark.parametrize("mode", MODES)
def test_what_an_advisor_answers_a_search_with_is_offered_as_well(mode: str) -> None:
    cache = CacheToolAdvisor("*")
    for conversation in ("a", "b"):
        asking, model = client(searching(), looks("zebra"), feeds("zebra"), "done", advisors=[cache])
        found, fed = run(mode, asking.prompt("?", conversation_id=conversation)).tool_results
        assert (found.content, fed.content) == ('["feed_zebra"]', "fed the zebra 1 g")
        assert offered(model.requests[1]) == [SEARCH, "feed_zebra"]


def test_a_search_that_finds_nothing_says_so_and_offers_nothing() -> None:
    asking, model = client(searching(), looks("telescope"), "done")
    response = asking.prompt("?").call()
    assert "No tool fits" in results_in(response.messages)[0]
    assert offered(model.requests[1]) == [SEARCH]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_the_model_calls_without_having_found_it_runs_and_is_offered(mode: str) -> None:
    asking, model = client(searching(), [feeds("owl"), looks("hen", max_results=1)], "done")
    response = run(mode, asking.prompt("?"))
    assert results_in(response.messages) == ["fed the owl 1 g", '["feed_hen"]']
    assert offered(model.requests[1]) == [SEARCH, "feed_owl", "feed_hen"]


@pytest.mark.parametrize("mode", MODES)
def test_a_name_of_no_tool_is_answered_and_not_discovered(mode: str) -> None:
    asking, model = client(searching(), ToolCall("feed_dragon"), "done")
    response = run(mode, asking.prompt("?"))
    assert response.tool_results[0].decision == "unknown_tool"
    assert offered(model.requests[1]) == [SEARCH]


def test_a_client_without_tools_offers_no_search_tool() -> None:
    asking, model = client(searching(), "done", tools=[])
    assert asking.prompt("?").call().content == "done"
    assert offered(model.requests[0]) == []


def test_the_tools_of_a_request_are_what_it_searches() -> None:
    asking, model = client(searching(), looks("feed", max_results=10), "done")
    asking.prompt("?", tools=zoo("ant", "bat")).call()
    assert {*offered(model.requests[1])} == {SEARCH, "feed_ant", "feed_bat"}


def test_tools_of_a_provider_are_searched() -> None:
    class Provider:
        def tool_callbacks(self) -> Any:
            return zoo("ant")

    asking, model = client(searching(), looks("ant"), "done", tools=[Provider()])
    asking.prompt("?").call()
    assert offered(model.requests[1]) == [SEARCH, "feed_ant"]


def test_a_tool_that_must_be_called_is_offered_at_once() -> None:
    asking, model = client(searching(), "done")
    asking.prompt("?", options=ChatOptions(tool_choice="feed_elk")).call()
    assert offered(model.requests[0]) == [SEARCH, "feed_elk"]


def test_a_loop_without_tool_calling_has_no_search() -> None:
    asking, model = client(searching(), "done")
    asking.prompt("?", tool_calling=False).call()
    assert {*offered(model.requests[0])} == ZOO


@pytest.mark.parametrize("mode", MODES)
def test_the_concluding_call_of_a_limit_offers_no_tools(mode: str) -> None:
    asking, model = client(searching(), looks("ant"), "done", limits=LoopLimits(max_iterations=1))
    response = run(mode, asking.prompt("?"))
    assert (response.stop_reason, response.content) == ("max_iterations", "done")
    assert offered(model.requests[1]) == []


# The search tool.


def test_the_schema_of_the_search_tool_has_its_parameters_and_no_context() -> None:
    asking, model = client(searching(max_results=3), "done")
    asking.prompt("?").call()
    [definition] = model.requests[0].tools
    schema = definition.input_schema
    assert {*schema["properties"]} == {"query", "max_results"}
    assert schema["required"] == ["query"]
    limit = schema["properties"]["max_results"]
    assert (limit["default"], limit["minimum"], limit["maximum"]) == (3, 1, 10)


@pytest.mark.parametrize(
    ("configured", "asked", "found"), [(3, None, 3), (3, 7, 7), (3, 0, 1), (3, -5, 1), (3, 99, 10), (12, 99, 12)]
)
def test_the_models_limit_beats_the_configured_one_and_is_clamped_to_the_schema(
    configured: int, asked: int | None, found: int
) -> None:
    index = CountingIndex()
    arguments = {} if asked is None else {"max_results": asked}
    asking, _ = client(searching(index, max_results=configured), looks("feed", **arguments), "done")
    response = asking.prompt("?").call()
    assert len(json.loads(results_in(response.messages)[0])) == found
    assert index.searched == [("feed", found)]


@pytest.mark.parametrize("mode", MODES)
def test_a_search_that_fails_is_answered_as_the_error_of_a_tool(mode: str) -> None:
    asking, model = client(searching(CountingIndex(failing_searches=1)), looks("ant"), looks("ant"), "done")
    response = run(mode, asking.prompt("?"))
    assert [each.outcome for each in response.tool_results] == ["error", "ok"]
    assert response.tool_results[0].error_type == "ConnectionError"
    assert offered(model.requests[1]) == [SEARCH]
    assert offered(model.requests[2]) == [SEARCH, "feed_ant"]


def test_a_policy_for_errors_of_tools_applies_to_the_search() -> None:
    errors = ToolErrors(always_raise=True)
    asking, _ = client(searching(CountingIndex(failing_searches=1)), looks("ant"), tool_errors=errors)
    with pytest.raises(ToolExecutionError):
        asking.prompt("?").call()


@pytest.mark.parametrize("mode", MODES)
def test_an_index_that_cannot_be_filled_is_filled_by_the_next_search(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = CountingIndex(failing_adds=2)
    asking, _ = client(searching(index), looks("ant"), looks("ant"), "done")
    response = run(mode, asking.prompt("?"))
    assert [each.outcome for each in response.tool_results] == ["error", "ok"]
    assert len(index.added) == 3
    assert "could not index the tools (ConnectionError)" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("text", ["No tool fits.", "", "{", "3", '{"a": 1}', "[1, null]", '["feed_dragon"]'])
def test_a_search_that_is_answered_with_any_other_text_discovers_nothing(text: str) -> None:
    class Answering(Advisor):
        name, order = "answering", 400

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            return call.answered(text)

    asking, model = client(searching(), looks("ant"), "done", advisors=[Answering()])
    response = asking.prompt("?").call()
    assert offered(model.requests[1]) == [SEARCH]
    going_on, model = client(searching(), "done")
    going_on.prompt("?", messages=response.messages).call()
    assert offered(model.requests[0]) == [SEARCH]


def test_policies_and_limits_apply_to_the_search() -> None:
    policy = PolicyAdvisor(Policy([Rule("feeding", tool="feed_*", then="allow")], default="deny"))
    asking, _ = client(searching(), looks("ant"), feeds("ant"), "done", advisors=[policy])
    assert [each.decision for each in asking.prompt("?").call().tool_results] == ["denied", "allowed"]
    reads = PolicyAdvisor(Policy([Rule("reads", annotations={"read_only": True}, then="allow")], default="deny"))
    asking, _ = client(searching(), looks("ant"), feeds("ant"), "done", advisors=[reads])
    assert [each.decision for each in asking.prompt("?").call().tool_results] == ["allowed", "denied"]
    limits = LoopLimits(max_calls_per_tool=1, on_limit="stop")
    asking, _ = client(searching(), [looks("ant"), looks("bat")], limits=limits)
    assert asking.prompt("?").call().stop_reason == "max_calls_per_tool"


def test_the_search_tool_can_have_another_name() -> None:
    @tool
    def search_tools(query: str) -> str:
        """Search my tools."""
        return "mine"

    asking, _ = client(searching(), "done", tools=[search_tools])
    with pytest.raises(ToolDefinitionError, match="pass another tool_name= to tool_search"):
        asking.prompt("?").call()
    other = searching(tool_name="find")
    asking, model = client(other, ToolCall("find", {"query": "search"}), "done", tools=[search_tools, feeding("ant")])
    asking.prompt("?").call()
    assert offered(model.requests[1]) == ["find", "search_tools"]


def test_the_search_tool_works_only_in_a_run() -> None:
    [search] = searching().own_tools
    with pytest.raises(RuntimeError, match="only in a run"):
        search.call('{"query": "ant"}')


def test_an_index_whose_search_is_a_flow_asks_a_model_of_the_run() -> None:
    class Asking(RegexToolIndex):
        async def search_in_run(self, run: Any, query: str, max_results: int = 5) -> list[ToolMatch]:
            response = await call_model(run, judge, ChatRequest([UserMessage(query)]), ChatClientRequest((), run=run))
            return [ToolMatch(response.message.text, 1.0)]

    for mode in MODES:
        judge = ScriptedChatModel(["feed_yak"])
        asking, model = client(searching(Asking()), looks("big"), "done")
        assert run(mode, asking.prompt("?")).content == "done"
        assert offered(model.requests[1]) == [SEARCH, "feed_yak"]


# The hooks.


def test_the_advisor_is_a_tool_loop_of_its_own_name_at_the_place_of_the_loop() -> None:
    advisor = searching()
    assert (advisor.name, advisor.order, advisor.keep_history) == ("tool_search", 300, True)
    assert searching(order=310).order == 310


def test_a_subclass_adds_tools_and_instructions_in_its_hooks() -> None:
    class Loop(ToolSearchToolCallingAdvisor):
        async def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
            request = await super().initialize(request)
            return request.replace(tools=(*request.tools, feeding("ox")))

        def before(self, request: ChatClientRequest) -> ChatClientRequest:
            request = super().before(request)
            return request.replace(messages=(*request.messages, UserMessage(f"pass {request.iteration}")))

    asking, model = client(Loop(index=RegexToolIndex()), looks("ant"), feeds("ox"), "done")
    response = asking.prompt("?").call()
    assert offered(model.requests[2]) == [SEARCH, "feed_ox", "feed_ant"]
    assert results_in(response.messages) == ['["feed_ant"]', "fed the ox 1 g"]
    assert model.requests[1].messages[-1] == UserMessage("pass 2")


def test_a_tool_that_an_inner_advisor_withholds_stays_withheld() -> None:
    class Withholding(Advisor):
        name, order = "withholding", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            left = [each for each in request.tools if each.definition.name != "feed_ant"]
            return await call_next(request.replace(tools=left))

    asking, model = client(searching(), looks("ant"), feeds("ant"), "done", advisors=[Withholding()])
    response = asking.prompt("?").call()
    assert response.tool_results[1].decision == "unknown_tool"
    assert offered(model.requests[2]) == [SEARCH]


def test_an_outer_advisor_that_runs_the_loop_again_keeps_what_was_discovered() -> None:
    scores = iter([0.0, 1.0])
    asking, model = client(
        searching(), looks("ant"), "bad", "good", advisors=[EvaluationAdvisor(lambda response: next(scores))]
    )
    assert asking.prompt("?").call().content == "good"
    assert offered(model.requests[2]) == [SEARCH, "feed_ant"]


@pytest.mark.parametrize(
    ("system", "expected"),
    [("Be brief.", "Be brief.\n\nSearch first."), (None, "Search first.")],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_suffix_is_appended_to_the_system_message(mode: str, system: str | None, expected: str) -> None:
    asking, model = client(searching(system_suffix="Search first."), looks("ant"), "done", "again", system=system)
    response = run(mode, asking.prompt("?"))
    systems = [[each.text for each in req.messages if isinstance(each, SystemMessage)] for req in model.requests]
    assert systems == [[expected], [expected]]
    asking.replace(system=None).prompt("?", messages=response.messages).call()
    assert [each.text for each in model.requests[2].messages if isinstance(each, SystemMessage)] == [expected]


# Other features of the loop.


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_has_the_text_and_no_chunk_of_a_search(mode: str) -> None:
    asking, _ = client(searching(), ["let me look", looks("ant")], feeds("ant"), "all done")
    response, chunks = run_chunks(mode, asking.prompt("?"))
    assert response.content == "all done"
    assert "".join(chunk.text for chunk in chunks) == "let me lookall done"
    assert not any(chunk.tool_calls for chunk in chunks)


class Report(BaseModel):
    fed: int


@pytest.mark.parametrize("mode", MODES)
def test_structured_output_is_asked_for_again_with_the_same_tools(mode: str) -> None:
    asking, model = client(searching(), looks("ant"), "not json", '{"fed": 3}')
    assert run(mode, asking.prompt("?", output=Report)).output == Report(fed=3)
    assert [offered(request) for request in model.requests[1:]] == [[SEARCH, "feed_ant"]] * 2


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_that_a_tool_asks_has_a_search_of_its_own(mode: str) -> None:
    inner_search = searching()
    inner, inner_model = client(inner_search, looks("bee"), feeds("bee"), "inner done", tools=zoo("bee", "cod"))

    @tool(description="Feed the fish of the aquarium by asking a keeper.")
    def ask_keeper() -> str:
        return inner.prompt("feed").call().content

    outer, outer_model = client(
        searching(), looks("aquarium"), ToolCall("ask_keeper"), looks("ant"), "done", tools=[*zoo(), ask_keeper]
    )
    response = run(mode, outer.prompt("?"))
    assert "inner done" in results_in(response.messages)
    assert offered(inner_model.requests[-1]) == [SEARCH, "feed_bee"]
    assert offered(outer_model.requests[-1]) == [SEARCH, "ask_keeper", "feed_ant"]


def test_one_advisor_in_both_of_two_nested_agents_keeps_their_tools_apart() -> None:
    shared = searching()
    inner, inner_model = client(shared, looks("bee"), "inner done", tools=zoo("bee", "cod"), name="keeper")

    @tool(description="Ask the keeper.")
    def ask_keeper() -> str:
        return inner.prompt("feed", conversation_id="c").call().content

    outer, outer_model = client(shared, looks("keeper"), ToolCall("ask_keeper"), "done", tools=[ask_keeper])
    outer.prompt("?", conversation_id="c").call()
    assert offered(outer_model.requests[-1]) == [SEARCH, "ask_keeper"]
    assert offered(inner_model.requests[-1]) == [SEARCH, "feed_bee"]


def test_a_run_that_the_caller_drives_searches() -> None:
    asking, model = client(searching(), looks("ant", id="1"), "done")
    driven = asking.prompt("?").start()
    seen = []
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            seen.append(step.args("1"))
        driven.perform(step)
    assert driven.response.content == "done"
    assert seen == [{"query": "ant", "max_results": 5}]
    assert offered(model.requests[1]) == [SEARCH, "feed_ant"]


@pytest.mark.slow
def test_many_threads_and_tasks_share_one_advisor() -> None:
    index = CountingIndex()
    advisor, animals = searching(index), [name.removeprefix("feed_") for name in sorted(ZOO)][:20]

    def one(animal: str) -> tuple[ChatClient, ScriptedChatModel]:
        return client(advisor, looks(animal, max_results=1), feeds(animal), "done")

    clients = {animal: one(animal) for animal in animals}
    threads = [Thread(target=clients[animal][0].prompt("?", conversation_id=animal).call) for animal in animals[:10]]
    for thread in threads:
        thread.start()

    async def tasks() -> None:
        await asyncio.gather(
            *(clients[animal][0].prompt("?", conversation_id=animal).acall() for animal in animals[10:])
        )

    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    for animal, (_, model) in clients.items():
        assert offered(model.requests[-1]) == [SEARCH, f"feed_{animal}"]
    assert len(index.added) == 1


# Arguments.


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ToolSearchToolCallingAdvisor(), TypeError, "index"),
        (lambda: ToolSearchToolCallingAdvisor(index=None), TypeError, "index must be a ToolIndex"),
        (lambda: ToolSearchToolCallingAdvisor(index=RegexToolIndex), TypeError, "pass an instance"),
        (lambda: searching(max_results=0), ValueError, "max_results must be at least 1"),
        (lambda: searching(eviction=5), TypeError, "eviction must be an Eviction"),
        (lambda: searching(catalogue_eviction="lru"), TypeError, "catalogue_eviction must be an Eviction"),
        (lambda: searching(system_suffix=" "), ValueError, "system_suffix must not be blank"),
        (lambda: searching(tool_name=7), TypeError, "tool_name must be a str"),
    ],
)
def test_an_invalid_argument_is_refused(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_the_repr_shows_the_kind_of_index_and_no_content() -> None:
    assert repr(searching()) == "<ToolSearchToolCallingAdvisor regex: 0 sessions, order 300>"


def test_any_subclass_of_the_index_protocol_works() -> None:
    class Fixed(ToolIndex):
        kind = "fixed"

        def add(self, tools: Any) -> None: ...

        def remove(self, names: Any) -> None: ...

        def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
            return [ToolMatch("unknown", 9.0), ToolMatch("feed_elk", 1.0)]

    asking, model = client(ToolSearchToolCallingAdvisor(index=Fixed()), looks("x"), "done")
    asking.prompt("?").call()
    assert offered(model.requests[1]) == [SEARCH, "feed_elk"]


def test_names_in_a_conversation_that_the_caller_continues_are_offered_at_once() -> None:
    found = ToolMessage([ToolResultPart(call_id="1", name=SEARCH, content='["feed_elk","feed_dragon"]')])
    earlier = [UserMessage("?"), AssistantMessage([looks("elk", id="1")]), found]
    earlier += [AssistantMessage([feeds("yak", id="2")])]
    earlier += [ToolMessage([ToolResultPart(call_id="2", name="feed_yak", content="fed")])]
    asking, model = client(searching(), "done")
    asking.prompt("and now?", messages=earlier).call()
    assert offered(model.requests[0]) == [SEARCH, "feed_elk", "feed_yak"]


class Turns(RegexToolIndex):
    """Ends the search for the first of two words only after the other one."""

    def __init__(self, first: str) -> None:
        super().__init__()
        self._first, self._other = first, Event()

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        if query == self._first:
            assert self._other.wait(PATIENCE)
        else:
            self._other.set()
        return super().search(query, max_results)


@pytest.mark.parametrize("mode", MODES)
def test_searches_of_one_answer_are_discovered_in_the_order_of_the_calls_whichever_ends_first(mode: str) -> None:
    asking, model = client(searching(Turns("yak")), [looks("yak"), looks("ant", max_results=1)], "done")
    run(mode, asking.prompt("?"))
    assert offered(model.requests[1]) == [SEARCH, "feed_yak", "feed_ant"]


@pytest.mark.parametrize("mode", MODES)
def test_what_the_last_answer_of_a_run_finds_is_known_in_the_next_run(mode: str) -> None:
    direct = feeding("panda", metadata=ToolMetadata(return_direct=True))
    limits = LoopLimits(max_iterations=1, on_limit="stop")
    asking, model = client(searching(), [looks("ant"), feeds("panda")], "done", tools=[*zoo(), direct], limits=limits)
    assert run(mode, asking.prompt("?", conversation_id="c")).stop_reason == "max_iterations"
    run(mode, asking.prompt("?", conversation_id="c"))
    assert offered(model.requests[1]) == [SEARCH, "feed_panda", "feed_ant"]
