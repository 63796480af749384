"""A run that pauses during an attempt goes on as if it had not paused: corrections, judged answers, approvals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from tests.modes import MODES, run
from tests.sweeps import sweep
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    EvaluationAdvisor,
    LoopLimits,
    MemoryAdvisor,
    OutputValidationError,
    ToolCall,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.core import Evaluation, Undecided
from traced_tools.errors import ResumeError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.testing import ScriptedChatModel


class Person(BaseModel):
    name: str


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(requires_approval=True)
def ship(to: str) -> str:
    """Ship."""
    return f"shipped to {to}"


@tool
def look() -> str:
    """Look."""
    return "seen"


def pays(number: int) -> list[ToolCall]:
    return [ToolCall("pay", {"amount": number}, id=f"p{number}")]


LOOKS = ToolCall("look", {}, id="l")
SCORES = {"bad": 0.2, "better": 0.4, "worse": 0.1, "good": 0.9}
SCORES |= {'{"name": "Al"}': 0.2, '{"name": "Bo"}': 0.3, '{"name": "Di"}': 0.9}


def judged(response: ChatClientResponse) -> Evaluation:
    return Evaluation(SCORES.get(response.content, 0.0), feedback="Better.")


def strict(response: ChatClientResponse) -> float:
    return float(response.content == "good")


@dataclass
class Ended:
    """How a conversation ended, and what its model was sent."""

    outcome: Any
    attempts: list[Any]
    pauses: int


@dataclass
class Script:
    """What a model says, and how it is asked.

    Attributes:
        turns: what the model says.
        advisors: returns the advisors.
        prompt: the settings of the request.
        limits: the limits of the run.
    """

    turns: list[Any]
    advisors: Callable[[], list[Advisor]] = list
    prompt: Mapping[str, Any] | None = None
    limits: LoopLimits = field(default_factory=lambda: LoopLimits(max_iterations=20))


def remembering(order: int) -> Advisor:
    return MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=order)


PERSON = {"output": Person}
SCRIPTS = {
    "a first answer": Script([pays(1), "nobody", '{"name": "Al"}'], prompt=PERSON),
    "a correction": Script(["nobody", pays(1), "x", pays(2), '{"name": "Al"}'], prompt=PERSON),
    "tools and a correction": Script([[LOOKS], "nobody", [LOOKS], pays(1), '{"name": "Al"}'], prompt=PERSON),
    "two pauses in a correction": Script(["nobody", pays(1), pays(2), '{"name": "Al"}'], prompt=PERSON),
    "no valid answer": Script(["a", pays(1), "b", pays(2), "c", "never"], prompt=PERSON),
    "a limit after a correction": Script(
        ["a", pays(1), "never"], prompt=PERSON, limits=LoopLimits(max_iterations=2, on_limit="stop")
    ),
    "a limit with a conclusion": Script(["a", pays(1), '{"name": "Al"}'], prompt=PERSON, limits=LoopLimits(2)),
    "a judged answer": Script(["bad", pays(1), "good"], lambda: [EvaluationAdvisor(judged)]),
    "the best answer before a pause": Script(["better", pays(1), "bad", "worse"], lambda: [EvaluationAdvisor(judged)]),
    "equal answers": Script(["bad", pays(1), "bad", pays(2), "bad"], lambda: [EvaluationAdvisor(judged)]),
    "the best answer and a limit": Script(
        ["better", pays(1), "never"], lambda: [EvaluationAdvisor(judged)], limits=LoopLimits(2, on_limit="stop")
    ),
    "a judged answer and a conclusion": Script(
        ["bad", pays(1), "better", "never"], lambda: [EvaluationAdvisor(judged)], limits=LoopLimits(max_iterations=3)
    ),
    "two judges of one name": Script(
        ["bad", pays(1), "better", "bad", pays(2), "good"],
        lambda: [EvaluationAdvisor(judged, 0.3), EvaluationAdvisor(strict)],
    ),
    "judged outputs": Script(
        ["x", '{"name": "Bo"}', "y", pays(1), '{"name": "Al"}', pays(2), '{"name": "Cy"}'],
        lambda: [EvaluationAdvisor(judged)],
        prompt=PERSON,
    ),
    "outputs of judged answers": Script(
        ["bad", pays(1), "good", pays(2), '{"name": "Di"}'],
        lambda: [EvaluationAdvisor(judged, order=270, max_attempts=2)],
        prompt=PERSON,
    ),
    "memory outside": Script(
        ["a", pays(1), '{"name": "Al"}'], lambda: [remembering(200)], prompt={**PERSON, "conversation_id": "c"}
    ),
    "memory inside": Script(
        ["a", [LOOKS], pays(1), '{"name": "Al"}'],
        lambda: [remembering(400)],
        prompt={**PERSON, "conversation_id": "c"},
    ),
    "a judge around a memory": Script(
        ["bad", pays(1), "good"],
        lambda: [remembering(200), EvaluationAdvisor(judged, order=100)],
        prompt={"conversation_id": "c"},
    ),
}


def ended(mode: str, script: Script, *, pauses: bool) -> Ended:
    answered: list[Any] = []

    class Watching(Advisor):
        """Sees what the model is asked."""

        name, order = "watching", 600

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            answered.append([(each.role, str(getattr(each, "text", each))) for each in request.messages])
            return await call_next(request)

    approving = [] if pauses else [ApprovalAdvisor(lambda request: Approve(by="ana"))]
    client = ChatClient(
        ScriptedChatModel(script.turns),
        tools=[pay, look],
        advisors=[*script.advisors(), *approving, Watching()],
        limits=script.limits,
    )
    settings: dict[str, Any] = {**(script.prompt or {})}
    output = {"output": settings["output"]} if "output" in settings else {}
    spec, paused = client.prompt("?", **settings), 0
    while True:
        try:
            response = run(mode, spec)
        except OutputValidationError as error:
            messages, usage = error.response.messages, error.response.usage
            return Ended((error.attempts, error.problems, messages, usage, error.response.content), answered, paused)
        if not response.pending:
            validated = response.validated and response.validated.value
            scores = [(each.score, each.passed, each.feedback) for each in response.evaluations]
            outcome = (response.content, response.stop_reason, response.messages, response.usage, validated, scores)
            return Ended((*outcome, response.iteration), answered, paused)
        paused += 1
        assert response.state is not None
        spec = client.resume(response.state, {each.call_id: Approve(by="ana") for each in response.pending}, **output)


@sweep(mode=MODES, name=SCRIPTS)
def test_a_run_that_pauses_in_an_attempt_ends_as_one_that_does_not(mode: str, name: str) -> None:
    script = SCRIPTS[name]
    paused, whole = ended(mode, script, pauses=True), ended(mode, script, pauses=False)
    assert paused.pauses == sum(isinstance(turn, list) and turn[0].name == "pay" for turn in script.turns)
    assert whole.pauses == 0
    assert paused.outcome == whole.outcome
    assert paused.attempts == whole.attempts


# Approvals of more than one call.


class Asked:
    """Approves each payment with a scope, and decides about nothing else now.

    Attributes:
        calls: the ids of the calls that it was asked about.
    """

    def __init__(self, scope: Any = "run") -> None:
        self.calls: list[str] = []
        self._scope = scope

    def __call__(self, request: ApprovalRequest) -> Approve | Undecided:
        self.calls.append(request.call_id)
        return Approve(by="ana", scope=self._scope) if request.tool == "pay" else Undecided()


def shopping(asked: Callable[[ApprovalRequest], Any], *turns: Any, tools: Any = (pay, ship)) -> ChatClient:
    return ChatClient(ScriptedChatModel([*turns, "done"]), tools=tools, advisors=[ApprovalAdvisor(asked)])


def ships(number: int) -> ToolCall:
    return ToolCall("ship", {"to": "Eve"}, id=f"s{number}")


def resumed(mode: str, client: ChatClient, paused: ChatClientResponse) -> ChatClientResponse:
    assert paused.state is not None
    return run(mode, client.resume(paused.state, {each.call_id: Approve(by="bob") for each in paused.pending}))


@pytest.mark.parametrize("mode", MODES)
def test_an_approval_for_the_rest_of_the_run_outlives_its_pauses(mode: str) -> None:
    first, later = Asked(), Asked()
    paused = run(mode, shopping(first, pays(1), [ships(1)]).prompt("?", principal="ana"))
    again = resumed(mode, shopping(later, pays(2), [ships(2)]), paused)
    done = resumed(mode, shopping(later, pays(3)), again)
    assert done.content == "done"
    assert (first.calls, later.calls) == (["p1", "s1"], ["s2"])
    [paid] = [each for each in done.tool_results if each.tool == "pay"]
    assert (paid.decision, paid.by, paid.reason_code) == ("approved", "ana", "approval:p1")


@pytest.mark.parametrize("mode", MODES)
def test_an_approval_for_the_rest_of_the_run_covers_a_call_that_waited_beside_it(mode: str) -> None:
    def once(request: ApprovalRequest) -> Approve | Undecided:
        return Approve(scope="run") if request.call_id == "p1" else Undecided()

    paused = run(mode, shopping(once, [*pays(2), *pays(1)]).prompt("?"))
    assert [each.call_id for each in paused.pending] == ["p2"]
    assert paused.state is not None
    later = Asked("call")
    assert run(mode, shopping(later).resume(paused.state)).content == "done"
    assert later.calls == []


@pytest.mark.parametrize("mode", MODES)
def test_an_approval_for_the_rest_of_the_run_is_for_the_definition_that_was_approved(mode: str) -> None:
    @tool(name="pay", requires_approval=True)
    def changed(amount: int, currency: str = "EUR") -> str:
        """Pay."""
        return f"paid {amount} {currency}"

    paused = run(mode, shopping(Asked(), pays(1), [ships(1)]).prompt("?"))
    later = Asked("call")
    resumed(mode, shopping(later, pays(2), tools=[changed, ship]), paused)
    assert later.calls == ["p2"]


@pytest.mark.parametrize("mode", MODES)
def test_an_approval_for_the_rest_of_the_run_is_for_this_run_alone(mode: str) -> None:
    asked = Asked()
    paused = run(mode, shopping(asked, pays(1), [ships(1)]).prompt("?"))
    client = shopping(asked, pays(2))
    assert resumed(mode, client, paused).content == "done"
    run(mode, shopping(asked, pays(3)).prompt("?"))
    assert asked.calls == ["p1", "s1", "p3"]


@pytest.mark.parametrize("mode", MODES)
def test_each_approver_keeps_its_own_approvals(mode: str) -> None:
    def refuses(request: ApprovalRequest) -> Undecided:
        refused.append(request.call_id)
        return Undecided()

    refused: list[str] = []

    def client(*turns: Any) -> ChatClient:
        advisors = [ApprovalAdvisor(refuses), ApprovalAdvisor(Asked())]
        return ChatClient(ScriptedChatModel([*turns, "done"]), tools=[pay, ship], advisors=advisors)

    paused = run(mode, client(pays(1), [ships(1)]).prompt("?"))
    resumed(mode, client(pays(2)), paused)
    assert refused == ["p1", "s1", "p2"]


@pytest.mark.parametrize("scope", ["arguments", "tool"])
@pytest.mark.parametrize("mode", MODES)
def test_a_standing_approval_covers_a_resumed_run_and_other_runs(mode: str, scope: str) -> None:
    asked = Asked(scope)
    again = ToolCall("pay", {"amount": 1}, id="p2")
    client = shopping(asked, pays(1), [ships(1)], [again], "done", [again])
    paused = run(mode, client.prompt("?", principal="ana"))
    assert resumed(mode, client, paused).content == "done"
    run(mode, client.prompt("?", principal="ana"))
    assert asked.calls == ["p1", "s1"]


# What advisors keep.


class Counting(Advisor):
    """Counts the requests of a run, also those before a pause."""

    order = 100

    def __init__(self, name: str = "counting") -> None:
        self.name = name
        self.counts: dict[str, int] = {}

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self.counts[request.run.id] = self.counts.get(request.run.id, 0) + 1
        return await call_next(request)

    def paused_state(self, run: Any) -> Mapping[str, Any] | None:
        return {"count": self.counts[run.id], "text": "ü\ud800\0\\"}

    def restore(self, run: Any, state: Mapping[str, Any]) -> None:
        if state["text"] != "ü\ud800\0\\":
            raise ValueError(state["text"])
        self.counts[run.id] = state["count"]


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_gets_what_it_has_kept(mode: str) -> None:
    def client(*advisors: Advisor, key: str | None = "k" * 20) -> ChatClient:
        return ChatClient(
            ScriptedChatModel([pays(1), pays(2), "done"]), tools=[pay], advisors=advisors, approval_key=key
        )

    first = run(mode, client(Counting(), Counting("other")).prompt("?"))
    counting, other = Counting(), Counting("other")
    counts = [1]
    while first.pending:
        first = resumed(mode, client(counting, other), first)
        counts.append(counting.counts[first.run_id])
        assert other.counts[first.run_id] == counts[-1]
        if len(counts) == 3:
            break
    assert counts == [1, 2, 3]


def test_a_state_that_its_advisor_cannot_read_is_refused_and_not_spent(tmp_path: Any) -> None:
    class Picky(Counting):
        def restore(self, run: Any, state: Mapping[str, Any]) -> None:
            raise ValueError("a secret text")

    with PendingStore(tmp_path / "pending.db") as store:
        settings: dict[str, Any] = {"tools": [pay], "pending_store": store}
        paused = ChatClient(ScriptedChatModel([pays(1)]), advisors=[Counting()], **settings).prompt("?").call()
        picky = ChatClient(ScriptedChatModel(["done"]), advisors=[Picky()], **settings)
        with pytest.raises(ResumeError, match="'counting' cannot read what it has kept") as refused:
            resumed("call", picky, paused)
        assert "secret" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None
        client = ChatClient(ScriptedChatModel(["done"]), advisors=[Counting()], **settings)
        assert resumed("call", client, paused).content == "done"


def test_an_advisor_that_is_gone_leaves_what_it_has_kept_unread() -> None:
    invalid = ChatClient(ScriptedChatModel(["nobody", pays(1)]), tools=[pay])
    paused = invalid.prompt("?", output=Person).call()
    assert paused.state is not None
    client = ChatClient(ScriptedChatModel(["done"]), tools=[pay])
    assert client.resume(paused.state, {"p1": Approve()}).call().content == "done"
