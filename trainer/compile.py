"""torch.compile on request, with a way back to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.rng import preserved_rng

_REASON_LENGTH = 256


class CompiledForward:
    """Calls the compiled model and, once compiling has failed, the model itself.

    ``torch.compile`` compiles at the first call and again for new shapes, so it can fail at any call. Memory
    that runs out is no failure to compile and goes up.

    Args:
        model: The model; it is not changed, and its state dict keeps its names.
        backend: Name or callable that ``torch.compile`` understands.
        on_fallback: Told why, once, when a call after :meth:`warm_up` could not be compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        backend: str | Callable[..., Any] = "inductor",
        on_fallback: Callable[[str], None],
    ) -> None:
        self._model = model
        self._backend = backend
        self._on_fallback = on_fallback
        self._compiled: Any = None
        self._enabled = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        if not self._enabled:
            return self._model(*args, **kwargs)
        try:
            if self._compiled is None:
                self._compiled = torch.compile(self._model, backend=self._backend)
            return self._compiled(*args, **kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - compilers raise anything
            # The eager call tells a fault of the model from one of the compiler: the former goes up here.
            output = self._model(*args, **kwargs)
            self._enabled = False
            self._on_fallback(_describe(error))
            return output

    def warm_up(self, loss: Callable[[], Tensor]) -> str | None:
        """Compile forward and backward now; return why that failed, or None.

        Random state, buffers and gradients are afterwards as they were, so training goes as it would have
        without.

        Args:
            loss: Computes the loss of the first batch by calling this object.
        """
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        failures: list[str] = []
        former, self._on_fallback = self._on_fallback, failures.append
        try:
            with preserved_rng():
                loss().backward()  # type: ignore[no-untyped-call]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - compilers raise anything
            self._enabled = False
            failures.append(_describe(error))
        finally:
            self._on_fallback = former
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    buffer.copy_(buffers[name])
            self._model.zero_grad(set_to_none=True)
        return failures[0] if failures else None


def _describe(error: BaseException) -> str:
    first_paragraph = str(error).strip().split("\n\n")[0]
    return f"{type(error).__name__}: {' '.join(first_paragraph.split())}"[:_REASON_LENGTH]
