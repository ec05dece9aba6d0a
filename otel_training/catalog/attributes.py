"""The attributes of metrics and spans."""

from __future__ import annotations

from otel_training.catalog.kinds import Attribute

MAX_CUSTOM_FIELDS = 200
"""Distinct (event, field) pairs that ``training.custom`` carries before ``other``."""

# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.


RUN_ID = Attribute("training.run.id", "Identity of the run; the same on all ranks and over restarts.")
RUN_NAME = Attribute("training.run.name", "Readable name of the run.")
RANK = Attribute("training.rank", "Rank of the process in the run, from 0.")
IDENTITY = (RUN_ID, RUN_NAME, RANK)
"""The three attributes that every series carries on the scrape page and behind the collector."""

LOCAL_RANK = Attribute("training.local_rank", "Rank of the process on its host, from 0.")

PRECISION = Attribute("training.precision", "Arithmetic of the run: fp32, bf16, fp16.", cap=20)
DEVICE_TYPE = Attribute("training.device.type", "Kind of device: cpu, cuda, mps, xla.", cap=20)
ACCUMULATION_STEPS = Attribute("training.accumulation_steps", "Micro-batches in an optimizer step.", cap=20)
FRAMEWORK = Attribute("training.framework", "Which trainer emits the events.", cap=20)
OUTCOME = Attribute("training.run.outcome", "How a run ended.", ("completed", "failed", "interrupted"))
ERROR_TYPE = Attribute("error.type", "Type of the exception; absent without one.", cap=50)
SKIP_REASON = Attribute("training.skip.reason", "Why a step or an upload was skipped.", cap=20)
FIELD = Attribute(
    "training.field", "Name of the payload field, as the trainer gave it.", cap=MAX_CUSTOM_FIELDS,
    max_length=512,
)
NONFINITE_KIND = Attribute(
    "training.nonfinite.kind", "Which non-finite value.", ("nan", "positive_infinity", "negative_infinity"),
)
TIME_STATE = Attribute(
    "training.state", "What the training thread did with the time.",
    ("step", "data_wait", "checkpoint_save", "checkpoint_restore", "compile", "validation",
     "outer_sync", "startup", "idle"),
)
STAGE = Attribute("training.stage", "validation or test.", cap=10)
COMPILE_ENABLED = Attribute(
    "training.compile.enabled", "Whether the compiled model is in use.", ("true", "false"),
)
SHAPE_FIELD = Attribute("training.shape.field", "Dimension that is not a multiple of the alignment.", cap=100)
DISPOSITION = Attribute(
    "training.delta.disposition", "What the outer step did with a delta.", ("included", "rejected"),
)
DELTA_OUTCOME = Attribute("training.delta.outcome", "How an upload ended.", ("uploaded", "failed", "skipped"))
HOOK_NAME = Attribute("training.hook.name", "Name of the hook that raised.", cap=20)
EVENT_NAME = Attribute("training.event.name", "Name of the event.", cap=50)
EVENT_OUTCOME = Attribute(
    "training.event.outcome", "What the bridge did with the event.", ("handled", "ignored", "failed"),
)
DROP_REASON = Attribute(
    "training.drop.reason", "Why a value was not kept.", ("type", "cardinality", "queue", "export"),
)
