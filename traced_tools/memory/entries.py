"""What the log of a conversation consists of: messages, and compactions of the view that the model is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, Field

from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import Message, Value, make_unvalidated, not_for_validation

EntryKind = Literal["message", "compaction"]
PauseKeeper = Literal["store", "log"]
_MOST_NAME: Final = 256
_Name = Annotated[str, Field(min_length=1, max_length=_MOST_NAME)]
_OMIT_NONE: Final = Field(exclude_if=lambda value: value is None)
_LoggedMessage = Annotated[Message, Field(discriminator="role")]


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryEntry(Value):
    """An entry in the log of a conversation; it is a `MessageEntry` or a `CompactionEntry`. It never changes.

    Args:
        id: identifies the entry in its conversation. Appending an entry again changes nothing. By default, a UUID that
            sorts by time.
        time: when the entry was made, with a time zone.
        run_id: the run that made it.
        turn: the turn it belongs to, counted from 1. A turn is a message of the user and all that answers it: calls,
            results, replies. An entry of a sub-agent belongs to the turn that called the sub-agent.
        branch: the path of names of the sub-agent that made it, such as `research.search`; empty for the main agent.
        agent: the name of the agent that made it.
        conversation_id: the id of the conversation. The repository sets it; None before that.
        position: the place in the log, counted from 1. The repository sets it; None before that.
    """

    id: _Name = Field(default_factory=time_ordered_id)
    time: AwareDatetime = Field(default_factory=_now)
    run_id: str | None = None
    turn: int = Field(ge=1, lt=1 << 31)
    branch: str = Field(default="", pattern=r"^([^.]+(\.[^.]+)*)?$", max_length=_MOST_NAME)
    agent: str | None = None
    conversation_id: str | None = Field(default=None, exclude=True)
    position: int | None = Field(default=None, exclude=True)

    def at(self, conversation_id: str, position: int) -> Self:
        """Return the entry with its place in a log."""
        return make_unvalidated(type(self), {**vars(self), "conversation_id": conversation_id, "position": position})


class LoggedPause(Value):
    """What the log says of a run that ended because calls wait for a decision.

    Args:
        keeper: what decides whether a run has resumed: `store` if a pending store keeps the state of the run, or `log`
            if the run that resumes says so in the log before the calls run.
        begun: the ids of the calls whose tools have begun, such as those that wait for input.
    """

    keeper: PauseKeeper
    begun: tuple[str, ...] = ()


class MessageEntry(MemoryEntry):
    """A message of the conversation, whole: with tool calls, results, reasoning, images and signatures.

    Args:
        message: the message.
        context_tokens: the tokens of what the model was sent and of this answer to it, as the provider reported them;
            None for other messages, and if the provider reports nothing.
        placeholder: whether the message holds results that never arrived, because a run was interrupted. Results of the
            same calls in another entry replace them, and so do those of a later placeholder.
        pause: for a placeholder of calls that wait for a decision, how their run waits; None for other messages.
        resumes: the id of the run that first waited, if the entry is of a run that resumes it; else None.
    """

    kind: Literal["message"] = "message"
    message: _LoggedMessage = Field(repr=False)
    context_tokens: Annotated[int | None, _OMIT_NONE] = Field(default=None, ge=0)
    placeholder: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    pause: Annotated[LoggedPause | None, _OMIT_NONE] = None
    resumes: Annotated[str | None, _OMIT_NONE] = None

    @not_for_validation
    def __init__(self, message: Message, **data: Any) -> None:
        Value.__init__(self, message=message, **data)


def entry_of_run(
    message: Message,
    *,
    turn: int,
    run_id: str,
    branch: str,
    agent: str,
    resumes: str | None,
    context_tokens: int | None = None,
) -> MessageEntry:
    """Return a new entry of a run, of arguments that are known to be valid; see `MessageEntry`."""
    return make_unvalidated(
        MessageEntry,
        {
            "id": time_ordered_id(),
            "time": _now(),
            "run_id": run_id,
            "turn": turn,
            "branch": branch,
            "agent": agent,
            "conversation_id": None,
            "position": None,
            "kind": "message",
            "message": message,
            "context_tokens": context_tokens,
            "placeholder": False,
            "pause": None,
            "resumes": resumes,
        },
    )


class CompactionEntry(MemoryEntry):
    """A change of the view that the model is sent from now on. The entries it covers stay in the log.

    The view after a compaction is its `summary`, then the covered entries that it `keeps`, then all entries of its
    branch at positions above `through`.

    Args:
        through: the position up to which it covers the entries of its branch.
        keeps: the ids of the entries up to `through` that stay in the view.
        cuts: the number of characters that the view shows of tool results, by the id of the entry with the results and
            the id of the call.
        summary: the messages that replace the covered entries.
        trigger: the name of what caused it.
        strategy: the name of the strategy that chose what it covers.
        tokens_before: the tokens of the view before it, if known.
        tokens_after: the tokens of the view after it, if known.
        tokens_estimated: whether either number is an estimate.
    """

    kind: Literal["compaction"] = "compaction"
    through: int = Field(ge=1)
    keeps: tuple[_Name, ...] = ()
    cuts: Mapping[_Name, Mapping[str, Annotated[int, Field(ge=0)]]] = {}
    summary: tuple[_LoggedMessage, ...] = Field(default=(), repr=False)
    trigger: _Name
    strategy: _Name
    tokens_before: int | None = Field(default=None, ge=0)
    tokens_after: int | None = Field(default=None, ge=0)
    tokens_estimated: bool = False


_VALIDATORS: Final = {
    "message": MessageEntry.__pydantic_validator__,
    "compaction": CompactionEntry.__pydantic_validator__,
}
"""The validators of each kind: `model_validate_json` looks at its options first, a tenth of the time of an entry."""


def dump_entry(entry: MemoryEntry) -> str:
    """Return an entry as JSON text, without its conversation and position."""
    return entry.model_dump_json()


def load_entry(text: str, kind: str) -> MessageEntry | CompactionEntry:
    """Read an entry of a kind that `dump_entry` wrote; raises a pydantic `ValidationError` for any other text.

    For another kind, it raises `KeyError`.
    """
    entry: MessageEntry | CompactionEntry = _VALIDATORS[kind].validate_json(text)
    return entry


def check_entries(entries: Sequence[MemoryEntry]) -> None:
    """Raise an error unless `entries` are some entries with different ids."""
    if isinstance(entries, str | bytes | MemoryEntry) or not isinstance(entries, Sequence):
        raise TypeError(f"entries must be a sequence of entries, not {type(entries).__name__}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, MessageEntry | CompactionEntry):
            raise TypeError(f"entries[{index}] must be a MessageEntry or a CompactionEntry, not {type(entry).__name__}")
    if not entries:
        raise ValueError("entries must not be empty: pass at least one entry")
    if len({entry.id for entry in entries}) < len(entries):
        raise ValueError("two of the entries have the same id: pass each entry once")
