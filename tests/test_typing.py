"""What type checkers infer for users of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.house import public_names

PUBLIC = public_names()
CODE = """
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from typing_extensions import assert_type

from traced_tools import ChatClient, ChatClientResponse


class Invoice(BaseModel):
    total: float


async def infer(client: ChatClient) -> None:
    assert_type(client.prompt("?", output=Invoice).call().output, Invoice)
    assert_type((await client.prompt("?", output=list[Invoice]).acall()).output, list[Invoice])
    assert_type(client.prompt("?", output=Invoice | None).start().response.output, Invoice | None)
    assert_type(client.prompt("?", output=Literal["a", "b"]).stream().response.output, Literal["a", "b"])
    assert_type(client.prompt("?", output=Annotated[int, "a number"]).astream().response.output, int)
    assert_type(client.prompt("?").call(), ChatClientResponse[Any])
    client.prompt("?", limits=3)  # type: ignore[arg-type]
    client.resume("state", tool=())  # type: ignore[call-arg]


def unparametrized(response: ChatClientResponse) -> ChatClientResponse:
    return response.replace(iteration=1)
"""


@pytest.mark.slow
def test_mypy_infers_outputs_checks_settings_and_finds_every_public_name(tmp_path: Path) -> None:
    file = tmp_path / "inferred.py"
    file.write_text("\n".join([*(f"from {place} import {', '.join(names)}" for place, names in PUBLIC.items()), CODE]))
    arguments = ("--strict", "--config-file=", f"--cache-dir={tmp_path}", file)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
