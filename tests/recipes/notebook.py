"""Runs the cells that come as JSON on stdin in a Jupyter kernel of this environment, and prints the outputs of each."""

from __future__ import annotations

import json
import sys
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook


def shown(outputs: list[dict[str, Any]]) -> dict[str, str]:
    """Return what a cell shows: its value, and what it prints on stdout and on stderr."""
    texts = {"value": "", "stdout": "", "stderr": ""}
    for output in outputs:
        if output["output_type"] == "stream":
            texts[output["name"]] += output["text"]
        else:
            texts["value"] += output["data"]["text/plain"]
    return texts


def main() -> None:
    """Run the cells; a cell that fails ends the process with an error."""
    notebook: Any = new_notebook(cells=[new_code_cell(code) for code in json.load(sys.stdin)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    nbformat.validate(notebook)
    print(json.dumps([shown(cell.outputs) for cell in notebook.cells]))


if __name__ == "__main__":
    main()
