"""Records what advisors find out about answers: evaluations, further attempts, and blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traced_tools.core.messages import encodable
from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.content import LazyContent
from traced_tools.observe.failures import error_type
from traced_tools.observe.sanitize import limit_cardinality, safe_identifier, safe_person_name

if TYPE_CHECKING:
    from traced_tools.core.enums import RetryReason, Safeguarded
    from traced_tools.core.evaluation import Evaluation
    from traced_tools.observe.names.registry_types import EventType
    from traced_tools.observe.observations import ObservedRun
    from traced_tools.observe.run_telemetry import RunTelemetry


def observe_evaluation(
    run: ObservedRun,
    advisor: str,
    name: str,
    evaluation: Evaluation | Exception,
    *,
    iteration: int,
    response_id: str | None,
) -> None:
    """Record one evaluation of an answer: a metric, a log-based event, and a typed event.

    Args:
        run: the run.
        advisor: the name of the advisor.
        name: what is evaluated.
        evaluation: the evaluation, or what the judge raised.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
        response_id: the provider's id of the answer.
    """
    telemetry, name = run.telemetry, safe_person_name(name)
    is_failure = isinstance(evaluation, Exception)
    attributes = _attributes(telemetry, advisor, iteration)
    attributes[names.EVALUATION_NAME] = name
    put(attributes, names.RESPONSE_ID, safe_identifier(response_id or ""))
    feedback = None
    if isinstance(evaluation, Exception):
        attributes[names.ERROR_TYPE] = error_type(evaluation)
    else:
        label = "" if evaluation.label is None else safe_person_name(evaluation.label)
        attributes[names.EVALUATION_SCORE] = evaluation.score
        put(attributes, names.EVALUATION_LABEL, label)
        feedback = evaluation.feedback
        telemetry.guarded(_record_score, telemetry, name, label, evaluation.score)
    contents = _explanation(telemetry, feedback)
    _emit(telemetry, names.EVALUATION_RESULT_EVENT, attributes, contents)
    if run.events.wanted:
        from traced_tools.observe.typed_events.types import AnswerEvaluated

        fields: dict[str, Any] = {
            "advisor": advisor,
            "name": name,
            "score": attributes.get(names.EVALUATION_SCORE),
            "label": attributes.get(names.EVALUATION_LABEL),
            "passed": None if isinstance(evaluation, Exception) else evaluation.passed,
            "error_type": attributes.get(names.ERROR_TYPE),
            "response_id": attributes.get(names.RESPONSE_ID),
            "explanation": None if contents is None else contents.text(names.EVALUATION_EXPLANATION),
        }
        run.events.dispatch(AnswerEvaluated, iteration, fields, failing=is_failure)


def observe_answer_retry(run: ObservedRun, advisor: str, reason: RetryReason) -> None:
    """Count an answer for which an advisor asks the model again."""
    telemetry = run.telemetry
    if telemetry.instruments is not None:
        labels: Attributes = {**telemetry.agent_label, names.ADVISOR_NAME: advisor, names.RETRY_REASON: reason}
        telemetry.guarded(telemetry.instruments.answer_retries.add, 1, labels)


def observe_block(run: ObservedRun, advisor: str, where: Safeguarded, iteration: int) -> None:
    """Record a request or an answer that a safeguard blocked, without its text.

    Args:
        run: the run.
        advisor: the name of the advisor.
        where: what is blocked.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
    """
    telemetry = run.telemetry
    if telemetry.instruments is not None:
        labels: Attributes = {**telemetry.agent_label, names.ADVISOR_NAME: advisor, names.SAFEGUARD_WHERE: where}
        telemetry.guarded(telemetry.instruments.safeguard_blocks.add, 1, labels)
    attributes = {**_attributes(telemetry, advisor, iteration), names.SAFEGUARD_WHERE: where}
    _emit(telemetry, names.SAFEGUARD_BLOCK_EVENT, attributes)


def _attributes(telemetry: RunTelemetry, advisor: str, iteration: int) -> Attributes:
    attributes: Attributes = {**telemetry.identity_on_events(), names.ADVISOR_NAME: encodable(advisor)}
    if iteration:
        attributes[names.ITERATION_INDEX] = iteration
    return attributes


def _record_score(telemetry: RunTelemetry, name: str, label: str, score: float) -> None:
    if telemetry.instruments is None:
        return
    agent = telemetry.agent_in_metrics
    labels = {**telemetry.agent_label, names.EVALUATION_NAME: limit_cardinality(names.EVALUATION_NAME, agent, name)}
    if label:
        labels[names.EVALUATION_LABEL] = limit_cardinality(names.EVALUATION_LABEL, f"{agent} {name}", label)
    telemetry.instruments.evaluation_scores.record(score, labels, None)


def _explanation(telemetry: RunTelemetry, feedback: str | None) -> LazyContent | None:
    """Return the content of an evaluation; None if it may not be captured.

    A judge may quote any result of a tool, so nothing is captured if the run has a tool with capture disabled.
    """
    content = telemetry.content
    if not feedback or content is None or not content.capture.on_events or not content.may_capture_error():
        return None
    return LazyContent(content, {names.EVALUATION_EXPLANATION: lambda: feedback})


def _emit(
    telemetry: RunTelemetry, event: EventType, attributes: Attributes, contents: LazyContent | None = None
) -> None:
    if telemetry.logger is not None:
        captured: Attributes = {} if contents is None else contents.on_event(event.content)
        telemetry.guarded(telemetry.logger.emit, event, None, lambda: {**attributes, **captured})
