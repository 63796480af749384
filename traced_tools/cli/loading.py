"""Loads objects of the application that a command works with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from traced_tools.cli.exits import FAILED, exit_with


def load_object(name: str, command: str, *, example: str) -> Any:
    """Return the object of a module, or exit with status 2; modules of the current directory come first.

    Args:
        name: the object, as MODULE:OBJECT.
        command: the name of the group of commands, which begins the line about a problem.
        example: a name of an object, for that line.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        exit_with(command, FAILED, f"{name!a} is not of the form MODULE:OBJECT, such as {example}")
    sys.path.insert(0, os.getcwd())
    try:
        loaded: Any = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            exit_with(command, FAILED, f"there is no module {error.name}: pass its name, and run this where it is")
        exit_with(command, FAILED, f"the module {module_name} cannot be imported: {type(error).__name__}: {error}")
    for part in path.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            exit_with(command, FAILED, f"the module {module_name} has no object {path}")
    return loaded


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Have what the application prints go to standard error: standard output is for what the command prints."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
