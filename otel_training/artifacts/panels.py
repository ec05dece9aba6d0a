"""The panels in use: numbers, lines, stacked areas, events, rankings; each with a description and a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.models import common as styles
from grafana_foundation_sdk.models import dashboard as models

from otel_training.artifacts.variables import DATASOURCE

AnyPanel = TypeVar("AnyPanel", timeseries.Panel, stat.Panel, bargauge.Panel)
Panel = timeseries.Panel | stat.Panel | bargauge.Panel

SECONDS, BYTES, FRACTION, COUNT, PER_SECOND = "s", "bytes", "percentunit", "short", "ops"
CELSIUS, WATTS, JOULES, PLAIN = "celsius", "watt", "joule", "none"
EVENTS_PER_SECOND, DIGITS = "eps", "locale"
"""``DIGITS`` shows all digits of a number, in groups of three."""

NO_DATA = "Nothing reported in this time range"
NO_GPU = "No CUDA device reports here"
NO_NVML = "No GPU reports here; install otel-training[nvml]"
NO_XLA = "No XLA device reports here"
NO_MPS = "No Apple GPU reports here"
NO_DILOCO = "No DiLoCo training reports here"
NO_EVENTS = "None in this time range"

WARN, BAD = "orange", "red"


@dataclass(frozen=True)
class Query:
    """A query of a panel.

    Args:
        expression: PromQL.
        legend: Name of its series; Grafana fills in ``{{label}}``.
        instant: Asked at the end of the time range only: for totals and ages.
    """

    expression: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Text:
    """The words of a panel, which no panel goes without.

    Args:
        title: What it shows.
        description: What it means and how to read it.
        unit: Grafana's name of the unit.
        no_value: What stands there instead of data.
    """

    title: str
    description: str
    unit: str
    no_value: str = NO_DATA


def number(
    text: Text,
    *queries: Query,
    steps: tuple[tuple[float, str], ...] = (),
    values: dict[int, tuple[str, str]] | None = None,
    decimals: float | None = None,
    span: int = 4,
    height: int = 4,
) -> stat.Panel:
    """Return the latest value, large.

    Args:
        text: Its words.
        queries: What to show.
        steps: From which value on which colour; green below the first, and white without any.
        values: Words and colour for single values.
        decimals: Digits after the point; Grafana's choice when None.
        span: Width in columns of 24.
        height: Height in rows of the grid.
    """
    panel = _described(stat.Panel(), text, queries)
    panel.span(span).height(height)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    sparkline = not (values or any(query.instant for query in queries))
    panel.graph_mode(styles.BigValueGraphMode("area" if sparkline else "none"))
    panel.color_mode(styles.BigValueColorMode("value")).text_mode(styles.BigValueTextMode("auto"))
    panel.justify_mode(styles.BigValueJustifyMode("auto")).orientation(styles.VizOrientation("auto"))
    if decimals is not None:
        panel.decimals(decimals)
    if values:
        options = {
            str(value): models.ValueMappingResult(text=words, color=color, index=index)
            for index, (value, (words, color)) in enumerate(values.items())
        }
        panel.mappings([models.ValueMap(options=options)])
    # A colour is a judgement: numbers that nobody can judge alone are white, their missing values, too.
    panel.thresholds(_steps(steps, base="green" if steps else "text"))
    return panel


def lines(
    text: Text,
    *queries: Query,
    span: int = 12,
    height: int = 8,
    minimum: float | None = None,
    maximum: float | None = None,
    log_scale: bool = False,
    dots: bool = False,
    dashed: tuple[str, ...] = (),
) -> timeseries.Panel:
    """Return lines over time.

    Args:
        text: Its words.
        queries: What to show.
        span: Width in columns of 24.
        height: Height in rows of the grid.
        minimum: Lower end of the axis.
        maximum: Upper end of the axis.
        log_scale: A logarithmic axis, base 10.
        dots: A dot for each value, for what happens too seldom to make a line.
        dashed: Patterns of legends that are drawn dashed and grey: limits and targets.
    """
    panel = _described(timeseries.Panel(), text, queries)
    panel.span(span).height(height)
    panel.line_width(1).fill_opacity(0 if dots else 8)
    panel.show_points(styles.VisibilityMode("always" if dots else "auto")).point_size(6 if dots else 5)
    # A run that was away leaves a gap; a scrape or two that failed does not.
    panel.span_nulls(60000.0)
    _legend(panel)
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    if log_scale:
        panel.scale_distribution(
            common.ScaleDistributionConfig().type(styles.ScaleDistribution("log")).log(10)
        )
    for pattern in dashed:
        panel.override_by_regexp(
            f"/{pattern}/",
            [
                models.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]}),
                models.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
                models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "text"}),
            ],
        )
    return panel


def areas(
    text: Text,
    *queries: Query,
    span: int = 12,
    height: int = 8,
    maximum: float | None = None,
    colors: dict[str, str] | None = None,
) -> timeseries.Panel:
    """Return parts of a whole over time, stacked.

    Args:
        text: Its words.
        queries: What to show.
        span: Width in columns of 24.
        height: Height in rows of the grid.
        maximum: Upper end of the axis.
        colors: Colour of each legend, so that a part looks the same wherever and whenever it is shown.
    """
    panel = lines(text, *queries, span=span, height=height, minimum=0.0, maximum=maximum)
    panel.fill_opacity(60).line_width(0).stacking(_stacked())
    for legend, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(legend, [models.DynamicConfigValue(id_val="color", value=fixed)])
    return panel


def events(text: Text, *queries: Query, span: int = 8, height: int = 7) -> timeseries.Panel:
    """Return how often something happened, as bars: mostly nothing, and then one wants to see when."""
    panel = lines(text, *queries, span=span, height=height, minimum=0.0)
    # A bar a minute. Finer ones are narrower than the window of their rates and show one event many times.
    panel.interval("1m")
    panel.draw_style(styles.GraphDrawStyle("bars")).fill_opacity(80).decimals(0).stacking(_stacked())
    return panel


def ranking(
    text: Text,
    *queries: Query,
    steps: tuple[tuple[float, str], ...] = (),
    span: int = 8,
    height: int = 8,
    maximum: float | None = None,
) -> bargauge.Panel:
    """Return who has most, now: a bar for each series.

    Args:
        text: Its words.
        queries: What to show.
        steps: From which value on which colour; green below the first.
        span: Width in columns of 24.
        height: Height in rows of the grid.
        maximum: What fills a bar; the largest value when None, which makes full bars of equal trifles.
    """
    panel = _described(bargauge.Panel(), text, queries)
    panel.span(span).height(height)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.orientation(styles.VizOrientation("horizontal")).display_mode(
        styles.BarGaugeDisplayMode("gradient")
    )
    panel.show_unfilled(True).min(0.0)
    if maximum is not None:
        panel.max(maximum)
    panel.thresholds(_steps(steps))
    return panel


def _described(panel: AnyPanel, text: Text, queries: tuple[Query, ...]) -> AnyPanel:
    panel.title(text.title).description(text.description).unit(text.unit).no_value(text.no_value)
    panel.datasource(DATASOURCE)
    for position, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend or "__auto")
        target.datasource(DATASOURCE).ref_id(chr(ord("A") + position))
        panel.with_target(target.instant() if query.instant else target.range())
    return panel


def _legend(panel: timeseries.Panel) -> None:
    legend = common.VizLegendOptions().show_legend(True).placement(styles.LegendPlacement("bottom"))
    panel.legend(legend.display_mode(styles.LegendDisplayMode("list")).calcs([]))
    tooltip = common.VizTooltipOptions().mode(styles.TooltipDisplayMode("multi"))
    panel.tooltip(tooltip.sort(styles.SortOrder("desc")))


def _steps(steps: tuple[tuple[float, str], ...], base: str = "green") -> dashboards.ThresholdsConfig:
    first = [models.Threshold(value=None, color=base)]
    above = [models.Threshold(value=value, color=color) for value, color in steps]
    config = dashboards.ThresholdsConfig()
    config.mode(models.ThresholdsMode("absolute")).steps(first + above)
    return config


def _stacked() -> common.StackingConfig:
    config = common.StackingConfig()
    config.mode(styles.StackingMode("normal")).group("A")
    return config
