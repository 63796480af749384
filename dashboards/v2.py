"""Encodes a board as Grafana's resource `dashboard.grafana.app/v2`, with a tab for each section.

The types and defaults are those of grafana-foundation-sdk, which Grafana generates from its own schema. Grafana 13 and
later import the resource as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from grafana_foundation_sdk.builders import common, heatmap, logs, loki, prometheus, stat, table, tempo, timeseries
from grafana_foundation_sdk.builders import dashboardv2 as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_types
from grafana_foundation_sdk.models import dashboardv2 as types
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.tempo import MetricsQueryType, SearchTableType

from dashboards.panels import (
    ANNOTATIONS,
    TAG,
    WIDTH,
    Annotation,
    Board,
    Column,
    Heatmap,
    Instant,
    LogList,
    LogMetric,
    Logs,
    Panel,
    Query,
    Range,
    Section,
    SpanMetric,
    Spans,
    Stat,
    Table,
    Threshold,
    TimeSeries,
    Variable,
)
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

API_VERSION: Final = "dashboard.grafana.app/v2"
SOURCES: Final = {"prometheus": "Prometheus", "tempo": "Tempo", "loki": "Loki"}
"""The types of data sources, which are the names of their variables, and their titles."""
_TRACES_SHOWN: Final = 50
_NUMBERS: Final = {label_name(each.name) for each in names.ATTRIBUTES.values() if each.type in ("int", "double")}
"""The attributes of log records that are numbers."""


def resource(board: Board) -> dict[str, Any]:
    """Return a board as a resource, as JSON values."""
    spec = (
        builders.Dashboard(board.title)
        .description(board.question)
        .tags([TAG])
        .editable(False)
        .cursor_sync(types.DashboardCursorSync.CROSSHAIR)
        .time_settings(_time_settings(board))
        .variables([*_source_variables(board), *map(_variable, board.variables)])
        .links([_menu()])
        .annotations([_annotation(each) for each in ANNOTATIONS])
        .layout(builders.Tabs().tabs([_tab(section) for section in board.sections]))
    )
    for panel in board.panels:
        spec.element(_key(panel), _panel(panel))
    encoded: dict[str, Any] = json.loads(json.dumps(spec.build(), cls=JSONEncoder))
    return {"apiVersion": API_VERSION, "kind": "Dashboard", "metadata": {"name": board.uid}, "spec": encoded}


def _time_settings(board: Board) -> builders.TimeSettings:
    return builders.TimeSettings().from_val(board.span).to("now").auto_refresh(board.refresh).timezone(board.timezone)


def _menu() -> builders.DashboardLink:
    """Return the menu of all boards, which keeps the time range and the variables."""
    return (
        builders.DashboardLink()
        .title("Agent boards")
        .type(types.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _annotation(annotation: Annotation) -> builders.AnnotationQuery:
    query = prometheus.QueryV2().expr(annotation.text).legend_format(annotation.legend)
    query = query.datasource(_reference("prometheus"))
    return builders.AnnotationQuery().name(annotation.title).enable(True).icon_color(annotation.color).query(query)


def _source_variables(board: Board) -> Iterator[builders.DatasourceVariable]:
    used = {"prometheus", *(_source(query) for panel in board.panels for query in panel.queries)}
    for kind, title in SOURCES.items():
        if kind in used:
            yield builders.DatasourceVariable(kind).plugin_id(kind).label(title).multi(False).include_all(False)


def _variable(variable: Variable) -> Builder[types.VariableKind]:
    if variable.query is None:
        return builders.TextVariable(variable.name).label(variable.title)
    return (
        builders.QueryVariable(variable.name)
        .label(variable.title)
        .query(_VariableQuery(variable.query))
        .definition(variable.query)
        .refresh(types.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(types.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(types.VariableOption(text="All", value="$__all", selected=True))
    )


class _VariableQuery(Builder[types.DataQueryKind]):
    """A query for the values of a variable, which has no expression as a panel's query has."""

    def __init__(self, text: str) -> None:
        self._text = text

    def build(self) -> types.DataQueryKind:
        spec = {"query": self._text, "refId": "values"}
        source = _reference("prometheus").build()
        return types.DataQueryKind(group="prometheus", version="v0", spec=spec, datasource=source)


