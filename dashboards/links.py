"""Links from panels: to another board with the same filters, and to the traces behind a number."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from dashboards.panels import Link


def board(uid: str, title: str, *variables: str) -> Link:
    """Return a link to a board that keeps the time range and the values of variables."""
    return Link(title, board_url(uid, *(f"${{{variable}:queryparam}}" for variable in ("prometheus", *variables))))


def board_url(uid: str, *parameters: str) -> str:
    """Return the URL of a board with the current time range."""
    return f"/d/{uid}?" + "&".join(["${__url_time_range}", *parameters])


def chosen(variable: str) -> str:
    """Return the parameter of a board that sets a variable to the value that the reader clicks."""
    return f"var-{variable}=${{__value.raw:percentencode}}"


def traces(title: str, query: str) -> Link:
    """Return a link that runs a TraceQL query in Explore over the current time range.

    In a link, Grafana writes several values of a variable as `{a,b}` unless a format is named; a query needs `a|b`.
    """
    query = re.sub(r"\$(\w+)", r"${\1:pipe}", query)
    source = {"type": "tempo", "uid": "${tempo}"}
    pane = {
        "datasource": "${tempo}",
        "queries": [{"refId": "A", "datasource": source, "queryType": "traceql", "query": query}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    panes = quote(json.dumps({"traces": pane}, separators=(",", ":")), safe="${}:")
    return Link(title, f"/explore?schemaVersion=1&panes={panes}")


def trace_url(trace_id: str) -> str:
    """Return the URL of a trace; `trace_id` may be a variable, such as `${__value.raw}`."""
    return traces("", trace_id).url
