"""The commands of `traced-tools dashboards`.

Exit status: 0 for success, 1 if Grafana cannot be reached or refuses, 2 if the command line is invalid or a file cannot
be written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from traced_tools.cli.audit.formatting import escape
from traced_tools.cli.dashboards import files
from traced_tools.cli.dashboards.exporting import export_dashboards
from traced_tools.cli.dashboards.files import BoardSchema
from traced_tools.cli.dashboards.limits import DEFAULTS, Limits
from traced_tools.errors import ConfigurationError

_SCHEMA = "classic for Grafana 10 and later, or v2 for Grafana 13 and later."


def _limit(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Limits")


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Export the dashboards and rules as files, or import them into Grafana.",
)


@app.command()
def export(
    dir: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the files. It is created if missing.")],
    schema: Annotated[BoardSchema, typer.Option(help=_SCHEMA)] = BoardSchema.CLASSIC,
    runbooks: Annotated[
        str | None, typer.Option(metavar="URL", help="The page of your runbooks, to which the alerts link.")
    ] = None,
    grafana: Annotated[str | None, typer.Option(metavar="URL", help="Grafana, to which the alerts link.")] = None,
    run_success: Annotated[float, _limit("The objective: the share of runs that don't fail.")] = DEFAULTS.run_success,
    run_latency: Annotated[
        float, _limit("The objective: the share of runs that are fast enough.")
    ] = DEFAULTS.run_latency,
    slow_run_seconds: Annotated[
        float, _limit("The seconds that a fast run takes at most; a boundary of the histogram's buckets.")
    ] = DEFAULTS.slow_run_seconds,
    model_success: Annotated[
        float, _limit("The objective: the share of model calls that don't fail.")
    ] = DEFAULTS.model_success,
    model_errors: Annotated[float, _limit("The share of a model's calls that may fail.")] = DEFAULTS.model_errors,
    tool_errors: Annotated[float, _limit("The share of a tool's calls that may fail.")] = DEFAULTS.tool_errors,
    limited_runs: Annotated[float, _limit("The share of runs that limits may end.")] = DEFAULTS.limited_runs,
    first_chunk_seconds: Annotated[
        float, _limit("The 95th percentile of the time to the first chunk.")
    ] = DEFAULTS.first_chunk_seconds,
    stuck_run_seconds: Annotated[float, _limit("The age of the oldest active run.")] = DEFAULTS.stuck_run_seconds,
    stuck_tool_seconds: Annotated[
        float, _limit("The age of the oldest running tool call.")
    ] = DEFAULTS.stuck_tool_seconds,
    approval_seconds: Annotated[
        float, _limit("The age of the oldest call whose run waits for approval.")
    ] = DEFAULTS.approval_seconds,
    pending_seconds: Annotated[
        float, _limit("The age of the oldest call in a pending store.")
    ] = DEFAULTS.pending_seconds,
    ready_seconds: Annotated[float, _limit("How long a decided run may wait for a worker.")] = DEFAULTS.ready_seconds,
    idle_run_seconds: Annotated[
        float, _limit("For how long a durable run that waits for no person may make no progress.")
    ] = DEFAULTS.idle_run_seconds,
    daily_cost: Annotated[float, _limit("The US dollars that a service may cost in a day.")] = DEFAULTS.daily_cost,
    cost_factor: Annotated[float, _limit("How many times the median hour an hour may cost.")] = DEFAULTS.cost_factor,
) -> None:
    """Write the dashboards to DIR, and the recording and alert rules of Prometheus to DIR/rules.

    The other options change the limits of the rules, and where the boards draw them.
    """
    try:
        limits = Limits(
            run_success=run_success,
            run_latency=run_latency,
            slow_run_seconds=slow_run_seconds,
            model_success=model_success,
            model_errors=model_errors,
            tool_errors=tool_errors,
            limited_runs=limited_runs,
            first_chunk_seconds=first_chunk_seconds,
            stuck_run_seconds=stuck_run_seconds,
            stuck_tool_seconds=stuck_tool_seconds,
            approval_seconds=approval_seconds,
            pending_seconds=pending_seconds,
            ready_seconds=ready_seconds,
            idle_run_seconds=idle_run_seconds,
            daily_cost=daily_cost,
            cost_factor=cost_factor,
        )
        for path in export_dashboards(dir, schema=schema, limits=limits, runbooks=runbooks, grafana=grafana):
            typer.echo(escape(str(path)))
    except ConfigurationError as error:
        _exit(2, str(error))
    except OSError as error:
        if error.filename is None:
            raise  # standard output cannot be written
        _exit(2, f"{escape(str(error.filename))} cannot be written: {error.strerror}")


@app.command("import")
def import_boards(
    grafana_url: Annotated[
        str, typer.Option(metavar="URL", help="Grafana's address, with its path if it has one.", show_default=False)
    ],
    token: Annotated[
        str,
        typer.Option(
            metavar="TOKEN", envvar="GRAFANA_TOKEN", help="The token of a service account with the role Editor."
        ),
    ],
) -> None:
    """Save the dashboards in Grafana, in the folder traced_tools, and replace those that an earlier import saved.

    Set GRAFANA_TOKEN instead of passing --token: other users of the machine can see the options of a process.
    """
    from traced_tools.cli.dashboards.grafana import Grafana, ImportFailed  # here, so that other commands start faster

    try:
        boards = [json.loads(path.read_bytes()) for path in files.boards(BoardSchema.CLASSIC)]
        with Grafana(grafana_url, token) as grafana:
            grafana.create_folder()
            for board in boards:
                typer.echo(grafana.save(board))
    except ConfigurationError as error:
        _exit(2, str(error))
    except ImportFailed as error:
        _exit(1, str(error))


def _exit(status: int, message: str) -> NoReturn:
    typer.echo(f"dashboards: {message}", err=True)
    raise typer.Exit(status)
