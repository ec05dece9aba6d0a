"""What every section of the configuration has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the file; unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
