"""The spans and what they carry."""

from __future__ import annotations

from otel_training.catalog.attributes import (
    ACCUMULATION_STEPS,
    COMPILE_ENABLED,
    DELTA_OUTCOME,
    OUTCOME,
    PRECISION,
    STAGE,
)
from otel_training.catalog.kinds import Attribute, Span

# fmt: off
# One entry reads as one row of a table; the formatter would make a page of each.

STEP = Attribute("training.step.number", "Number of the step.")
START_STEP = Attribute("training.step.start", "Step at which the run started.")
TARGET_STEP = Attribute("training.step.target", "Step at which the run is to end.")
FINAL_STEP = Attribute("training.step.final", "Step at which the run ended.")
FIRST_STEP = Attribute("training.step.first", "First step of the window.")
LAST_STEP = Attribute("training.step.last", "Last step of the window.")
STEP_COUNT = Attribute("training.step.count", "Steps of the window.")
STEP_MIN = Attribute("training.step.duration.min", "Shortest step of the window in seconds.")
STEP_MEAN = Attribute("training.step.duration.mean", "Mean step of the window in seconds.")
STEP_MAX = Attribute("training.step.duration.max", "Longest step of the window in seconds.")
STEP_SLOW = Attribute("training.step.slow", "Whether the step took a multiple of the usual time.")
WORLD_SIZE = Attribute("training.world_size", "Number of ranks.")
DEVICE = Attribute("training.device", "Device of the run, such as cuda:1.")
PARAMETERS = Attribute("training.parameters", "Parameters of the model.")
ATTEMPT = Attribute("training.attempt", "Restarts of the run before this attempt.")
TRAINER_RUN_ID = Attribute("training.trainer.run.id", "The trainer's own id of the run, where it differs.")
TOKENS = Attribute("training.tokens", "Tokens trained on by this rank.")
LOSS = Attribute("training.loss", "Loss last reported.")
LEARNING_RATE = Attribute("training.learning_rate", "Learning rate of the step.")
DATA_WAIT = Attribute("training.data.wait.duration", "Time the step waited for its data, in seconds.")
NONFINITE_COUNT = Attribute("training.nonfinite.count", "NaN and infinite values seen.")
PATH = Attribute("training.checkpoint.path", "Where the checkpoint lies.", max_length=256)
SIZE = Attribute("training.checkpoint.size", "Size of the checkpoint in bytes.")
REASON = Attribute("training.reason", "Why, in words.", max_length=256)
BATCHES = Attribute("training.batches", "Batches of the validation.")
OUTER_STEP = Attribute("training.outer.step", "Number of the outer step.")
DELTAS_FOUND = Attribute("training.outer.deltas.found", "Deltas found.")
DELTAS_INCLUDED = Attribute("training.outer.deltas.included", "Deltas included.")
BASE_OUTER_STEP = Attribute("training.outer.step.base", "Outer step that the delta is against.")
GENERATION = Attribute("training.delta.generation", "Generation of the weights that overtook the delta.")

_RUN = (START_STEP, TARGET_STEP, PARAMETERS, PRECISION, DEVICE, ACCUMULATION_STEPS, ATTEMPT, WORLD_SIZE,
        TRAINER_RUN_ID)
_CHECKPOINT = (STEP, PATH, SIZE)

RUN_SPAN = Span(
    "training.run", "From train_start to the end, whatever ends it.", (*_RUN, FINAL_STEP, OUTCOME, LOSS),
    ("train_start", "train_end"),
)
RUN_START_SPAN = Span(
    "training.run.start", "Zero length, exported at once: the run is visible from its first second.", _RUN,
    ("train_start",),
)
WINDOW_SPAN = Span(
    "training.window", "About a minute of steps; the root of a trace of its own, linked to the run.",
    (FIRST_STEP, LAST_STEP, STEP_COUNT, STEP_MIN, STEP_MEAN, STEP_MAX, TOKENS, LOSS, NONFINITE_COUNT),
    ("train_step",),
)
STEP_SPAN = Span(
    "training.step", "One step: a sample of all, and each slow one.",
    (STEP, LOSS, LEARNING_RATE, DATA_WAIT, STEP_SLOW), ("train_step",),
)
CHECKPOINT_SAVE_SPAN = Span("training.checkpoint.save", "Saving a checkpoint.", _CHECKPOINT, ("checkpoint",))
CHECKPOINT_RESTORE_SPAN = Span(
    "training.checkpoint.restore", "Restoring a checkpoint.", _CHECKPOINT, ("checkpoint_restore",),
)
COMPILE_SPAN = Span("training.compile", "Compiling the model.", (COMPILE_ENABLED, REASON), ("compile",))
VALIDATION_SPAN = Span(
    "training.validation", "A validation or test.", (STEP, STAGE, BATCHES, LOSS),
    ("validation_start", "validation_end"),
)
OUTER_STEP_SPAN = Span(
    "training.outer_step", "An outer step of DiLoCo.", (OUTER_STEP, DELTAS_FOUND, DELTAS_INCLUDED),
    ("outer_step",),
)
DELTA_UPLOAD_SPAN = Span(
    "training.delta.upload", "From queueing a delta to its answer.",
    (STEP, BASE_OUTER_STEP, DELTA_OUTCOME, GENERATION),
    ("delta_upload_queued", "delta_uploaded", "delta_upload_failed", "delta_upload_stale"),
)
# fmt: on

SPANS: tuple[Span, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Span))
"""All spans."""
