"""What a tool asks for before it can finish, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args

from traced_tools.core.checks import check_by, check_json_object, expect
from traced_tools.core.frozen import frozen

InputMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]
"""What a tool may ask for, in the terms of MCP: input of a user, an answer of a model, the folders it may work in."""
_SAFE_URLS: Final = ("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")
INPUT_METHODS: Final[tuple[InputMethod, ...]] = get_args(InputMethod)


@frozen(kw_only=True)
class InputRequest:
    """One question of a tool.

    Attributes:
        key: identifies the question among those of its call.
        method: what is asked for: `elicitation/create`, `sampling/createMessage` or `roots/list`, as MCP names it.
        params: the question, a JSON object as MCP specifies it for the method.
    """

    key: str = field(repr=False)
    method: InputMethod
    params: Mapping[str, Any] = field(repr=False)

    @property
    def message(self) -> str | None:
        """The message to the user; None if no user is asked."""
        return self._text("message")

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of what a user enters; None if no user is asked to enter anything here."""
        schema = self._of_elicitation("requestedSchema")
        return schema if isinstance(schema, Mapping) else None

    @property
    def url(self) -> str | None:
        """The page that a user is sent to, and that this process does not see; None if there is none that is safe."""
        url = self._text("url")
        return url if url is not None and url.startswith(_SAFE_URLS) else None

    def _text(self, name: str) -> str | None:
        value = self._of_elicitation(name)
        return value if isinstance(value, str) else None

    def _of_elicitation(self, name: str) -> object:
        return self.params.get(name) if self.method == "elicitation/create" else None


@frozen(kw_only=True)
class PendingInput:
    """The questions of a call whose tool can finish only with input.

    Attributes:
        requests: the questions.
        state: what the tool gets back unchanged with the answers; None if it has given nothing.
        round: how often the tool has asked during the call, from 1.
        answers: the answers that were given to some of the questions, by their keys.
    """

    requests: tuple[InputRequest, ...]
    state: str | None = field(default=None, repr=False)
    round: int = 1
    answers: Mapping[str, Any] = field(default_factory=dict, repr=False)


@frozen
class Provide:
    """The decision that a tool gets the input that it has asked for.

    Args:
        answers: the answers by the keys of the questions. For an elicitation, a mapping of what a user has entered, or
            None if the user declines. For a sampling, the text of the answer. For roots, a list of folders. A question
            without an answer is asked again.
        by: the person or service that answers. The audit trail, spans and events have a pseudonym of the name, unless
            the trail stores texts, or content is captured.
        decided_at: when it was answered, in seconds since 1970, which ends the measured wait; None for now.
    """

    answers: Mapping[str, Any] = field(repr=False)
    by: str | None = field(default=None, repr=False)
    decided_at: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_by(self.by)
        expect("decided_at", self.decided_at, (int, float, type(None)), "a number or None")
        expect("answers", self.answers, Mapping, "a mapping of the keys of questions to answers")
        check_json_object("answers", self.answers)


@frozen
class GivenInput:
    """The answers to the questions of a tool, with which its call goes on.

    Attributes:
        asked: the questions.
        provided: the answers.
        arguments: the arguments of the call that the questions are about, as canonical JSON (RFC 8785).
    """

    asked: PendingInput
    provided: Provide
    arguments: str = field(repr=False)
