"""Writes the attribute keys that the gateway lets through into `gateway.yaml`.

To be run as `python deploy/collector/allowed_keys.py` from the repository's root. The keys are all attributes of the
telemetry registry, except those that are content.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from traced_tools.observe import names
from traced_tools.observe.names.registry_types import EventType, SpanType

GATEWAY: Final = Path(__file__).with_name("gateway.yaml")
_CARRIERS: Final[list[SpanType | EventType]] = [*names.SPANS, *names.EVENTS.values()]
CONTENT: Final = {name for each in _CARRIERS for name in each.content} - {names.CONTENT_TRUNCATED}
"""The attributes that hold content. `CONTENT_TRUNCATED` only says that content is cut."""
_GENERATED: Final = re.compile(r"(?<=# BEGIN generated\n).*?(?=^ *# END generated$)", re.DOTALL | re.MULTILINE)


def allowed_keys() -> list[str]:
    """Return the keys of all attributes that are not content, sorted."""
    return sorted(names.ATTRIBUTES.keys() - CONTENT)


def with_allowed_keys(config: str) -> str:
    """Return the text of a configuration with the generated keys between its two marks."""
    lines = "".join(f"      - {key}\n" for key in allowed_keys())
    text, count = _GENERATED.subn(lines, config)
    if count != 1:
        raise ValueError("the configuration needs one pair of the marks '# BEGIN generated' and '# END generated'")
    return text


if __name__ == "__main__":
    GATEWAY.write_text(with_allowed_keys(GATEWAY.read_text(encoding="utf-8")), encoding="utf-8")
