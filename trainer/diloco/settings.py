"""The ``diloco`` section of the configuration, and schedules that cannot work."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainer.section import Section

WORKER_NAME = r"[A-Za-z0-9_-]{1,64}"
"""Pattern of a worker's name, which is part of the names of its deltas."""


class DiLoCoSection(Section):
    """Local steps between rare synchronizations; ``role: off`` is ordinary training."""

    role: Literal["off", "single", "master", "worker"] = Field(
        default="off", description="single = a worker and its own master in one process"
    )
    store: str | None = Field(
        default=None,
        description="URL where workers and master meet; null = a folder of the run, for role single only",
    )
    worker: str | None = Field(
        default=None, pattern=f"^{WORKER_NAME}$", description="This worker's name, its own in the whole run"
    )
    workers: int = Field(default=1, ge=1, description="Workers of the run; the master ends when all are done")
    required_workers: int | None = Field(
        default=None, ge=1, description="Workers that an outer step waits for; null = all"
    )
    inner_steps: int = Field(default=100, ge=1, description="Applied steps between two deltas")
    outer_lr: float = Field(default=0.7, gt=0, description="Learning rate of the outer optimizer")
    outer_momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Nesterov momentum of the outer optimizer; 0 = plain averaging"
    )
    overlap: bool = Field(
        default=True, description="Train on while a delta is on its way; false = wait, as in the paper"
    )
    max_in_flight: int = Field(
        default=1, ge=1, le=16, description="Deltas handed over and not yet part of the global weights"
    )
    queue_size: int = Field(default=1, ge=1, le=16, description="Deltas waiting to be uploaded")
    overflow: Literal["skip", "wait"] = Field(
        default="wait", description="When there is no room for a delta: leave it for the next one, or wait"
    )
    poll_s: float = Field(default=1.0, gt=0, description="Time between two looks into the store")
    join_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest wait for the first global weights; then the worker fails"
    )
    wait_timeout_s: float = Field(
        default=120.0, gt=0, description="Longest wait for room, or without overlap for an outer step"
    )
    round_timeout_s: float = Field(
        default=60.0, gt=0, description="An outer step is made so long after its first delta in any case"
    )
    final_timeout_s: float = Field(
        default=120.0, gt=0, description="Longest wait at the end for the outer step with the last delta"
    )
    shutdown_timeout_s: float = Field(
        default=30.0, gt=0, description="Longest time for what still is to be uploaded at the end"
    )
    idle_timeout_s: float = Field(
        default=3600.0, gt=0, description="The master ends after so long without a new delta"
    )
    upload_attempts: int = Field(default=6, ge=1, description="Tries of an upload before it is given up")
    upload_backoff_s: float = Field(
        default=0.5, gt=0, description="Wait after the first failed try; doubles, up to 10 s"
    )
    torn_after_s: float = Field(
        default=30.0, gt=0, description="A delta that is not whole by then is refused"
    )
    keep_generations: int = Field(default=3, ge=2, description="Generations of global weights to keep")

    @property
    def required(self) -> int:
        """Workers that an outer step waits for."""
        return self.workers if self.required_workers is None else self.required_workers

    @property
    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self.role in ("single", "worker")

    @model_validator(mode="after")
    def _roles(self) -> DiLoCoSection:
        if self.role in ("master", "worker"):
            if self.store is None:
                raise ValueError(f"store must be given for role {self.role}: a URL that all can reach")
            if self.store.startswith("memory:"):
                raise ValueError(
                    f"store {self.store} is seen by its own process only; role {self.role} accepts one that "
                    "all can reach, such as file:///shared/run"
                )
        if self.role == "worker" and self.worker is None:
            raise ValueError("worker must be given for role worker: a name that no other worker has")
        if self.role == "single" and self.workers != 1:
            raise ValueError(f"role single is 1 worker, got workers {self.workers}; use roles master, worker")
        return self

    @model_validator(mode="after")
    def _schedule_can_work(self) -> DiLoCoSection:
        if self.required > self.workers:
            raise ValueError(
                f"required_workers {self.required} is more than workers {self.workers}: "
                "every outer step would run into its time-out"
            )
        # Who waits for an outer step must wait longer than the master waits for the others.
        budgets = {"final_timeout_s": self.final_timeout_s}
        if self.overflow == "wait" or not self.overlap:
            budgets["wait_timeout_s"] = self.wait_timeout_s
        for name, budget_s in budgets.items():
            if budget_s <= self.round_timeout_s:
                raise ValueError(
                    f"{name} {budget_s:g} must be more than round_timeout_s {self.round_timeout_s:g}: "
                    "the worker would give up before the master makes its step"
                )
        if self.round_timeout_s < self.poll_s:
            raise ValueError(
                f"poll_s {self.poll_s:g} must not be more than round_timeout_s {self.round_timeout_s:g}"
            )
        return self
