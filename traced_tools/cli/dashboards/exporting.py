"""Writes the boards and the rules to a folder, with other limits and addresses if they are passed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Final

from traced_tools.cli.dashboards import files
from traced_tools.cli.dashboards.files import BoardSchema
from traced_tools.cli.dashboards.limits import (
    DEFAULTS,
    Limits,
    check_address,
    with_limits_in_rules,
    with_limits_on_board,
)
from traced_tools.errors import ConfigurationError

_WIDTH: Final = 1000


def export_dashboards(
    dir: str | PathLike[str],
    *,
    schema: BoardSchema = BoardSchema.CLASSIC,
    limits: Limits = DEFAULTS,
    runbooks: str | None = None,
    grafana: str | None = None,
) -> Iterator[Path]:
    """Write the boards to a folder and the rules of Prometheus to its folder `rules`; yield each file once written.

    Args:
        dir: the folder, which is created if it is missing.
        schema: the schema of the boards.
        limits: the limits of the rules, which the boards draw.
        runbooks: the address of the page of runbooks, to which the alerts link; None for the path in the repository.
        grafana: the address of Grafana, in which the alerts link to panels; None for links without a host.

    Raises:
        ConfigurationError: an address cannot be used, or the installation has no dashboards.
        OSError: a file cannot be written.
    """
    runbooks = None if runbooks is None else check_address("runbooks", runbooks)
    grafana = None if grafana is None else check_address("grafana", grafana)
    folder, is_changed = Path(dir), limits != DEFAULTS
    for source in files.boards(schema):
        content = source.read_bytes()
        if is_changed:
            board = with_limits_on_board(json.loads(content), source.stem, limits)
            content = (json.dumps(board, indent=2, sort_keys=True) + "\n").encode()
        yield _write(folder / source.name, content)
    for source in files.rules():
        content = source.read_bytes()
        if is_changed or runbooks is not None or grafana is not None:
            content = _rules(content.decode(), limits, runbooks, grafana).encode()
        yield _write(folder / "rules" / source.name, content)


def _rules(text: str, limits: Limits, runbooks: str | None, grafana: str | None) -> str:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError("other limits or addresses need an extra: pip install 'traced_tools[cli]'") from None
    content = with_limits_in_rules(yaml.safe_load(text), limits, runbooks, grafana)
    return "# Written by `traced-tools dashboards export`.\n" + yaml.safe_dump(content, sort_keys=False, width=_WIDTH)


def _write(target: Path, content: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target