def _tab(section: Section) -> builders.Tab:
    """Return a tab whose panels fill rows of the grid from left to right."""
    grid, x, y, tallest = builders.Grid(), 0, 0, 0
    for panel in section.panels:
        if x + panel.width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        item = builders.GridItem().name(_key(panel)).x(x).y(y).width(panel.width).height(panel.height)
        grid.item(item)
        x, tallest = x + panel.width, max(tallest, panel.height)
    return builders.Tab().title(section.title).layout(grid)


def _key(panel: Panel) -> str:
    return f"panel-{panel.id}"


def _panel(panel: Panel) -> builders.Panel:
    group = builders.QueryGroup()
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        group.target(builders.Target().ref_id(ref).query(_query(query, panel)))
    if isinstance(panel, Table):
        group.transformations(list(_transformations(panel)))
    return (
        builders.Panel()
        .id(panel.id)
        .title(panel.title)
        .description(panel.description)
        .links([builders.DataLink().title(link.title).url(link.url).target_blank(False) for link in panel.links])
        .data(group)
        .visualization(_visualization(panel))
    )


def _reference(kind: str) -> builders.Dashboardv2DataQueryKindDatasource:
    return builders.Dashboardv2DataQueryKindDatasource().name(f"${{{kind}}}")


def _source(query: Query) -> str:
    match query:
        case Range() | Instant():
            return "prometheus"
        case Logs() | LogMetric():
            return "loki"
        case Spans() | SpanMetric():
            return "tempo"


def _query(query: Query, panel: Panel) -> Builder[types.DataQueryKind]:
    source = _reference(_source(query))
    match query:
        case Range():
            shape = PromQueryFormat.HEATMAP if isinstance(panel, Heatmap) else PromQueryFormat.TIME_SERIES
            over_time = prometheus.QueryV2().expr(query.text).legend_format(query.legend).format(shape)
            return over_time.range(True).exemplar(query.exemplars).datasource(source)
        case Instant():
            shape = PromQueryFormat.TABLE if isinstance(panel, Table) else PromQueryFormat.TIME_SERIES
            at_end = prometheus.QueryV2().expr(query.text).legend_format(query.legend).format(shape)
            return at_end.instant(True).datasource(source)
        case Logs():
            return loki.QueryV2().expr(query.text).query_type("range").max_lines(query.limit).datasource(source)
        case LogMetric():
            return loki.QueryV2().expr(query.text).query_type("instant").legend_format(query.legend).datasource(source)
        case Spans():
            found = tempo.QueryV2().query(query.text).query_type("traceql").limit(_TRACES_SHOWN)
            return found.spss(query.per_trace).table_type(SearchTableType.SPANS).datasource(source)
        case SpanMetric():
            counted = tempo.QueryV2().query(query.text).query_type("traceql")
            return counted.metrics_query_type(MetricsQueryType.RANGE).datasource(source)


def _transformations(panel: Table) -> Iterator[builders.Transformation]:
    if any(isinstance(query, Logs) for query in panel.queries):
        yield builders.Transformation().group("extractFields").options({"source": "labels", "replace": False})
    if len(panel.queries) > 1:
        yield builders.Transformation().group("merge").options({})
    if texts := _numbers_as_texts(panel):
        numbers = [{"targetField": field, "destinationType": "number"} for field in texts]
        yield builders.Transformation().group("convertFieldType").options({"conversions": numbers, "fields": {}})
    if panel.columns:
        options = {
            "includeByName": dict.fromkeys(panel.columns, True),
            "indexByName": {name: index for index, name in enumerate(panel.columns)},
            "renameByName": {name: column.heading for name, column in panel.columns.items()},
        }
        yield builders.Transformation().group("organize").options(options)


