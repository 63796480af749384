"""The programs on the pages of `docs/recipes`, run as files of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.judges.programs import ROOT

MODEL = "gpt-5-mini"


def block(page: str, word: str, language: str = "python") -> str:
    """Return the only block of a page whose fence has this second word."""
    text = (ROOT / "docs" / "recipes" / page).read_text("utf-8")
    [code] = re.findall(rf"^```{language} {word}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(code)


def environment(base_url: str, **variables: str) -> dict[str, str]:
    """Return the variables of a process whose model is at an address, without those of this process about telemetry."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    return {**own, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none", **variables}


def start(file: Path, *arguments: str, env: dict[str, str], command: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a program, with warnings as errors unless `command` starts it."""
    return subprocess.Popen(
        [*(command or (sys.executable, "-W", "error")), str(file), *arguments],
        cwd=file.parent,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
