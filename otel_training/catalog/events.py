"""The events and the fields of them that mean something to the bridge."""

from __future__ import annotations

from collections.abc import Mapping

EVERYWHERE = frozenset({"elapsed_s", "memory_bytes"})
"""Fields that the trainer's log adds to any event."""

ALIASES: Mapping[str, str] = {"micro_batches": "microbatches"}
"""Other names under which trainers send a field."""

EVENTS: Mapping[str, frozenset[str]] = {
    event: frozenset(fields.split()) | EVERYWHERE
    for event, fields in {
        "train_start": "start_step target_step device precision accumulation_steps parameters samples tokens"
        " micro_batches microbatches shape_alignment shape_warning_count ooo_backprop run_id attempt"
        " world_size time_unix_s prior_elapsed_s prior_kept_s last_step_reached framework flops_per_token"
        " peak_flops_per_s",
        "train_step": "step lr steps_per_sec samples_per_sec tokens_per_sec samples tokens micro_batches loss"
        " grad_norm data_wait_s step_s microbatches",
        "checkpoint": "step path duration_s size_bytes error",
        "train_end": "steps elapsed_s loss outcome error time_unix_s",
        "compile": "enabled reason duration_s",
        "outer_step": "outer_step deltas_found deltas_included deltas_rejected duration_s",
        "delta_upload_queued": "step base_outer_step",
        "delta_uploaded": "step duration_s size_bytes",
        "delta_upload_skipped": "step reason",
        "delta_upload_failed": "step error",
        "delta_upload_stale": "step generation",
        "shape_profile": "device_type precision alignment warning_count",
        "shape_warning": "field value suggested alignment code reason",
        "ooo_backprop": "enabled reason streams stages",
        "optimizer_step_skipped": "step reason",
        "validation_start": "step stage",
        "validation_end": "step stage loss batches duration_s",
        "checkpoint_restore": "step path duration_s",
        "outer_sync": "step generation adopted duration_s",
        "device_stats": "step stage",
        "hook_failed": "hook failed_event error count",
    }.items()
}
"""The fields of each event that mean something; numbers in others reach ``training.custom``."""
