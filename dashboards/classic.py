"""Converts a board's v2 resource to the classic schema, which Grafana 10 to 13 provision from files.

Options and field configurations of panels are the same in both schemas. A tab becomes a row. The schema:
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

SCHEMA_VERSION: Final = 42
_REFRESH: Final = {"never": 0, "onDashboardLoad": 1, "onTimeRangeChanged": 2}
_SORT: Final = {"disabled": 0, "alphabeticalAsc": 1}
_FIRST_ROW_ID: Final = 1000
"""Rows are panels in this schema. Their ids are larger than those of panels."""

Json = dict[str, Any]


def dashboard(resource: Mapping[str, Any]) -> Json:
    """Return a resource as a classic dashboard, as JSON values."""
    spec = resource["spec"]
    times = spec["timeSettings"]
    return {
        "annotations": {"list": [_annotation(each["spec"]) for each in spec["annotations"]]},
        "description": spec["description"],
        "editable": spec["editable"],
        "fiscalYearStartMonth": times["fiscalYearStartMonth"],
        "graphTooltip": 1,
        "links": [{**link, "icon": "external link"} for link in spec["links"]],
        "panels": list(_panels(spec)),
        "refresh": times["autoRefresh"],
        "schemaVersion": SCHEMA_VERSION,
        "tags": spec["tags"],
        "templating": {"list": [_variable(each["kind"], each["spec"]) for each in spec["variables"]]},
        "time": {"from": times["from"], "to": times["to"]},
        "timepicker": {"hidden": False},
        "timezone": times["timezone"],
        "title": spec["title"],
        "uid": resource["metadata"]["name"],
    }


def _panels(spec: Json) -> Iterator[Json]:
    tabs, top = spec["layout"]["spec"]["tabs"], 0
    for number, tab in enumerate(tabs):
        if len(tabs) > 1:
            yield {
                "type": "row",
                "id": _FIRST_ROW_ID + number,
                "title": tab["spec"]["title"],
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
                "panels": [],
            }
            top += 1
        items = [item["spec"] for item in tab["spec"]["layout"]["spec"]["items"]]
        for item in items:
            place = {"x": item["x"], "y": top + item["y"], "w": item["width"], "h": item["height"]}
            yield _panel(spec["elements"][item["element"]["name"]]["spec"], place)
        top += max(item["y"] + item["height"] for item in items)


def _panel(panel: Json, place: Json) -> Json:
    visual, data = panel["vizConfig"], panel["data"]["spec"]
    targets = [_target(query["spec"]) for query in data["queries"]]
    return {
        "datasource": targets[0]["datasource"],
        "description": panel["description"],
        "fieldConfig": visual["spec"]["fieldConfig"],
        "gridPos": place,
        "id": panel["id"],
        "links": panel["links"],
        "options": visual["spec"]["options"],
        "targets": targets,
        "title": panel["title"],
        "transformations": [
            {"id": each["group"], "options": each["spec"]["options"]} for each in data["transformations"]
        ],
        "type": visual["group"],
    }


def _target(panel_query: Json) -> Json:
    query = panel_query["query"]
    return {**query["spec"], "datasource": _source(query), "refId": panel_query["refId"]}


def _source(query: Json) -> Json:
    return {"type": query["group"], "uid": query["datasource"]["name"]}


def _annotation(spec: Json) -> Json:
    return {
        "datasource": _source(spec["query"]),
        "enable": spec["enable"],
        "expr": spec["query"]["spec"]["expr"],
        "iconColor": spec["iconColor"],
        "name": spec["name"],
        "titleFormat": spec["query"]["spec"]["legendFormat"],
    }


def _variable(kind: str, spec: Json) -> Json:
    common = {
        "name": spec["name"],
        "label": spec["label"],
        "hide": 0,
        "skipUrlSync": spec["skipUrlSync"],
        "current": spec["current"],
    }
    match kind:
        case "DatasourceVariable":
            own = {"type": "datasource", "query": spec["pluginId"], "refresh": 1, "regex": "", "options": []}
            return {**common, **own, "current": {}, "includeAll": False, "multi": False}
        case "TextVariable":
            return {**common, "type": "textbox", "query": spec["query"], "options": []}
        case "QueryVariable":
            copied = ("definition", "regex", "options", "multi", "includeAll", "allValue")
            return {
                **common,
                **{name: spec[name] for name in copied},
                "type": "query",
                "datasource": _source(spec["query"]),
                "query": spec["query"]["spec"],
                "refresh": _REFRESH[spec["refresh"]],
                "sort": _SORT[spec["sort"]],
            }
    raise ValueError(f"a classic dashboard has no {kind}")
