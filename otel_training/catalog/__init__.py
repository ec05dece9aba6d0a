"""Every metric, attribute, event and cap of this project, as data: the one place where a name is text.

Instruments, the scrape page, dashboards, alert rules and the tables in ``docs/`` are all derived from here.
To add a metric: declare it here and feed it in ``recorder.py``; nothing else needs to know
(``docs/adding-a-metric.md``).

Units are UCUM (``s``, ``By``, ``{step}``); ``1`` is used for true fractions 0..1 only, and quantities without
a unit (loss, learning rate, norms) have an empty one, so that every road to Prometheus spells them alike.
"""

# ruff: noqa: F403 - users of the catalog read all of it as one namespace; a test holds that no name stands twice
from otel_training.catalog.attributes import *
from otel_training.catalog.devices import *
from otel_training.catalog.events import *
from otel_training.catalog.kinds import *
from otel_training.catalog.metrics import *
from otel_training.catalog.naming import *

SCOPE = "otel_training"
"""Name of the OpenTelemetry instrumentation scope of all metrics and spans."""

OTHER = "other"
"""What an attribute value becomes when its attribute's cap is reached."""
