"""Runs a script in another mode than it is written for: eager or compiled, with or without
recomputation (activation checkpointing)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from harness.rank.events import Patches
from harness.rank.probe import compiled

EAGER, COMPILED = "eager", "compiled"
"""Nothing is compiled; the model is compiled, also where weights are moved."""
KEPT, RECOMPUTED = "kept", "recomputed"
"""Activations are kept where the script recomputes them; the model is told to recompute them."""

BACKEND = "aot_eager"
"""Traces forward and backward, and divides them, as every backend does; it builds nothing."""

OF_CHECKPOINT = {
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state",
}  # fmt: skip
"""The arguments of torch's ``checkpoint`` that are not those of the function."""

COMPOSABLE = "torch.distributed._composable.checkpoint_activation"
DEEPSPEED = "deepspeed.runtime.activation_checkpointing.checkpointing"
MEGATRON = "megatron.core.tensor_parallel.random"
"""Modules that recompute without torch's ``checkpoint``."""

ON = "gradient_checkpointing_enable", "enable_gradient_checkpointing"
OFF = "gradient_checkpointing_disable", "disable_gradient_checkpointing"
"""The methods of models of transformers and diffusers."""

NO_SWITCH = (
    "the script calls no checkpoint of torch, DeepSpeed or megatron-core that probe knows, and its "
    "model has no gradient_checkpointing_enable()"
)


class Mode:
    """The mode of a run; empty for that of the script."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.checkpoints = 0
        """How many calls recompute, or would without KEPT: those of a ``checkpoint`` that train,
        and the model's own switch if it is on."""
        self._patches = Patches()

    def install(self) -> None:
        """Replace torch's ``checkpoint``, before anything of the script runs."""
        import torch.utils.checkpoint

        function = torch.utils.checkpoint.checkpoint
        self._patches.wrap_everywhere(function, self._instead(_of_torch), eager=True)

    def _install_in_packages(self) -> None:
        """Replace what recomputes in the packages that the script has imported."""
        wrap = self._patches.wrap
        if composable := sys.modules.get(COMPOSABLE):
            name = "_checkpoint_without_reentrant_generator"
            if hasattr(composable, name):  # what runs before and after a module
                wrap(composable, name, self._instead(lambda *_, **__: iter([None])), eager=True)
        if deepspeed := sys.modules.get(DEEPSPEED):
            wrap(deepspeed.CheckpointFunction, "apply", self._instead(_of_deepspeed), eager=True)
            if function := getattr(deepspeed, "non_reentrant_checkpoint", None):
                replacement = self._instead(_of_deepspeed_with_one_output)
                self._patches.wrap_everywhere(function, replacement, eager=True)
        if megatron := sys.modules.get(MEGATRON):
            replacement = self._instead(lambda function, _, *rest: function(*rest))
            wrap(megatron.CheckpointFunction, "apply", replacement, eager=True)

    def _instead(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of what recomputes. ``plain`` computes the same and keeps activations."""

        def call(checkpoint: Any, /, *arguments: Any, **keywords: Any) -> Any:
            import torch

            self.checkpoints += torch.is_grad_enabled()
            function = plain if self._name == KEPT else checkpoint
            return function(*arguments, **keywords)

        return call

    def meet(self, model: Any) -> None:
        """Change the model, which is called for the first time."""
        self._install_in_packages()
        inner = getattr(model, "module", model)
        if self._name == COMPILED and not compiled.names:
            inner.compile(backend=BACKEND)
        if self._name == RECOMPUTED:
            if (switch := _method(inner, ON)) is None:
                raise RuntimeError(NO_SWITCH)
            switch()
            return
        off = _method(inner, OFF)  # the model's own switch
        if off is not None and getattr(inner, "is_gradient_checkpointing", False):
            self.checkpoints += 1
            if self._name == KEPT:  # the other branch of the model may compute something else
                off()


def _of_torch(function: Any, *arguments: Any, **keywords: Any) -> Any:
    others = {name: value for name, value in keywords.items() if name not in OF_CHECKPOINT}
    return function(*arguments, **others)


def _of_deepspeed(function: Any, outputs: list[Any], *rest: Any) -> Any:
    import torch

    output = function(*rest)
    outputs += [output] if torch.is_tensor(output) else output
    return tuple(outputs)


def _of_deepspeed_with_one_output(function: Any, *arguments: Any) -> Any:
    """Several outputs are a tuple, and one is alone, also if the function has it in a tuple."""
    import torch

    outputs = function(*arguments)
    if torch.is_tensor(outputs):
        return outputs
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _method(model: Any, names: Sequence[str]) -> Any:
    """The first of these methods that a model has; None without one."""
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)
