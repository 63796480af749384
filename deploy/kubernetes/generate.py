"""Generates the manifests that repeat files of other folders: `make deploy`.

Kustomize reads no files outside of its folder, and a custom resource can't refer to a file. So the text of each file
stands in a manifest, indented and otherwise unchanged. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parents[2]
BASE = Path(__file__).parent / "base"
COLLECTORS = {"agent": "agent", "gateway": "gateway", "audit": "gateway", "tail": "tail"}
"""The collector that each file in deploy/collector configures."""

_COLLECTOR = """\
apiVersion: opentelemetry.io/v1beta1
kind: OpenTelemetryCollector
metadata:
  name: {name}
spec:
  config:
"""
_RULE = """\
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: traced-tools-{name}
spec:
"""
_BOARDS = """\
# The Grafana chart's sidecar loads ConfigMaps that have this label.
generatorOptions:
  disableNameSuffixHash: true
  labels: {{grafana_dashboard: "1"}}
  annotations: {{grafana_folder: traced_tools}}
configMapGenerator:
{generators}"""


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each generated file."""
    for file, name in COLLECTORS.items():
        source = ROOT / "deploy" / "collector" / f"{file}.yaml"
        yield BASE / "configs" / f"{file}.yaml", _generated(source) + _COLLECTOR.format(name=name) + _text(source, 4)
    rules = sorted((ROOT / "dashboards" / "rules").glob("*.yaml"))
    yield (
        BASE / "rules.yaml",
        "".join(_generated(rule) + _RULE.format(name=rule.stem) + _text(rule, 2) for rule in rules),
    )
    boards = sorted(path.stem for path in (ROOT / "dashboards" / "classic").glob("*.json"))
    generators = "".join(f"  - name: {board}\n    files: [classic/{board}.json]\n" for board in boards)
    yield (
        ROOT / "dashboards" / "kustomization.yaml",
        "# Generated: `make deploy`.\n" + _BOARDS.format(generators=generators),
    )


def _generated(source: Path) -> str:
    return f"# Generated from {source.relative_to(ROOT)}: `make deploy`.\n"


def _text(source: Path, spaces: int) -> str:
    return indent(source.read_text(), " " * spaces)


if __name__ == "__main__":
    for path, text in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
