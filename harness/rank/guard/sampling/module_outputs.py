"""What modules get and give in one step: where values begin that are not finite, and which inputs.

``ModuleOutputs`` is used only after a loss was not finite. Its hooks note the largest absolute
values of the inputs, outputs and weights of each call, on the device; it is nan if there is one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...training.layouts import is_compiled, local, plain
from ...training.parameters import Modules
from ..posting.posts import Post
from ..process import captures
from .samples import bit_sum, largest, stacked, tensors_in

MOST_CALLS = 4000
"""Calls that are noted: a recurrent model has many. A limit of memory."""
MODEL = "the model"
"""The name of a module that has none, and of what a wrapper contains."""


class ForwardHooks:
    """What modules get and give in the step that runs now, if somebody asks."""

    def __init__(self) -> None:
        self.searches = False
        """Whether a loss was not finite: the next checked step looks for the module where it
        begins. The other thread says so."""
        self._outputs: ModuleOutputs | None = None
        self._inputs: RootInputs | None = None

    def begin_step(self, modules: Modules | None, reads_inputs: bool) -> None:
        """Look at the outputs of modules once, if ``searches``, and at the inputs of models, if
        nothing else says which rows they have. ``modules``: None if the step is not checked."""
        if self._inputs is not None:
            self._inputs.end()
        self._inputs = RootInputs(modules) if modules is not None and reads_inputs else None
        self.end_outputs()  # the step was skipped
        if self.searches and self._outputs is None and modules is not None:
            self._outputs = ModuleOutputs(modules)

    def end_outputs(self) -> None:
        """Look at outputs no more."""
        if self._outputs is not None:
            self._outputs.end()

    def describe(self, post: Post) -> None:
        """Say in a post what was seen."""
        if self._inputs is not None and (sums := self._inputs.end()) is not None:
            post.tensors["targets_sum"] = sums
        if self._outputs is not None and self._outputs.is_open:
            self._outputs.end()
            post.outputs.calls, post.outputs.opaque = self._outputs.calls, self._outputs.opaque
            post.tensors["calls"] = stacked(self._outputs.sizes)


class ModuleOutputs:
    """Hooks on the modules of this process, until ``end``."""

    def __init__(self, modules: Modules) -> None:
        self.calls: list[list[Any]] = []
        """Of each call: the name of the module, its class, and whether no module contains it."""
        self.opaque = ""
        """Why nothing can be looked at; empty if it can."""
        self.is_open = True
        self.sizes: list[Tensor] = []
        """Three of each call: of its inputs, outputs and weights."""
        self._handles: list[Any] = []
        if any(map(is_compiled, modules.modules)):
            self.opaque = "the modules are compiled"
            return
        ids: set[int] = set()
        for root in modules.roots:
            for name, module in root.named_modules():
                if id(module) in ids or isinstance(module, torch.jit.ScriptModule):
                    continue
                ids.add(id(module))
                hook = partial(self._note, plain(f"{name}.")[:-1] or MODEL, module is root)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def _note(
        self, name: str, is_root: bool, module: Any, arguments: Any, keywords: Any, output: Any
    ) -> None:
        if self.opaque or len(self.calls) >= MOST_CALLS:
            return
        try:
            sizes = []
            for value in ([arguments, keywords], output, list(module._parameters.values())):
                largest_values = largest([local(one).detach() for one in tensors_in(value)])
                # nan is larger than all
                sizes.append(largest_values.max() if len(largest_values) else torch.zeros(()))
        except Exception as error:  # a tensor of a package, or of a transformed function
            self.opaque = f"their values cannot be read: {type(error).__name__}"
            return
        self.calls.append([name, type(module).__name__, is_root])
        self.sizes += sizes

    def end(self) -> None:
        """Remove the hooks."""
        self.is_open = False
        for handle in self._handles:
            handle.remove()
        self._handles = []


class RootInputs:
    """Hooks on the models of this process, until ``end``: they sum the bits of all inputs."""

    def __init__(self, modules: Modules) -> None:
        self._sums: list[Tensor] = []
        self._is_read = not (captures() or any(map(is_compiled, modules.modules)))
        self._handles = [
            root.register_forward_pre_hook(self._note, with_kwargs=True)
            for root in modules.roots
            if self._is_read and not isinstance(root, torch.jit.ScriptModule)
        ]

    def _note(self, _module: Any, arguments: Any, keywords: Any) -> None:
        try:
            self._sums += [bit_sum(local(one)) for one in tensors_in([arguments, keywords])]
        except Exception:  # a tensor of a package, or of a transformed function
            self._is_read = False

    def end(self) -> Tensor | None:
        """Remove the hooks. Returns the sum of the bits; None if they were not seen."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        return stacked(self._sums).sum().reshape(1) if self._is_read and self._sums else None
