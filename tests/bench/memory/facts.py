"""A long conversation with facts in it, made of a fixed seed: what is said, what the tools return, and what is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Origin = Literal["user", "tool"]
TURNS = 37
_RESULTS_IN_A_TURN = 2
_SENTENCES_OF_A_RESULT = (15, 45)
_SENTENCES_OF_A_MESSAGE = (1, 4)
_SUBJECTS = ("Falcon", "Heron", "Osprey", "Merlin", "Kestrel", "Harrier", "Goshawk", "Condor", "Egret", "Ibis")
_ATTRIBUTES = ("budget", "deadline", "owner", "region", "supplier", "version", "port", "invoice", "room", "contact")
_FILLER = """
    the team keeps a record of each step and reviews it later with care while others look at what was planned before so
    that nobody waits for long and all parts of the work fit well together in the end of a quiet day
"""


@dataclass(frozen=True)
class Fact:
    """A value that something has from a turn on.

    Args:
        subject, attribute: what has the value; a later fact about the same supersedes it.
        value: a word that occurs nowhere else.
        turn: the turn that states it, from 1.
        origin: whether a message of the user states it, or a result of a tool.
    """

    subject: str
    attribute: str
    value: str
    turn: int
    origin: Origin

    @property
    def sentence(self) -> str:
        """What states it."""
        return f"The {self.attribute} of {self.subject} is {self.value}."


@dataclass(frozen=True)
class PlannedTurn:
    """What happens in a turn: a message of the user, and a call of a tool for each of the results."""

    question: str
    results: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A conversation, and the facts in the order in which it states them."""

    turns: tuple[PlannedTurn, ...]
    facts: tuple[Fact, ...]

    def true_after(self, turn: int) -> list[Fact]:
        """Return the facts that hold after a turn: for each subject and attribute, the last one."""
        last = {(fact.subject, fact.attribute): fact for fact in self.facts if fact.turn <= turn}
        return list(last.values())


def plan(seed: int = 7) -> Plan:
    """Return a conversation in which each turn states a fact in each result, and most state one in the message.

    About one in five facts supersedes an earlier one, and about one in five messages repeats an earlier fact.
    """
    random = Random(seed)
    unused = [(subject, attribute) for subject in _SUBJECTS for attribute in _ATTRIBUTES]
    random.shuffle(unused)
    facts: list[Fact] = []
    turns: list[PlannedTurn] = []

    def state(turn: int, origin: Origin) -> str:
        is_new = not facts or random.random() < 0.8
        old = random.choice(facts) if facts else None
        subject, attribute = unused.pop() if is_new or old is None else (old.subject, old.attribute)
        facts.append(Fact(subject, attribute, f"V{len(facts)}Q{random.randrange(10_000)}", turn, origin))
        return facts[-1].sentence

    for number in range(1, TURNS + 1):
        said = [state(number, "user")] if random.random() < 0.7 else []
        if len(facts) > 5 and random.random() < 0.2:
            said.append(
                random.choice([fact for fact in facts if fact in Plan((), tuple(facts)).true_after(number)]).sentence
            )
        question = _text(random, _SENTENCES_OF_A_MESSAGE, said)
        results = [_text(random, _SENTENCES_OF_A_RESULT, [state(number, "tool")]) for _ in range(_RESULTS_IN_A_TURN)]
        turns.append(PlannedTurn(question, tuple(results)))
    return Plan(tuple(turns), tuple(facts))


def _text(random: Random, sizes: tuple[int, int], facts: Sequence[str]) -> str:
    """Return filler sentences with the sentences of facts at random places."""
    sentences = [_filler(random) for _ in range(random.randint(*sizes))]
    for fact in facts:
        sentences.insert(random.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def _filler(random: Random) -> str:
    words = random.choices(_FILLER.split(), k=random.randint(8, 16))
    return f"{' '.join(words).capitalize()}."
