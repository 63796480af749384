"""The first paragraph of each runbook states the limits and the windows of its rule, and no others."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from dashboards.alerts import GROUPS, Alert
from dashboards.objectives import BUDGET_WINDOW, OBJECTIVES
from dashboards.rules import GROUPS as RECORDED
from tests.judges.programs import ROOT

ALERTS = {alert.name: alert for group in GROUPS.values() for alert in group}
RECORDINGS = {rule.name: rule.text for group in RECORDED.values() for rule in group.rules}
SECTIONS = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=\n\n|\Z)", (ROOT / "docs/runbooks.md").read_text(), re.M | re.S))
"""The first paragraph of each runbook."""
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SHARES = {"half": 0.5, "fifth": 0.2, "tenth": 0.1}
_NUMBERS = {"a": 1, "an": 1, "the last": 1, **{word: n for n, word in enumerate(_WORDS, start=1)}, **_SHARES}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_SECONDS |= {unit[0]: seconds for unit, seconds in _SECONDS.items()}
_QUANTITY = re.compile(
    rf"(?P<number>(?<![\w.])\$?\d[\d,]*(?:\.\d+)?(?!\d|th)|\b(?:{'|'.join(_NUMBERS)})\b)[ \n]?"
    r"(?P<unit>%|(?:second|minute|hour|day|week)s?\b|[smhdw]\b|times\b|fifth\b|tenth\b)?",
    re.IGNORECASE,
)


def stated(text: str) -> set[float]:
    """Return the quantities in a text: seconds, shares and counts. `a` and `an` count only before a unit of time."""
    quantities = set()
    for found in _QUANTITY.finditer(text):
        word, unit = found["number"].lower(), (found["unit"] or "").lower().removesuffix("s")
        is_word = word in _NUMBERS
        value = _NUMBERS[word] if is_word else float(word.lstrip("$").replace(",", ""))
        if (word, unit) == ("a", "second"):
            continue  # a rate
        if unit in _SECONDS:
            quantities.add(value * _SECONDS[unit])
        elif unit in _SHARES:
            quantities.add(_SHARES[unit])
        elif unit == "%":
            quantities.add(round(value / 100, 6))
        elif not is_word or word == "half" or unit == "time":
            quantities.add(value)
    return quantities


def expanded(text: str) -> str:
    """Return an expression with those of the recording rules that it reads."""
    return " ".join([text, *(expanded(recorded) for name, recorded in RECORDINGS.items() if name in text)])


def ruled(alert: Alert) -> tuple[set[float], set[float]]:
    """Return the numbers that a rule compares with, and all numbers and durations that it has."""
    text = f"{expanded(alert.text)} {alert.wait} {BUDGET_WINDOW}"
    windows = re.findall(r"(?<![\w.]|\d)(?:\w+_(?:rate|increase|left))?(\d+)([smhdw])\b", text)
    durations = {float(number) * _SECONDS[unit] for number, unit in windows}
    numbers = {float(each) for each in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text)}
    limits = {float(each) for each in re.findall(r"[<>] (\d+(?:\.\d+)?)", alert.condition)} - {0.0, 1.0}
    budgets = {round(1 - objective.objective, 6) for objective in OBJECTIVES}
    return limits, durations | numbers | budgets


def contradictions(sections: Mapping[str, str]) -> list[str]:
    """Return what runbooks state and their rules don't have, and the limits that runbooks of one limit don't state."""
    wrong = []
    for name, text in sections.items():
        limits, known = ruled(ALERTS[name])
        wrong += [f"{name} states {each:g}, which the rule doesn't have" for each in sorted(stated(text) - known)]
        if len(limits) == 1:
            wrong += [f"{name} doesn't state the limit {each:g}" for each in limits - stated(text)]
    return wrong


def test_the_texts_of_alerts_state_what_the_rules_have() -> None:
    texts = {name: re.sub(r"{{.*?}}", "", f"{alert.summary}. {alert.description}") for name, alert in ALERTS.items()}
    wrong = {name: stated(text) - ruled(ALERTS[name])[1] for name, text in texts.items()}
    assert {name: each for name, each in wrong.items() if each} == {}


def test_runbooks_state_what_the_rules_have() -> None:
    assert SECTIONS.keys() == ALERTS.keys()
    assert contradictions(SECTIONS) == []


@pytest.mark.parametrize(
    ("alert", "truth", "error"),
    [
        ("TooManySeries", "5,000", "20,000"),
        ("AgentTelemetryAbsent", "two hours", "a day"),
        ("RunStuck", "ten minutes", "five minutes"),
        ("ToolDown", "half", "a fifth"),
        ("TelemetryLoss", "1 %", "2 %"),
        ("ToolRefusalsChanged", "a week", "a day"),
        ("CostBurn", "five times", "three times"),
    ],
)
def test_another_number_in_a_runbook_is_found(alert: str, truth: str, error: str) -> None:
    assert truth in SECTIONS[alert]
    assert any(each.startswith(alert) for each in contradictions({alert: SECTIONS[alert].replace(truth, error)}))
