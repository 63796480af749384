"""The limits of the alert rules, and the files with other limits than those in the repository.

The wheel has the generated files, not what generates them. Each limit is therefore changed where the generator wrote
it. The tests compare the result with what the generator writes for the same limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from traced_tools.errors import ConfigurationError
from traced_tools.observe import names

_FASTEST_BURN: Final = 14.4
"""The highest factor by which an error budget burns too fast, so the budget can't be larger."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the rules and the boards hold agents to. Shares are from 0 to 1.

    Attributes:
        run_success: the objective: the share of runs that don't fail.
        run_latency: the objective: the share of runs that take at most `slow_run_seconds`.
        slow_run_seconds: a fractional boundary of the buckets of `gen_ai.invoke_agent.duration`, such as 25.6 or 51.2.
        model_success: the objective: the share of model calls that don't fail.
        model_errors: the share of a model's calls of 5 minutes that may fail.
        tool_errors: the share of a tool's calls of 15 minutes that may fail.
        limited_runs: the share of runs of 15 minutes that limits may end.
        first_chunk_seconds: the 95th percentile of the time to the first chunk.
        stuck_run_seconds: the age of the oldest active run.
        stuck_tool_seconds: the age of the oldest running call of a tool.
        approval_seconds: the age of the oldest call whose run waits for approval.
        pending_seconds: the age of the oldest call in a pending store.
        ready_seconds: how long a decided run in a pending store may wait for a worker.
        idle_run_seconds: for how long a durable run that waits for no person may make no progress.
        daily_cost: the US dollars that the agents of a service may cost in a day.
        cost_factor: how many times the median hour of the week an hour may cost.

    Raises:
        ConfigurationError: a limit is impossible.
    """

    run_success: float = 0.99
    run_latency: float = 0.95
    slow_run_seconds: float = 25.6
    model_success: float = 0.995
    model_errors: float = 0.2
    tool_errors: float = 0.5
    limited_runs: float = 0.05
    first_chunk_seconds: float = 5
    stuck_run_seconds: float = 600
    stuck_tool_seconds: float = 300
    approval_seconds: float = 180
    pending_seconds: float = 86_400
    ready_seconds: float = 600
    idle_run_seconds: float = 900
    daily_cost: float = 100
    cost_factor: float = 5

    def __post_init__(self) -> None:
        least = 1 - 1 / _FASTEST_BURN
        for name in ("run_success", "run_latency", "model_success"):
            if not least < getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be a share below 1 and above {least:.3f}")
        for name in ("model_errors", "tool_errors", "limited_runs"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be a share between 0 and 1")
        bounds = [bound for bound in names.INVOKE_AGENT_DURATION.boundaries if bound != int(bound)]
        if self.slow_run_seconds not in bounds:
            raise ConfigurationError(f"slow_run_seconds must be one of {', '.join(f'{bound:g}' for bound in bounds)}")
        for field in fields(self):
            if not 0 < getattr(self, field.name) < float("inf"):
                raise ConfigurationError(f"{field.name} must be a positive number")


DEFAULTS: Final = Limits()

_COMPARED: Final[Mapping[str, str]] = {
    "stuck_run_seconds": "RunStuck",
    "stuck_tool_seconds": "ToolStuck",
    "approval_seconds": "ApprovalWaits",
    "pending_seconds": "PendingCallsWait",
    "ready_seconds": "DecidedRunsWait",
    "idle_run_seconds": "DurableRunsIdle",
    "limited_runs": "RunsHitLimits",
    "tool_errors": "ToolDown",
    "model_errors": "ModelErrors",
    "first_chunk_seconds": "FirstChunkSlow",
    "daily_cost": "DailyCostExceeded",
}
"""The alert that compares its value with a limit."""
_QUOTED: Final = (
    *((option, alert, "expr", ") > {}") for option, alert in _COMPARED.items()),
    ("daily_cost", "DailyCostExceeded", "description", "is ${}"),
    ("cost_factor", "CostBurn", "expr", "{} * quantile"),
    ("cost_factor", "CostBurn", "description", "over {} times"),
)
"""The texts of alerts that quote a limit: the limit, the alert, its expression or an annotation, and the text there."""
_THRESHOLDS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "run_success": (("tt-home", 1), ("tt-slo", 1)),
    "run_latency": (("tt-slo", 4),),
    "model_success": (("tt-models", 1), ("tt-slo", 7)),
    "stuck_run_seconds": (("tt-home", 3),),
    "stuck_tool_seconds": (("tt-tools", 7),),
    "approval_seconds": (("tt-tools", 26),),
    "pending_seconds": (("tt-tools", 61),),
    "ready_seconds": (("tt-tools", 63),),
    "idle_run_seconds": (("tt-loops", 41),),
    "limited_runs": (("tt-loops", 5),),
    "tool_errors": (("tt-tools", 3),),
    "model_errors": (("tt-models", 6), ("tt-models", 23)),
    "first_chunk_seconds": (("tt-models", 11),),
    "daily_cost": (("tt-cost", 1),),
}
"""The boards' panels with a threshold at a limit."""
_OBJECTIVES: Final[Mapping[str, tuple[str, str, int]]] = {
    "run_success": ("RunSuccess", "run_errors", 1),
    "run_latency": ("RunLatency", "slow_runs", 4),
    "model_success": ("ModelSuccess", "model_errors", 7),
}
"""Of each objective, the beginning of its alerts' names, its name in recording rules, and its first panel on tt-slo."""
_COMPARISON: Final = re.compile(r"(?<= > )\d[\d.e-]*")


