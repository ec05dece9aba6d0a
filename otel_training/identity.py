"""Who is speaking: run, rank, host and attempt, found in one place.

Order of the run id: argument, ``OTEL_TRAINING_RUN_ID``, torchrun, Slurm, random. Rank, local rank and world
size come from one launcher as a set: torchrun's variables where ``RANK`` is set, else Slurm's, else one rank.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from otel_training import catalog
from otel_training.catalog import spans
from otel_training.values import text

logger = logging.getLogger("otel_training")

# Namespace of service.instance.id in OpenTelemetry's semantic conventions.
_INSTANCE_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of one process of a run.

    Args:
        run_id: The same on all ranks of a run and over its restarts.
        run_name: Readable name; the run id when none was given.
        rank: Rank in the run, from 0.
        local_rank: Rank on this host, from 0.
        world_size: Number of ranks.
        attempt: Restarts of the run before this one.
        host: Host name.
    """

    run_id: str
    run_name: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    attempt: int = 0
    host: str = ""

    @property
    def instance_id(self) -> str:
        """``service.instance.id``, the same after a restart: counters reset instead of forking off."""
        return str(uuid.uuid5(_INSTANCE_NAMESPACE, f"{self.run_id}.{self.rank}"))

    @property
    def point_attributes(self) -> dict[str, str | int]:
        """The three attributes of ``catalog.IDENTITY`` for points whose resource does not carry them."""
        return dict(zip((attribute.name for attribute in catalog.IDENTITY), self._key, strict=True))

    @property
    def labels(self) -> tuple[str, str, str]:
        """The same three as label values of the scrape page."""
        run_id, run_name, rank = self._key
        return run_id, run_name, str(rank)

    @property
    def resource_attributes(self) -> dict[str, str | int]:
        """Identity as attributes of an OpenTelemetry resource."""
        return {
            **self.point_attributes,
            catalog.LOCAL_RANK.name: self.local_rank,
            spans.WORLD_SIZE.name: self.world_size,
        }

    @property
    def _key(self) -> tuple[str, str, int]:
        return self.run_id, self.run_name, self.rank


def detect(
    environ: Mapping[str, str],
    *,
    run_id: str | None = None,
    run_name: str | None = None,
) -> Identity:
    """Find the identity of this process.

    Args:
        environ: The environment, such as ``os.environ``.
        run_id: Overrides every other source.
        run_name: Readable name.

    Raises:
        ValueError: A rank variable is not a whole number, or lies outside the world.
    """
    rank, local_rank, world_size = _ranks(environ)
    found = run_id or environ.get("OTEL_TRAINING_RUN_ID") or _launcher_run_id(environ)
    if not found:
        found = uuid.uuid4().hex[:12]
        if world_size > 1:
            logger.warning(
                "no run id: this rank made up %s, and each of the %d ranks will show as a run of its own;"
                " set OTEL_TRAINING_RUN_ID to the same value on all ranks",
                found,
                world_size,
            )
    # Both are attributes of everything: bytes in them that are not UTF-8 would cost whole batches.
    return Identity(
        run_id=text(found, catalog.RUN_ID.max_length),
        run_name=text(run_name or found, catalog.RUN_NAME.max_length),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        attempt=_whole(environ, "TORCHELASTIC_RESTART_COUNT", _whole(environ, "SLURM_RESTART_COUNT", 0)),
        host=socket.gethostname(),
    )


def _launcher_run_id(environ: Mapping[str, str]) -> str | None:
    torchrun = environ.get("TORCHELASTIC_RUN_ID")
    if torchrun and torchrun != "none":  # torchrun's own default, the same for every job
        return torchrun
    job, task = environ.get("SLURM_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{job}_{task}" if job and task else job or None


def _ranks(environ: Mapping[str, str]) -> tuple[int, int, int]:
    for rank_name, local_name, world_name in (
        ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ):
        if environ.get(rank_name):
            rank = _whole(environ, rank_name, 0)
            world_size = _whole(environ, world_name, rank + 1)
            if rank >= world_size:
                raise ValueError(f"{rank_name}={rank} must be below {world_name}={world_size}")
            return rank, _whole(environ, local_name, 0), world_size
    return 0, 0, 1


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name)
    if not value:
        return default
    if not value.strip().isdecimal():
        raise ValueError(f"{name}={value!r}: accepted is a whole number from 0")
    return int(value)