def _numbers_as_texts(panel: Table) -> list[str]:
    """Return attributes of spans and log records that Grafana takes for texts, and would sort and format as such."""
    match panel.queries[0]:
        case Spans():
            return [panel.sort] if panel.sort is not None else []
        case Logs():
            return [field for field in panel.columns or () if field in _NUMBERS]
    return []


def _visualization(panel: Panel) -> Builder[types.VizConfigKind]:
    match panel:
        case TimeSeries():
            return _time_series(panel)
        case Stat():
            return _stat(panel)
        case Heatmap():
            drawn = heatmap.VisualizationV2().unit(panel.unit).no_value(panel.empty)
            return drawn.y_axis(heatmap.YAxisConfig().unit(panel.unit)).calculate(False)
        case Table():
            return _table(panel)
        case LogList():
            listed = logs.VisualizationV2().no_value(panel.empty).show_time(True).wrap_log_message(True)
            return listed.enable_log_details(True).sort_order(common_types.LogsSortOrder.DESCENDING)
    raise TypeError(f"there is no visualization for a {type(panel).__name__}")


def _time_series(panel: TimeSeries) -> Builder[types.VizConfigKind]:
    legend = common.VizLegendOptions().show_legend(True).display_mode(common_types.LegendDisplayMode.LIST)
    lines = (
        timeseries.VisualizationV2()
        .unit(panel.unit)
        .no_value(panel.empty)
        .min(0)
        .legend(legend.placement(common_types.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(common_types.TooltipDisplayMode.MULTI))
        .show_points(common_types.VisibilityMode.AUTO)
        .fill_opacity(60 if panel.stacked else 5)
    )
    for name, color in panel.colors.items():
        fixed = {"mode": "fixed", "fixedColor": color}
        lines.override_by_name(name, [types.DynamicConfigValue(id_val="color", value=fixed)])
    if panel.stacked:
        lines.stacking(common.StackingConfig().mode(common_types.StackingMode.NORMAL))
    if panel.threshold is not None:
        lines.thresholds(_thresholds(panel.threshold))
        lines.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_types.GraphThresholdsStyleMode.DASHED))
    return lines


def _stat(panel: Stat) -> Builder[types.VizConfigKind]:
    number = (
        stat.VisualizationV2()
        .unit(panel.unit)
        .no_value(panel.empty)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_types.BigValueGraphMode.AREA)
    )
    if panel.unit == "locale":
        number.decimals(0)
    if panel.threshold is not None:
        number.thresholds(_thresholds(panel.threshold))
    if panel.values:
        options = {value: types.ValueMappingResult(text=text) for value, text in panel.values.items()}
        number.mappings([types.ValueMap(options=options)])
    return number


def _table(panel: Table) -> Builder[types.VizConfigKind]:
    rows = table.VisualizationV2().unit(panel.unit).no_value(panel.empty).show_header(True)
    columns = panel.columns or {}
    for column in columns.values():
        rows.override_by_name(column.heading, list(_column_properties(column)))
    if panel.sort is not None:
        heading = columns[panel.sort].heading if panel.sort in columns else panel.sort
        rows.sort_by([common.TableSortByFieldState().display_name(heading).desc(True)])
    return rows


def _column_properties(column: Column) -> Iterable[types.DynamicConfigValue]:
    yield types.DynamicConfigValue(id_val="unit", value=column.unit)
    if column.unit == "locale":
        yield types.DynamicConfigValue(id_val="decimals", value=0)
    if column.link is not None:
        yield types.DynamicConfigValue(id_val="links", value=[{"title": column.heading, "url": column.link}])


def _thresholds(threshold: Threshold) -> builders.ThresholdsConfig:
    steps = [
        types.Threshold(value=None, color=threshold.below),
        types.Threshold(value=threshold.value, color=threshold.color),
    ]
    return builders.ThresholdsConfig().mode(types.ThresholdsMode.ABSOLUTE).steps(steps)
