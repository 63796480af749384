"""Exit statuses of commands: every error is one line on standard error, and no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import typer

from traced_tools.cli.audit.formatting import escape
from traced_tools.cli.output import drop_output
from traced_tools.errors import TracedToolsError

NEGATIVE: Final = 1
"""Exit status: the command ran, and its result is negative."""
FAILED: Final = 2
"""Exit status: the command failed, so there is no result."""


@dataclass
class ExitStatus:
    """The exit status of a command, even if nothing reads the output."""

    status: int = 0


@contextmanager
def exit_statuses(command: str, *, printing: bool = True) -> Iterator[ExitStatus]:
    """Turn errors into one line on standard error and an exit status. A closed pipe ends the command quietly.

    Args:
        command: the name of the group of commands, which begins each line.
        printing: whether the command writes to standard output.
    """
    exit_status = ExitStatus()
    try:
        if printing and sys.stdout is None:
            exit_with(command, FAILED, "standard output cannot be written: it is closed")
        yield exit_status
        if sys.stdout is not None:
            sys.stdout.flush()
    except (typer.Exit, typer.BadParameter):
        raise
    except TracedToolsError as error:
        exit_with(command, FAILED, escape(str(error), most=2000))
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        cannot = f"{error.filename!a} cannot be read" if error.filename else "standard output cannot be written"
        exit_with(command, FAILED, f"{cannot}: {error.strerror or type(error).__name__}")
    except Exception as error:  # whose text may hold content
        exit_with(command, FAILED, f"unexpected {type(error).__name__}; please report it")
    if exit_status.status:
        raise typer.Exit(exit_status.status)


def exit_with(command: str, status: int, message: str) -> NoReturn:
    """Print one line to standard error and exit."""
    with suppress(OSError):
        typer.echo(f"{command}: {message}", err=True)
    raise typer.Exit(status)
