"""`traced-tools doctor` says which versions are installed, what is configured, and whether everything answers.

Exit status: 0 if nothing is wrong, 1 if a server does not answer or a variable is wrong, 2 if the check itself fails.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final

import typer

from traced_tools.cli.audit import options
from traced_tools.cli.audit.formatting import as_text, json_text, make_console
from traced_tools.cli.doctor.clock import check_clock
from traced_tools.cli.doctor.collectors import collector_checks
from traced_tools.cli.doctor.environment import check_environment
from traced_tools.cli.doctor.forks import check_forks
from traced_tools.cli.doctor.mcp_servers import mcp_checks
from traced_tools.cli.doctor.model_servers import model_server_checks
from traced_tools.cli.doctor.prometheus import prometheus_checks
from traced_tools.cli.doctor.result import Check, Result, State
from traced_tools.cli.doctor.stores import store_checks
from traced_tools.cli.doctor.versions import check_versions
from traced_tools.cli.exits import NEGATIVE, exit_statuses
from traced_tools.cli.headers import read_header
from traced_tools.observe.failures import error_type

_COMMAND: Final = "doctor"
_STYLES: Final = {State.OK: "", State.NOTE: "yellow", State.PROBLEM: "red"}
_MOST: Final = 2000


app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The collector that your code passes to configure(otlp=).", show_default=False
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="PORT_OR_ADDRESS", help="The address that your code passes to configure(prometheus=)."),
    ] = None,
    model_server: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="The base URL of a model server with OpenAI's API. Repeatable."),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL_OR_COMMAND", help="An MCP server to check: its URL, or the command that starts it. Repeatable."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VARIABLE",
            help="A header for the MCP servers at URLs, and the environment variable with its value, such as "
            "Authorization=MCP_AUTHORIZATION. Repeatable.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each check may take.")] = 30.0,
    json: options.Json = False,
) -> None:
    """Check versions and variables, and whether collectors, model servers, stores and MCP servers answer.

    Collectors, model servers and stores are those of the environment, with its keys and headers. No key, header, query
    or password is printed. Exit with status 1 if something does not answer or a variable is wrong. The command of an
    MCP server is split like in a shell, and runs until the server has answered. It inherits few variables of the
    environment.
    """
    with exit_statuses(_COMMAND) as command:
        checks = [
            *mcp_checks(mcp or (), dict(map(read_header, header or ())), timeout),
            *collector_checks(otlp),
            *prometheus_checks(prometheus, timeout),
            *model_server_checks(model_server or (), timeout),
            *store_checks(),
        ]
        answers = _run(checks, timeout)
        results = [*check_versions(), *check_environment(), *answers, *check_clock(answers), *check_forks(prometheus)]
        command.status = NEGATIVE if any(result.state is State.PROBLEM for result in results) else 0
        if json:
            print(json_text({"ok": not command.status, "checks": [result.as_json() for result in results]}))
        else:
            _print(results)


def _run(checks: Sequence[Check], timeout: float) -> list[Result]:
    """Run checks side by side, and return their results in the order of the checks.

    A check that takes longer than `timeout` seconds is left to its thread, which does not keep the process alive.
    """
    results: dict[int, list[Result]] = {}

    def run(place: int, check: Check) -> None:
        try:
            results[place] = [*check.run()]
        except Exception as error:  # its text may hold a key
            text = f"the check raised {error_type(error)}"
            results[place] = [Result(check.group, check.subject, State.PROBLEM, text, "check the settings of it")]

    threads = [threading.Thread(target=run, args=numbered, daemon=True) for numbered in enumerate(checks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout + 1  # the time-out of a connection may end just then, with a better text
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [result for place, check in enumerate(checks) for result in results.get(place) or [_late(check, timeout)]]


def _late(check: Check, timeout: float) -> Result:
    text = f"has not answered within {timeout:g} seconds"
    return Result(check.group, check.subject, State.PROBLEM, text, "check that it runs, or pass a longer --timeout")


def _print(results: Sequence[Result]) -> None:
    console = make_console(sys.stdout)
    for group, members in groupby(results, lambda result: result.group):
        console.print(as_text(group, "bold"))
        for result in members:
            for line in _lines(result):
                console.print(as_text(line, _STYLES[result.state], _MOST))


def _lines(result: Result) -> Iterator[str]:
    first, *others = result.text.splitlines() or [""]
    if others:
        yield f"  {result.subject}"
        yield from (f"    {line}" for line in (first, *others))
    else:
        yield f"  {result.subject}  {first}"
    if result.advice:
        yield f"    {result.advice}"
