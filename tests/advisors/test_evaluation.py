"""An advisor has answers judged and asks again, in all four modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, STREAMING_MODES, run, run_chunks
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientResponse,
    ContentCapture,
    EvaluationAdvisor,
    LoopLimitExceeded,
    LoopLimits,
    OutputValidationError,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.advisors import ModelJudge
from traced_tools.core import Evaluation
from traced_tools.errors import EvaluationError
from traced_tools.observe import AnswerEvaluated, Event, names
from traced_tools.testing import ScriptedChatModel

SUM = ToolCall("add", {"a": 1, "b": 2})
BAD, WORSE, GOOD = "No.", "Never!", "Yes, please."


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def polite(response: ChatClientResponse) -> Evaluation:
    """Judge by the text of the answer."""
    scores = {BAD: 0.4, WORSE: 0.1, GOOD: 0.9}
    return Evaluation(scores[response.content], feedback="Say please.")


async def politely(response: ChatClientResponse) -> Evaluation:
    await asyncio.sleep(0)
    return polite(response)


def client(*turns: Any, judge: Any = polite, **settings: Any) -> tuple[ChatClient, ScriptedChatModel]:
    model = ScriptedChatModel(turns, usage=Usage(input_tokens=10, output_tokens=1))
    own = {name: settings.pop(name) for name in ("threshold", "max_attempts", "order") if name in settings}
    advisors = [EvaluationAdvisor(judge, **own), *settings.pop("advisors", ())]
    return ChatClient(model, advisors=advisors, **settings), model


def asked(model: ScriptedChatModel, index: int) -> list[str]:
    return [
        message.text if not isinstance(message, ToolMessage) else "(results)"
        for message in model.requests[index].messages
    ]


class Events(Advisor):
    """Keeps the evaluations that observers receive."""

    name, order, watches_deltas = "events", 500, False

    def __init__(self) -> None:
        self.seen: list[AnswerEvaluated] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, AnswerEvaluated):
            self.seen.append(event)


# Asking again.


@pytest.mark.parametrize("judge", [polite, politely], ids=["plain", "async"])
def test_an_answer_that_passes_is_returned_with_its_evaluation(mode: str, judge: Any) -> None:
    agent, model = client(GOOD, judge=judge)
    response = run(mode, agent.prompt("?"))
    (found,) = response.evaluations
    assert (response.content, len(model.requests)) == (GOOD, 1)
    assert (found.score, found.label, found.name, found.passed) == (0.9, "pass", judge.__name__, True)


def test_the_model_sees_its_answer_and_the_feedback_and_no_earlier_answer(mode: str) -> None:
    agent, model = client(WORSE, BAD, GOOD)
    response = run(mode, agent.prompt("May I?"))
    ask = (
        "The answer is not good enough:\n- polite: Say please.\nAnswer again in full, without mentioning this feedback."
    )
    assert response.content == GOOD
    assert asked(model, 1) == ["May I?", WORSE, ask]
    assert asked(model, 2) == ["May I?", BAD, ask]
    assert response.messages == (UserMessage("May I?"), AssistantMessage(GOOD))
    assert response.usage == Usage(input_tokens=30, output_tokens=3)


@pytest.mark.parametrize(
    ("turns", "best"), [([BAD, WORSE], BAD), ([WORSE, BAD], BAD), ([BAD, BAD], BAD), ([WORSE, BAD, WORSE], BAD)]
)
def test_the_best_answer_is_returned_if_none_passes(mode: str, turns: list[str], best: str) -> None:
    agent, model = client(*turns, max_attempts=len(turns))
    response, chunks = run_chunks(mode, agent.prompt("?"))
    assert (response.content, response.stop_reason, response.evaluations[0].passed) == (best, "answered", False)
    assert response.evaluations[0].label == "fail"
    assert response.messages == (UserMessage("?"), AssistantMessage(best))
    assert response.usage == Usage(input_tokens=10 * len(turns), output_tokens=len(turns))
    assert len(model.requests) == len(turns)
    if mode in STREAMING_MODES:
        assert shown(chunks) == best


def shown(chunks: list[ChatClientResponse]) -> str:
    """Return what a reader sees who clears the display where the answer restarts."""
    text = ""
    for chunk in chunks:
        text = chunk.text if chunk.delta is not None and chunk.delta.restarts else text + chunk.text
    return text


@pytest.mark.parametrize("order", [240, 400])
def test_a_stream_restarts_with_each_attempt(mode: str, order: int) -> None:
    agent, _ = client(WORSE, BAD, GOOD, order=order)
    response, chunks = run_chunks(mode, agent.prompt("?"))
    assert (response.content, response.evaluations[0].passed) == (GOOD, True)
    if mode in STREAMING_MODES:
        assert "".join(chunk.text for chunk in chunks) == WORSE + BAD + GOOD
        assert shown(chunks) == GOOD
        assert sum(chunk.delta is not None and chunk.delta.restarts for chunk in chunks) == 2


def test_an_attempt_without_a_loop_is_judged_as_well(mode: str) -> None:
    agent, _ = client(BAD, WORSE, max_attempts=2)
    response, chunks = run_chunks(mode, agent.prompt("?", tool_calling=False))
    assert response.content == BAD
    assert mode not in STREAMING_MODES or shown(chunks) == BAD


def test_a_caller_who_drives_the_run_performs_each_attempt_and_each_verdict() -> None:
    judge = ModelJudge(ScriptedChatModel(['{"feedback": "no", "score": 0}', '{"feedback": "", "score": 1}']), "kind")
    agent, _ = client(BAD, GOOD, judge=judge)
    driven, models = agent.prompt("?").start(), []
    while step := driven.next():
        models.append(type(step).__name__)
        driven.perform(step)
    assert models == ["CallModel"] * 4
    assert driven.response.content == GOOD


# What is judged.


def test_answers_that_call_tools_are_not_judged(mode: str) -> None:
    agent, model = client([BAD, SUM], BAD, [BAD, SUM], GOOD, tools=[add])
    response = run(mode, agent.prompt("?"))
    assert response.content == GOOD
    assert asked(model, 2)[:4] == ["?", BAD, "(results)", BAD]
    assert [each.role for each in response.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert len(response.tool_results) == 2


def test_the_best_of_several_answers_keeps_the_tool_calls_of_all_attempts(mode: str) -> None:
    agent, _ = client(BAD, SUM, WORSE, tools=[add], max_attempts=2)
    response = run(mode, agent.prompt("?"))
    assert response.content == BAD
    assert [each.role for each in response.messages] == ["user", "assistant", "tool", "assistant"]
    assert [each.content for each in response.tool_results] == ["3"]


def test_calls_for_the_caller_to_run_are_not_judged(mode: str) -> None:
    agent, _ = client(SUM, tools=[add])
    response = run(mode, agent.prompt("?", tool_calling=False))
    assert response.tool_calls
    assert response.evaluations == ()


def test_a_tools_direct_result_is_not_judged(mode: str) -> None:
    @tool(return_direct=True)
    def total() -> str:
        """Return the total."""
        return "3"

    agent, _ = client(BAD, ToolCall("total"), tools=[total])
    response = run(mode, agent.prompt("?"))
    assert (response.content, response.stop_reason, response.evaluations) == ("3", "return_direct", ())


@pytest.mark.parametrize("on_limit", ["conclude", "stop"])
def test_an_answer_at_a_limit_is_not_judged(mode: str, on_limit: Any) -> None:
    agent, _ = client([BAD, SUM], *[GOOD] * (on_limit == "conclude"), tools=[add])
    response = run(mode, agent.prompt("?", limits=LoopLimits(max_iterations=1, on_limit=on_limit)))
    assert (response.stop_reason, response.evaluations) == ("max_iterations", ())


@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_no_attempt_follows_a_limit(mode: str, on_limit: Any) -> None:
    agent, model = client(BAD, tools=[add])
    prompt = agent.prompt("?", limits=LoopLimits(max_iterations=1, on_limit=on_limit))
    if on_limit == "raise":
        with pytest.raises(LoopLimitExceeded):
            run(mode, prompt)
    else:
        response, chunks = run_chunks(mode, prompt)
        assert (response.content, response.stop_reason) == (BAD, "max_iterations")
        assert not response.evaluations[0].passed
        assert "".join(chunk.text for chunk in chunks) in ("", BAD)
    assert len(model.requests) == 1


def test_a_limit_that_is_reached_with_the_last_attempt_changes_nothing(mode: str) -> None:
    agent, _ = client(BAD, max_attempts=1)
    assert run(mode, agent.prompt("?", limits=LoopLimits(max_iterations=1))).stop_reason == "answered"


@pytest.mark.parametrize("on_limit", ["conclude", "stop"])
def test_an_attempt_that_a_limit_ends_leaves_the_best_answer(mode: str, on_limit: Any) -> None:
    agent, _ = client(BAD, [WORSE, SUM], GOOD, tools=[add])
    response, chunks = run_chunks(mode, agent.prompt("?", limits=LoopLimits(max_iterations=2, on_limit=on_limit)))
    assert not response.tool_calls
    assert (response.content, response.stop_reason) == (BAD, "max_iterations")
    assert [each.content for each in response.tool_results] == ["3"]
    assert mode not in STREAMING_MODES or shown(chunks) == BAD


@pytest.mark.parametrize("order", [240, 280])
def test_the_output_is_that_of_the_answer_that_passes(mode: str, order: int) -> None:
    """Judges outside the structured output get values, judges inside of it get texts."""

    def positive(response: ChatClientResponse) -> bool:
        return (response.output if order == 240 else int(response.content)) > 0

    agent, model = client("-1", *["two"] * (order == 240), "2", judge=positive, order=order)
    response, chunks = run_chunks(mode, agent.prompt("?", output=int))
    assert (response.output, response.content) == (2, "2")
    assert response.evaluations[0].score == 1.0
    assert asked(model, 1)[1:3] == ["?", "-1"]
    if mode in STREAMING_MODES:
        assert shown(chunks) == "2"
        assert chunks[-1].partial == 2


def test_the_output_of_the_best_answer_is_there_if_none_passes(mode: str) -> None:
    agent, _ = client("2", "1", judge=lambda response: response.output / 10, max_attempts=2)
    response = run(mode, agent.prompt("?", output=int))
    assert (response.output, response.content, response.evaluations[0].name) == (2, "2", "judge")


def test_an_answer_that_is_no_output_is_not_judged(mode: str) -> None:
    agent, _ = client(*["no number"] * 3)
    with pytest.raises(OutputValidationError):
        run(mode, agent.prompt("?", output=int))


# Judges.


def test_all_judges_must_pass_and_their_feedback_is_joined(mode: str) -> None:
    def brief(response: ChatClientResponse) -> Evaluation:
        return Evaluation(len(response.content) < 10, feedback="Be brief.", name="brevity")

    def signed(response: ChatClientResponse) -> bool:
        return response.content.endswith(".")

    agent, model = client(BAD, WORSE, GOOD, judge=[polite, brief, signed], max_attempts=2)
    response = run(mode, agent.prompt("?"))
    assert [(each.name, each.passed) for each in response.evaluations] == [
        ("polite", False),
        ("brevity", True),
        ("signed", True),
    ]
    assert asked(model, 1)[2].splitlines()[1:-1] == ["- polite: Say please."]
    agent, model = client(WORSE, GOOD, judge=[polite, signed], max_attempts=2)
    run(mode, agent.prompt("?"))
    listed = ["- polite: Say please.", "- signed: the score is 0, and at least 0.5 is required"]
    assert asked(model, 1)[2].splitlines()[1:-1] == listed


def test_a_judge_that_raises_fails_the_run_with_its_error(mode: str, telemetry: Telemetry) -> None:
    def broken(response: ChatClientResponse) -> bool:
        raise LookupError(MARKER)

    agent, _ = client(GOOD, judge=[polite, broken], telemetry=telemetry.options)
    with pytest.raises(LookupError):
        run(mode, agent.prompt("?"))
    first, second = telemetry.events_named(names.EVALUATION_RESULT_EVENT.name)
    assert names.ERROR_TYPE not in first.attributes
    assert second.attributes[names.ERROR_TYPE] == "LookupError"
    assert names.EVALUATION_SCORE not in second.attributes
    assert MARKER not in everything([each.attributes for each in telemetry.events])


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (None, TypeError, "the result of the judge judge must be an Evaluation, a bool or a score, not None"),
        ("good", TypeError, "not str"),
        (1.5, ValueError, "score must be from 0 to 1"),
        (float("nan"), ValueError, "score must be from 0 to 1"),
    ],
)
def test_a_result_that_is_no_evaluation_never_passes(mode: str, found: Any, error: Any, says: str) -> None:
    agent, _ = client(GOOD, judge=lambda response: found)
    with pytest.raises(error, match=says):
        run(mode, agent.prompt("?"))


def verdicts(*scores: float, **settings: Any) -> ScriptedChatModel:
    turns = [f'{{"feedback": "Say please {score}.", "score": {score}}}' for score in scores]
    return ScriptedChatModel(turns, usage=Usage(input_tokens=100, output_tokens=2), model="judge", **settings)


def test_a_model_judges_the_conversation_and_the_answer(mode: str) -> None:
    judging = verdicts(0.2, 0.8)
    judge = ModelJudge(judging, "The answer is polite.", name="politeness")
    agent, model = client(SUM, BAD, GOOD, judge=judge, tools=[add], system="Secret instructions.")
    response, chunks = run_chunks(mode, agent.prompt("May I?"))
    instructions, material = (
        message for message in judging.requests[0].messages if not isinstance(message, ToolMessage)
    )
    assert "The answer is polite." in instructions.text
    assert material.text == (
        f"<conversation>\nUser:\nMay I?\n\nResult of the tool add:\n3\n</conversation>\n\n<answer>\n{BAD}\n</answer>"
    )
    assert asked(model, 2)[-1].splitlines()[1] == "- politeness: Say please 0.2."
    assert [(each.name, each.score) for each in response.evaluations] == [("politeness", 0.8)]
    assert response.usage == Usage(input_tokens=230, output_tokens=7)
    assert mode not in STREAMING_MODES or shown(chunks) == GOOD


def test_a_model_judge_gets_the_schema_if_its_model_enforces_it(mode: str) -> None:
    class Native(ScriptedChatModel):
        def enforces_schema(self, schema: Any, *, with_tools: bool) -> bool:
            return not with_tools

    judging = Native(['{"feedback": "", "score": 1}'])
    agent, _ = client(GOOD, judge=ModelJudge(judging, "kind"))
    run(mode, agent.prompt("?"))
    schema = judging.requests[0].options.output_schema
    assert schema is not None
    assert sorted(schema["properties"]) == ["feedback", "score"]


def test_an_invalid_verdict_is_asked_for_again_and_never_passes(mode: str) -> None:
    judging = ScriptedChatModel(["fine", '{"feedback": "", "score": 1}', "fine", '{"feedback": "", "score": 7}'])
    agent, _ = client(GOOD, GOOD, judge=ModelJudge(judging, "kind", name="kindness"))
    assert run(mode, agent.prompt("?")).evaluations[0].passed
    with pytest.raises(EvaluationError, match="the model of the judge 'kindness' returned no valid verdict in 2 att"):
        run(mode, agent.prompt("?"))


def test_a_model_judge_that_fails_fails_the_run(mode: str) -> None:
    agent, _ = client(GOOD, judge=ModelJudge(ScriptedChatModel([ConnectionError("down")]), "kind"))
    with pytest.raises(ConnectionError):
        run(mode, agent.prompt("?"))


# Telemetry.


class Prices:
    def price(self, provider: str, model: str, usage: Usage) -> float:
        return 1.0


def test_a_verdict_of_a_model_is_a_chat_of_the_run(mode: str) -> None:
    telemetry = Telemetry(prices=Prices())
    agent, _ = client(BAD, GOOD, judge=ModelJudge(verdicts(0.1, 1), "kind"), telemetry=telemetry.options)
    run(mode, agent.prompt("?"))
    around = telemetry.one("advise evaluation")
    assert [telemetry.parent(span) for span in telemetry.named("chat judge")] == [around.name] * 2
    attributes = telemetry.one("invoke_agent").attributes
    assert attributes is not None
    assert attributes["traced_tools.loop.cost"] == 4.0
    assert attributes["gen_ai.usage.input_tokens"] == 220
    (calls,) = telemetry.metric("gen_ai.invoke_agent.inference_calls")
    assert calls.sum == 4


def test_each_evaluation_is_an_event_a_metric_and_a_typed_event(mode: str, telemetry: Telemetry) -> None:
    events = Events()
    agent, _ = client(BAD, GOOD, telemetry=telemetry.options, advisors=[events])
    response = run(mode, agent.prompt("?", conversation_id="c-1"))
    identity = {names.RUN_ID: response.run_id, names.AGENT_NAME: "assistant", names.CONVERSATION_ID: "c-1"}
    of_judge = {names.ADVISOR_NAME: "evaluation", names.EVALUATION_NAME: "polite", names.ITERATION_INDEX: 1}
    first, second = telemetry.events_named("gen_ai.evaluation.result")
    assert first.attributes == {
        **identity,
        **of_judge,
        "gen_ai.evaluation.score.value": 0.4,
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.response.id": "scripted_1",
    }
    assert second.attributes["gen_ai.evaluation.score.label"] == "pass"
    scores = telemetry.metric("traced_tools.evaluation.score")
    assert sorted((each.attributes[names.EVALUATION_LABEL], each.sum) for each in scores) == [
        ("fail", 0.4),
        ("pass", 0.9),
    ]
    (retries,) = telemetry.metric("traced_tools.answer.retries")
    labels = {names.ADVISOR_NAME: "evaluation", names.AGENT_NAME: "assistant", names.RETRY_REASON: "evaluation"}
    assert (retries.attributes, retries.value) == (labels, 1)
    assert [(each.name, each.score, each.passed, each.explanation) for each in events.seen] == [
        ("polite", 0.4, False, None),
        ("polite", 0.9, True, None),
    ]


def test_feedback_is_content(mode: str) -> None:
    @tool(capture=False)
    def secret() -> str:
        """Return a secret."""
        return MARKER

    def quoting(response: ChatClientResponse) -> Evaluation:
        return Evaluation(1, feedback=MARKER)

    for capture, tools, is_captured in [
        (None, [], False),
        ("SPAN_ONLY", [], False),
        ("EVENT_ONLY", [], True),
        (ContentCapture("EVENT_ONLY", redact=lambda name, value: None), [], False),
        ("EVENT_ONLY", [secret], False),
    ]:
        telemetry, events = Telemetry(capture), Events()
        agent, _ = client("x", judge=quoting, telemetry=telemetry.options, advisors=[events])
        run(mode, agent.prompt("?", tools=tools))
        (found,) = telemetry.events_named("gen_ai.evaluation.result")
        assert found.attributes.get("gen_ai.evaluation.explanation") == (MARKER if is_captured else None)
        assert events.seen[0].explanation == (MARKER if is_captured else None)
        assert MARKER not in repr(events.seen[0])
        assert MARKER not in repr(Evaluation(1, feedback=MARKER))


def test_a_result_that_may_not_be_captured_is_not_captured_from_a_judge_either(mode: str) -> None:
    @tool(capture=False)
    def secret() -> str:
        """Return a secret."""
        return MARKER

    telemetry, judging = Telemetry("SPAN_AND_EVENT"), verdicts(1)
    agent, _ = client(
        ToolCall("secret"), "Done.", judge=ModelJudge(judging, "kind"), tools=[secret], telemetry=telemetry.options
    )
    run(mode, agent.prompt("?"))
    assert MARKER in judging.requests[0].messages[1].model_dump_json()
    for span in telemetry.spans:
        assert MARKER not in everything(dict(span.attributes or {}))
    assert MARKER not in everything([each.attributes for each in telemetry.events])


def test_names_and_labels_of_judges_have_a_limited_number_of_series(telemetry: Telemetry) -> None:
    agent, _ = client(
        *["x"] * 50,
        judge=lambda response: Evaluation(1, label=response.chat_response.id, name=response.chat_response.id),
        telemetry=telemetry.options,
        name="many judges",
    )
    for _ in range(50):
        agent.prompt("?").call()
    assert (
        len({each.attributes[names.EVALUATION_NAME] for each in telemetry.metric("traced_tools.evaluation.score")})
        == 33
    )


def test_the_structured_output_counts_its_retries(mode: str, telemetry: Telemetry) -> None:
    agent = ChatClient(ScriptedChatModel(["three", "3"]), telemetry=telemetry.options)
    assert run(mode, agent.prompt("?", output=int)).output == 3
    (retries,) = telemetry.metric("traced_tools.answer.retries")
    assert retries.attributes[names.ADVISOR_NAME] == "structured_output"
    assert (retries.attributes[names.RETRY_REASON], retries.value) == ("invalid_output", 1)


def test_an_advisor_that_is_in_a_chain_twice_judges_twice(mode: str) -> None:
    advisor = EvaluationAdvisor(polite)
    agent = ChatClient(ScriptedChatModel([BAD, GOOD]), advisors=[advisor])
    assert run(mode, agent.prompt("?", advisors=[advisor])).content == GOOD


def test_an_advisor_keeps_nothing_of_a_run_that_has_ended(mode: str) -> None:
    advisor = EvaluationAdvisor(polite, max_attempts=1)
    agent = ChatClient(ScriptedChatModel([GOOD, BAD, GOOD]), advisors=[advisor])
    run(mode, agent.prompt("?"))
    run(mode, agent.prompt("?"))
    with agent.prompt("?").stream() as stream:
        next(stream)
        assert len(advisor._streamed) == 1
    assert len(advisor._streamed) == 0


_advisor: Any = EvaluationAdvisor
_evaluation: Any = Evaluation
_judge: Any = ModelJudge


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: _advisor([]), "judge must be a judge or a list of at least one"),
        (lambda: _advisor("polite"), "judge must be a function or a ModelJudge, not str"),
        (lambda: _advisor([polite, ScriptedChatModel([])]), "not ScriptedChatModel"),
        (lambda: _advisor(polite, threshold=2), "threshold must be from 0 to 1"),
        (lambda: _advisor(polite, threshold=None), "threshold must be a number from 0 to 1"),
        (lambda: _advisor(polite, max_attempts=0), "max_attempts must be at least 1"),
        (lambda: _advisor(polite, order=0.5), "order must be an int"),
        (lambda: _evaluation("good"), "score must be a number from 0 to 1"),
        (lambda: _evaluation(1, feedback=3), "feedback must be a str or None"),
        (lambda: _judge("gpt-5", "kind"), "model must be a ChatModel"),
        (lambda: _judge(ScriptedChatModel([]), " "), "criteria must not be blank"),
    ],
)
def test_an_invalid_argument_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        attempt()
