"""Asks the user of an MCP client about calls that require approval, by elicitation."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import Any, Protocol

from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import ValidationError

from traced_tools.core.approval import ApprovalAnswer, Approve, Denied, Reject, Undecided
from traced_tools.core.enums import ASKED_CLIENT, CANNOT_ASK_CLIENT, INVALID_STATE
from traced_tools.core.readable import readable_text
from traced_tools.core.tool_definition import definition_digest
from traced_tools.mcp.request_states import RequestStates
from traced_tools.tools.advice import ToolAdvice
from traced_tools.tools.approval import ApprovalRequest

_ANSWER = "approve"
_LONGEST_TEXT = 500
_INPUT = "approval"
"""The name of the question among the inputs that a result requires."""
_SCHEMA = {
    "type": "object",
    "properties": {_ANSWER: {"type": "boolean", "title": "Approve", "description": "Whether the call may run."}},
    "required": [_ANSWER],
}


class Elicit(Protocol):
    """Asks the client while the call waits."""

    def __call__(self, params: ElicitRequestFormParams) -> Awaitable[ElicitResult]:
        """Return the answer; raises `MCPError`."""


class ClientApprover(ToolAdvice):
    """Has the user of a client decide about a call; it is asked after the approvers of the application.

    A client of an older revision is asked while the call waits. A client of a newer one is asked by the result of its
    request, and repeats the request with the answer and with the state of the result.

    Args:
        principal: on whose behalf the call is.
        elicit: asks the client while the call waits; None if that can't be done.
        states: makes and checks states; None if the client can't be asked by a result.
        answer: the answer in a repeated request.
        state: its state.

    Attributes:
        required: the result that asks the client, if the call waits for it.
        cannot_ask: whether the call itself was denied because the client can't be asked.
        is_state_invalid: whether the call was denied because of its state.
    """

    name = "mcp_client"
    order = sys.maxsize

    def __init__(
        self,
        principal: str | None,
        *,
        elicit: Elicit | None = None,
        states: RequestStates | None = None,
        answer: object = None,
        state: str | None = None,
    ) -> None:
        self._principal = principal
        self._elicit = elicit
        self._states = states
        self._answer = answer
        self._state = state
        self.required: InputRequiredResult | None = None
        self.cannot_ask = False
        self.is_state_invalid = False

    async def decide_approval(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Return the decision of the client's user, or that it must be asked for by the result."""
        if self._elicit is not None:
            return await self._ask_user(request, self._elicit)
        is_of_question = request.run.parent_id is not None  # of another server, which would have to be asked again
        if self._states is None or is_of_question:
            self.cannot_ask = not is_of_question
            return Denied(
                "it requires approval, and this client cannot ask its user, because it does not support elicitation.",
                CANNOT_ASK_CLIENT,
            )
        subject = _subject(request, self._principal)
        if self._state is not None and self._answer is not None:
            if self._states.redeem(self._state, subject):
                return self._decision(_read(self._answer))
            self.is_state_invalid = True
            return Denied("the approval is for another call, was used before, or has expired.", INVALID_STATE)
        question = ElicitRequest(params=_question(request))
        self.required = InputRequiredResult(
            input_requests={_INPUT: question}, request_state=self._states.issue(subject)
        )
        return Undecided()

    async def _ask_user(self, request: ApprovalRequest, elicit: Elicit) -> ApprovalAnswer:
        try:
            answer = await elicit(_question(request))
        except (MCPError, ValidationError):  # whose text is the client's
            answer = None
        return self._decision(answer)

    def _decision(self, answer: ElicitResult | None) -> ApprovalAnswer:
        if answer is None:
            return Denied("asking the client's user for approval failed.", "approval_failed")
        if answer.action == "cancel":
            return Denied("the client's user did not decide about it.", "approval_failed")
        if answer.action == "accept" and (answer.content or {}).get(_ANSWER) is True:
            return Approve(by=self._principal, code=ASKED_CLIENT)
        return Reject("the client's user did not approve it.", by=self._principal, code=ASKED_CLIENT)


def answer_in(responses: Any) -> object:
    """Return the answer among the inputs of a repeated request; None if there is none."""
    return None if responses is None else responses.get(_INPUT)


def _read(answer: object) -> ElicitResult | None:
    return answer if isinstance(answer, ElicitResult) else None


def _question(request: ApprovalRequest) -> ElicitRequestFormParams:
    tool = readable_text(request.tool, _LONGEST_TEXT)
    reason = "" if request.reason is None else f" {readable_text(request.reason, _LONGEST_TEXT)}"
    message = f"May the tool {tool} run with the arguments {request.readable_arguments}?{reason}"
    return ElicitRequestFormParams(message=message, requested_schema=_SCHEMA)


def _subject(request: ApprovalRequest, principal: str | None) -> tuple[str | None, ...]:
    """Return what an approval is for: the tool, its definition and source, the arguments, and the principal."""
    agent, definition = request.run.agent, definition_digest(request.definition)
    return (agent, principal, request.tool, definition, request.source, request.arguments)
