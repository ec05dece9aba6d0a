"""Everything a run needs to go on exactly where it was, in one dict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainer.feed import BatchFeed
from trainer.ranks import Ranks
from trainer.rng import capture_rng, restore_rng
from trainer.totals import Totals


class ResumableState:
    """Collects the state of a training process, and puts it back.

    Args:
        model: Its parameters and buffers are part of the state; so are the states of all others.
        optimizer: Optimizer.
        scheduler: Learning rate scheduler, if there is one.
        scaler: Gradient scaler.
        feed: Where the data comes from; its position is part of the state.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        scaler: GradScaler,
        feed: BatchFeed,
    ) -> None:
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scaler": scaler}
        if scheduler is not None:
            self._parts["scheduler"] = scheduler
        self._feed = feed

    def collect_own(self, totals: Totals) -> dict[str, Any]:
        """Return what each rank has for itself: totals, position in the data, random state.

        Args:
            totals: Totals so far.
        """
        return {"totals": asdict(totals), "data": self._feed.state_dict(), "rng": capture_rng()}

    def collect(self, own: list[dict[str, Any]], kept_s: float) -> dict[str, Any]:
        """Return the whole state as plain values and tensors.

        Args:
            own: What each rank has for itself, by rank.
            kept_s: Step time of all attempts that led here, seconds.
        """
        shared = {name: part.state_dict() for name, part in self._parts.items()}
        return {**shared, "kept_s": kept_s, "ranks": own}

    def load(self, state: dict[str, Any], ranks: Ranks) -> tuple[Totals, float]:
        """Put back what :meth:`collect` returned; return this rank's ``totals``, and ``kept_s``.

        Raises:
            ValueError: The state does not fit these objects, or was made by another number of ranks.
        """
        saved = len(state.get("ranks", ()))
        if saved != ranks.size:
            raise ValueError(
                f"{saved} ranks have written it and {ranks.size} want to read it; accepted: {saved}, because "
                "each goes on at its own place in the data"
            )
        try:
            own = state["ranks"][ranks.rank]
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            totals = Totals(**own["totals"])
            self._feed.load_state_dict(own["data"])
            restore_rng(own["rng"])
            return totals, float(state["kept_s"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"it does not fit this model, optimizer or data: {reason}") from error
