"""The commands of `traced-tools dashboards`.

Exit status: 0 for success, 1 if Grafana cannot be reached or refuses, 2 if the command line is invalid or a file cannot
be written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from traced_tools.cli.audit.formatting import escape
from traced_tools.cli.dashboards import files
from traced_tools.cli.dashboards.files import Schema
from traced_tools.errors import ConfigurationError

_SCHEMA = "classic for Grafana 10 and later, or v2 for Grafana 13 and later."

app = typer.Typer(no_args_is_help=True, help="Export the dashboards and rules as files, or import them into Grafana.")


@app.command()
def export(
    dir: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the files. It is created if missing.")],
    schema: Annotated[Schema, typer.Option(help=_SCHEMA)] = Schema.CLASSIC,
) -> None:
    """Write the dashboards to DIR, and the recording and alert rules of Prometheus to DIR/rules."""
    try:
        targets = {dir / source.name: source for source in files.boards(schema)}
        targets |= {dir / "rules" / source.name: source for source in files.rules()}
        for target, source in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            typer.echo(escape(str(target)))
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
        boards = [json.loads(path.read_bytes()) for path in files.boards(Schema.CLASSIC)]
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
