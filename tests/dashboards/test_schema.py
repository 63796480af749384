"""The boards of Grafana 13's schema have the types that Grafana publishes for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.dashboards.board_queries import files
from tests.dashboards.node import PACKAGES, run_node

OPTIONS = {
    "strict": True,
    "noEmit": True,
    "skipLibCheck": True,
    "module": "esnext",
    "moduleResolution": "bundler",
    "types": [],
}
QUERY = {"kind": "DataQuery", "group": "prometheus", "version": "v0", "spec": {"expr": "up"}}
ELEMENT = {
    "kind": "Panel",
    "spec": {
        "id": 1,
        "title": "runs",
        "links": [],
        "data": {
            "kind": "QueryGroup",
            "spec": {
                "queries": [{"kind": "PanelQuery", "spec": {"query": QUERY, "refId": "A", "hidden": False}}],
                "transformations": [],
                "queryOptions": {},
            },
        },
        "vizConfig": {
            "kind": "VizConfig",
            "group": "timeseries",
            "version": "",
            "spec": {"options": {}, "fieldConfig": {"defaults": {"unit": "s"}, "overrides": []}},
        },
    },
}
ITEM = {"x": 0, "y": 0, "width": 24, "height": 8, "element": {"kind": "ElementReference", "name": "panel-1"}}
GRID = {"kind": "GridLayout", "spec": {"items": [{"kind": "GridLayoutItem", "spec": ITEM}]}}
TAB = {"kind": "TabsLayoutTab", "spec": {"title": "first", "layout": GRID}}
BOARD: dict[str, Any] = {
    "annotations": [],
    "cursorSync": "Crosshair",
    "elements": {"panel-1": ELEMENT},
    "layout": {"kind": "TabsLayout", "spec": {"tabs": [TAB]}},
    "links": [],
    "preload": False,
    "tags": [],
    "timeSettings": {
        "autoRefresh": "",
        "autoRefreshIntervals": [],
        "fiscalYearStartMonth": 0,
        "from": "now-1h",
        "hideTimepicker": False,
        "to": "now",
    },
    "title": "a board",
    "variables": [],
}


def type_errors(specs: Mapping[str, Any], folder: Path) -> str:
    """Return what the TypeScript compiler finds wrong with the specs of boards, by their names."""
    (folder / "node_modules").symlink_to(PACKAGES)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["*.ts"]}))
    for name, spec in specs.items():
        (folder / f"{name}.ts").write_text(
            'import type { Spec } from "@grafana/schema/apis/dashboard.grafana.app/v2";\n'
            f"export const spec: Spec = {json.dumps(spec, indent=1)};\n"
        )
    done = run_node(PACKAGES / "typescript/bin/tsc", "--project", folder, needs="@grafana/schema")
    assert bool(done.returncode) == bool(done.stdout), done.stderr
    return done.stdout


def test_every_board_has_the_types_of_the_schema(tmp_path: Path) -> None:
    boards = {path.stem: json.loads(path.read_text()) for path in files("v2", "tt-*.json")}
    assert {board["apiVersion"] for board in boards.values()} == {"dashboard.grafana.app/v2"}
    assert type_errors({name: board["spec"] for name, board in boards.items()}, tmp_path) == ""


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """Return the board with another value at a path."""
    board = deepcopy(BOARD)
    place: Any = board
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return board


def test_the_compiler_finds_each_misspelt_key_and_wrong_type(tmp_path: Path) -> None:
    spec, viz = ("elements", "panel-1", "spec"), ("elements", "panel-1", "spec", "vizConfig", "spec", "fieldConfig")
    boards = {
        "right": BOARD,
        "board": changed("descripton", to="misspelt"),
        "panel": changed(*spec, "descripton", to="misspelt"),
        "query": changed(*spec, "data", "spec", "queries", 0, "spec", "refid", to="misspelt"),
        "unit": changed(*viz, "defaults", "unit", to=["s"]),
        "color": changed(*viz, "defaults", "color", to={"mode": "no such palette"}),
        "layout": changed("layout", "spec", "tabs", 0, "spec", "layout", "spec", "itmes", to=[]),
        "size": changed(
            "layout", "spec", "tabs", 0, "spec", "layout", "spec", "items", 0, "spec", "width", to="24"
        ),
    }  # fmt: skip
    found = type_errors(boards, tmp_path)
    assert {name for name in boards if f"{name}.ts" in found} == boards.keys() - {"right"}
