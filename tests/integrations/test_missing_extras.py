"""An integration whose framework is not installed says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = {
    "openai": ("openai", "openai"),
    "anthropic": ("anthropic", "anthropic"),
    "agent_framework": ("agent_framework", "agent-framework"),
}


@pytest.mark.parametrize("module", EXTRAS)
def test_an_integration_without_its_framework_names_the_extra(module: str) -> None:
    package, extra = EXTRAS[module]
    code = f"import sys; sys.modules[{package!r}] = None; import traced_tools.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"pip install 'traced_tools[{extra}]'" in done.stderr.splitlines()[-1]
