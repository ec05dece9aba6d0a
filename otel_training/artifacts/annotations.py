"""What happened to the run, as marks on every chart."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import AnnotationQuery

from otel_training import catalog
from otel_training.artifacts import legends
from otel_training.artifacts.legends import label
from otel_training.artifacts.queries import RUN_LABELS, aggregate
from otel_training.artifacts.variables import CHOSEN_RUNS as RUNS
from otel_training.artifacts.variables import DATASOURCE
from otel_training.catalog import devices


@dataclass(frozen=True)
class Annotation(Builder[AnnotationQuery]):
    """A kind of mark; its fields beside the common ones are those of Grafana's Prometheus data source.

    Args:
        name: What the toggle above the charts says.
        expression: PromQL with a value wherever something happened.
        title: Words of a mark; Grafana fills in ``{{label}}``.
        color: Colour of the marks.
        value_is_time: The value is the mark's time in milliseconds, instead of the time of the sample.
    """

    name: str
    expression: str
    title: str
    color: str
    value_is_time: bool = False

    def build(self) -> AnnotationQuery:
        """Return it as Grafana reads it."""
        return _PrometheusAnnotation(self)


class _PrometheusAnnotation(AnnotationQuery):
    """The SDK's annotation knows nothing of what the Prometheus data source adds."""

    def __init__(self, annotation: Annotation) -> None:
        super().__init__(
            name=annotation.name,
            datasource=DATASOURCE,
            enable=True,
            hide=False,
            icon_color=annotation.color,
            expr=annotation.expression,
        )
        self._annotation = annotation

    def to_json(self) -> dict[str, object]:
        """Return all fields by their names in the file."""
        fields = super().to_json()
        fields.pop("builtIn", None)
        fields["titleFormat"] = self._annotation.title
        # Newer versions read the query here, some of them only here.
        fields["target"] = {"refId": "Anno", "expr": self._annotation.expression}
        if self._annotation.value_is_time:
            fields["useValueForTime"] = "on"
        return fields


def all_annotations() -> list[Annotation]:
    """Return the marks: starts, ends, checkpoints, restores, non-finite values and memory errors."""

    def happened(metric: catalog.Metric, *by: catalog.Attribute) -> str:
        labels = (*RUN_LABELS, *(attribute.label for attribute in by))
        return aggregate("sum", RUNS.happened(metric, window="$__interval"), labels) + " > 0"

    active = aggregate("max", RUNS.series(catalog.RUN_ACTIVE), RUN_LABELS)
    before = aggregate("max", RUNS.series(catalog.RUN_ACTIVE) + " offset $__interval", RUN_LABELS)
    saved = aggregate("max", RUNS.series(catalog.CHECKPOINT_LAST_TIME), RUN_LABELS)
    return [
        Annotation("Starts", f"{active} == 1 unless {before} == 1", f"Start of {legends.RUN}", "green"),
        Annotation(
            "Ends",
            legends.joined(
                happened(catalog.RUNS, catalog.OUTCOME, catalog.ERROR_TYPE),
                catalog.OUTCOME,
                catalog.ERROR_TYPE,
            ),
            f"End of {legends.RUN}: {{{{{legends.WHAT}}}}}",
            "purple",
        ),
        Annotation(
            "Checkpoints", f"{saved} * 1000", f"Checkpoint of {legends.RUN}", "blue", value_is_time=True
        ),
        Annotation(
            "Steps done again", happened(catalog.STEP_REPLAYS), f"{legends.RUN} does steps again", "orange"
        ),
        Annotation(
            "Non-finite values",
            happened(catalog.NONFINITE_VALUES, catalog.FIELD),
            f"{label(catalog.FIELD)} of {legends.RUN} is NaN or infinite",
            "red",
        ),
        Annotation("Out of memory", happened(devices.CUDA_OOMS), f"Out of memory in {legends.RUN}", "red"),
    ]