def check_address(option: str, address: str) -> str:
    """Return an address without a slash at its end.

    Raises:
        ConfigurationError: it is no http or https address.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise ConfigurationError(f"{option} must be an http or https address")
    return address.rstrip("/")


def with_limits_in_rules(content: Any, limits: Limits, runbooks: str | None, grafana: str | None) -> Any:
    """Return the content of a rule file with other limits and addresses.

    Args:
        content: the content.
        limits: the limits.
        runbooks: the address of the page of runbooks; None to leave it.
        grafana: the address of Grafana; None to leave it.
    """
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    recordings = {rule["record"]: rule for rule in rules if "record" in rule}
    for option, old, new in _changes(limits):
        _change_quotes(alerts, option, _text(old), _text(new))
        if option in _OBJECTIVES:
            _change_objective(alerts, recordings, *_OBJECTIVES[option], 1 - old, 1 - new)
        if option == "slow_run_seconds":
            for rule in rules:
                rule.update(_map_texts(rule, lambda text: text.replace(_text(old), _text(new))))  # noqa: B023
    for alert in alerts.values():
        notes = alert["annotations"]
        if runbooks is not None:
            notes["runbook_url"] = f"{runbooks}#{notes['runbook_url'].partition('#')[2]}"
        if grafana is not None:
            notes["dashboard_url"] = grafana + notes["dashboard_url"]
    return content


def with_limits_on_board(board: Any, uid: str, limits: Limits) -> Any:
    """Return a board, of either schema, with other limits."""
    for option, old, new in _changes(limits):
        for of_board, panel in _THRESHOLDS.get(option, ()):
            for node in _panels(board, panel) if of_board == uid else ():
                _change_thresholds(node, old, new)
        if uid == "tt-slo" and option in _OBJECTIVES:
            first = _OBJECTIVES[option][2]
            pairs = ((f"is {old:.1%}.", f"is {new:.1%}."), (f" / {1 - old:g}", f" / {1 - new:g}"))
            for number in (first, first + 2):
                for node in _panels(board, number):
                    for before, after in pairs:
                        node.update(_map_texts(node, lambda text: text.replace(before, after)))  # noqa: B023
        if uid == "tt-slo" and option == "slow_run_seconds":
            board = _map_texts(board, lambda text: text.replace(f"{_text(old)} s", f"{_text(new)} s"))  # noqa: B023
    return board


def _changes(limits: Limits) -> Iterator[tuple[str, float, float]]:
    """Yield name, default and value of each limit that is not the default."""
    for field in fields(limits):
        old, new = getattr(DEFAULTS, field.name), getattr(limits, field.name)
        if old != new:
            yield field.name, old, new


def _change_quotes(alerts: Mapping[str, Any], option: str, old: str, new: str) -> None:
    """Change a limit where the alerts of a file quote it."""
    for quoted, name, field, text in _QUOTED:
        if quoted == option and name in alerts:
            holder = alerts[name] if field == "expr" else alerts[name]["annotations"]
            holder[field] = _replace_once(holder[field], text.format(old), text.format(new))


def _change_objective(
    alerts: Mapping[str, Any], recordings: Mapping[str, Any], prefix: str, name: str, _: int, old: float, new: float
) -> None:
    """Change how many events may be bad: in what is recorded of the budget, and in its alerts' rates and texts."""
    for recording, rule in recordings.items():
        if recording.startswith(f"traced_tools:{name}:budget_left"):
            rule["expr"] = _replace_once(rule["expr"], f" / {old:g}", f" / {new:g}")
    for alert in (alerts[f"{prefix}{speed}"] for speed in ("BurnFast", "BurnSlow") if alerts):
        alert["expr"] = _COMPARISON.sub(lambda match: f"{float(match[0]) / old * new:g}", alert["expr"])
        notes = alert["annotations"]
        notes["description"] = _replace_once(notes["description"], f"allows {old:.1%}", f"allows {new:.1%}")


def _replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ConfigurationError("the files of the dashboards are of another release: install traced_tools anew")
    return text.replace(old, new)


def _text(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value:g}"


def _panels(node: Any, number: int) -> Iterator[dict[str, Any]]:
    """Yield the panel with this id: a panel of the classic schema, or the spec of an element of v2."""
    if isinstance(node, dict):
        if node.get("id") == number and "title" in node:
            yield node
        for child in node.values():
            yield from _panels(child, number)
    elif isinstance(node, list):
        for child in node:
            yield from _panels(child, number)


def _change_thresholds(node: Any, old: float, new: float) -> None:
    if isinstance(node, dict):
        for step in node.get("steps", ()) if isinstance(node.get("steps"), list) else ():
            if step.get("value") == old:
                step["value"] = new
        for child in node.values():
            _change_thresholds(child, old, new)
    elif isinstance(node, list):
        for child in node:
            _change_thresholds(child, old, new)


def _map_texts(node: Any, change: Callable[[str], str]) -> Any:
    """Return a document with each text changed."""
    if isinstance(node, str):
        return change(node)
    if isinstance(node, dict):
        return {key: _map_texts(value, change) for key, value in node.items()}
    if isinstance(node, list):
        return [_map_texts(child, change) for child in node]
    return node
