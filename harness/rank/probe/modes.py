"""Runs a script in another mode than it is written for: eager or compiled, with or without
recomputation (activation checkpointing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.rank.events import Patches
from harness.rank.probe import compiled

EAGER, COMPILED = "eager", "compiled"
"""Nothing is compiled; the model is compiled, also where weights are moved."""
SAME_MASKS = "compiled, same masks"
"""As COMPILED, but the compiler draws the random numbers that eager code draws."""
KEPT, RECOMPUTED = "kept", "recomputed"
"""Activations are kept where the script recomputes them; the model is told to recompute them."""

BACKEND = "aot_eager"
"""Traces forward and backward, and divides them, as every backend does; it builds nothing."""

OF_CHECKPOINT = {
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state",
}  # fmt: skip
"""The arguments of torch's ``checkpoint`` that are not those of the function."""

ON = "gradient_checkpointing_enable", "enable_gradient_checkpointing"
OFF = "gradient_checkpointing_disable", "disable_gradient_checkpointing"
"""The methods of models of transformers and diffusers."""

NO_SWITCH = (
    "the script calls no checkpoint of torch.utils.checkpoint, and its model has no "
    "gradient_checkpointing_enable()"
)


class Mode:
    """The mode of a run; empty for that of the script."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.checkpoints = 0
        """How many calls recompute, or would without KEPT: those of torch's ``checkpoint`` that
        train, and the model's own switch if it is on."""

    def install(self) -> None:
        """Replace torch's ``checkpoint``, or set up the compiler, before anything of the script
        runs."""
        if self._name == SAME_MASKS:
            import torch._inductor.config

            torch._inductor.config.fallback_random = True
        import torch.utils.checkpoint

        Patches().wrap_everywhere(torch.utils.checkpoint.checkpoint, self._call, eager=True)

    def _call(self, checkpoint: Any, /, function: Any, *arguments: Any, **keywords: Any) -> Any:
        import torch

        self.checkpoints += torch.is_grad_enabled()
        if self._name != KEPT:
            return checkpoint(function, *arguments, **keywords)
        others = {name: value for name, value in keywords.items() if name not in OF_CHECKPOINT}
        return function(*arguments, **others)

    def _look_at_switch(self, model: Any) -> None:
        """Note a model's own switch for recomputation, and switch it off if activations are kept:
        its other branch may compute something else."""
        off = _method(model, OFF)
        if off is not None and getattr(model, "is_gradient_checkpointing", False):
            self.checkpoints += 1
            if self._name == KEPT:
                off()

    def meet(self, model: Any) -> None:
        """Change the model, which is called for the first time."""
        inner = getattr(model, "module", model)
        if self._name in (COMPILED, SAME_MASKS) and not compiled.names:
            inner.compile(backend=BACKEND)
        if self._name == RECOMPUTED:
            if (switch := _method(inner, ON)) is None:
                raise RuntimeError(NO_SWITCH)
            switch()
        else:
            self._look_at_switch(inner)


def _method(model: Any, names: Sequence[str]) -> Any:
    """The first of these methods that a model has; None without one."""
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)
