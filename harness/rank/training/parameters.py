"""The parameters of a training, whatever splits them: DDP, FSDP, tensor parallelism, ZeRO."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from .deepspeed import DeepSpeed, Engines
from .layouts import Described, Layout, Share, living, local, plain
from .megatron import Megatron
from .stages import Pipeline
from .torch_layouts import DTensors, Fsdp1, Fsdp2, averages, split_rows

LAYOUTS: tuple[type[Layout], ...] = (Pipeline, Fsdp2, DTensors, Engines, DeepSpeed, Megatron, Fsdp1)
"""The first one that splits a parameter describes it."""

REDUCES = ("require_backward_grad_sync", "_sync_gradients")
"""The attributes of DDP and FSDP1 that ``no_sync`` sets to False."""


@dataclass
class Watched:
    """A parameter of this rank."""

    parameter: Any
    described: Described
    share: Share

    @property
    def weight(self) -> Any:
        """The values that the optimizer moves; none where a layout says so."""
        master = self.share.master
        return master.of(master.tensor) if master else self.copy

    @property
    def copy(self) -> Any:
        """What this rank has of the weight, of which others may have copies."""
        if self.share.weight:
            return self.share.weight()
        whole = local(self.parameter)
        return whole if self.described.size or self.share.master else whole.new_zeros(0)

    @property
    def stepped(self) -> Any:
        """The tensor of the optimizer that a step moves."""
        return self.share.master.tensor if self.share.master else self.parameter

    def of_stepped(self, tensor: Any) -> Any:
        """What belongs to this parameter in the optimizer's tensor, or in its gradient or state."""
        return self.share.master.of(tensor) if self.share.master else local(tensor)

    @property
    def hooked(self) -> Any:
        """The tensor whose hook gets the gradient that this rank computes; None: not compared."""
        compared = self.parameter.requires_grad and self.parameter.is_floating_point()
        return self.share.hooked if compared and not self.described.left_out else None

    def gradient(self, optimizer: Any) -> Any:
        """What this rank has of the gradient that the optimizer uses; None without one."""
        if self.share.master:
            gradient = self.share.master.tensor.grad
            return None if gradient is None else self.share.master.of(gradient)
        return self.share.used(optimizer) if self.share.used else self.parameter.grad


class Modules:
    """The modules of this process, found among all its objects: once, as that takes a while."""

    def __init__(self, in_pipeline: bool = False) -> None:
        """``in_pipeline``: the backward of this process begins with gradients, as a stage's."""
        self.in_pipeline = in_pipeline
        self.modules = modules = living(lambda kind: issubclass(kind, nn.Module))
        inner = {id(child) for module in modules for child in _children(module)}
        self.roots = roots = [module for module in modules if id(module) not in inner]
        self.names: dict[int, str] = {}
        self.parameters: dict[int, Any] = {}
        wrapper = nn.parallel.DistributedDataParallel
        for root in sorted(roots, key=lambda one: not isinstance(one, wrapper)):
            for model in (*_models_with_average(root), root):
                for name, parameter in model.named_parameters():
                    self.names.setdefault(id(parameter), plain(name))
                    self.parameters.setdefault(id(parameter), parameter)
        self._wrappers = [one for one in modules if not vars(one).keys().isdisjoint(REDUCES)]
        self.ranks: dict[int, list[int]] = {}
        self.ignored: set[int] = set()
        """The parameters that DDP was told to leave to each rank."""
        for module in modules:
            if isinstance(module, wrapper):
                try:
                    ranks = dist.get_process_group_ranks(module.process_group)
                except (KeyError, ValueError):  # of a training before this one: it was destroyed
                    continue
                ignored = getattr(module, "parameters_to_ignore", ())
                for name, parameter in module.module.named_parameters():
                    if name in ignored:
                        self.ignored.add(id(parameter))
                    else:
                        self.ranks[id(parameter)] = ranks
        self.hooked = {
            id(parameter)
            for module in modules
            if _has_own_hooks(vars(module).get("_backward_hooks"))
            for parameter in vars(module).get("_parameters", {}).values()
        }
        """The parameters of modules with hooks of the loop in their backward."""
        self.averages, self.split_rows = averages(), split_rows()
        self.has_engine = False
        """Whether a package reduces gradients after the backward: the loop does not edit them."""
        self.layouts = [kind(self) for kind in LAYOUTS]

    def reduces_later(self) -> bool:
        """Whether a wrapper of torch was told not to reduce the gradients of this backward: they
        are a part of those of a later one."""
        return any(not vars(one).get(flag, True) for one in self._wrappers for flag in REDUCES)

    def reduces(self) -> bool:
        """Whether the loop has not told all wrappers of torch so."""
        return not self._wrappers or any(
            all(vars(one).get(flag, True) for flag in REDUCES) for one in self._wrappers
        )

    def forget(self, key: int) -> None:
        """Leave out a tensor that stands for a parameter while a step computes."""
        self.names.pop(key, None)
        self.parameters.pop(key, None)

    def name_parameter(self, parameter: Any, name: str) -> None:
        """Note a parameter that its module does not have while a step computes."""
        self.names[id(parameter)] = plain(name)
        self.parameters[id(parameter)] = parameter

    def share(self, parameter: Any, described: Described) -> Share:
        """What this rank has of a parameter, by the first layout that splits it."""
        for layout in self.layouts:
            try:
                share = layout.share(parameter, described)
            except (AttributeError, IndexError, TypeError):  # private names of another release
                described.left_out = f"this release of {layout.package} splits them in another way"
                return Share()
            except (KeyError, ValueError):  # of torch: it does not know this group any more
                described.left_out = "their process group was destroyed"
                return Share()
            if share is not None:
                return share
        if self.in_pipeline and not described.ranks and not described.part:
            described.left_out = "nothing says which ranks of a pipeline share them"
        return Share(hooked=parameter)


def _children(module: Any) -> list[Any]:
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _models_with_average(root: Any) -> list[Any]:
    """The models that a module has beside a copy of them that does not train: an average, which
    perhaps rank 0 alone has. They have the names that they have on other ranks."""
    forms: dict[Any, list[tuple[Any, bool]]] = {}
    for child in _children(root):
        weights = list(child.named_parameters())
        form = tuple((name, one.shape) for name, one in weights)
        forms.setdefault(form, []).append((child, any(one.requires_grad for _, one in weights)))
    return [
        child
        for form, twins in forms.items()
        for child, trains in twins
        if form and trains and not all(trains for _, trains in twins)
    ]


def watched(optimizer: Any, modules: Modules, parameter_ids: Iterable[int]) -> list[Watched]:
    """The parameters of an optimizer, and those with gradients that no optimizer holds.

    ``parameter_ids`` are the ids of the parameters of all optimizers.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    ids = {id(parameter) for parameter in parameters}
    others = [
        parameter
        for key, parameter in modules.parameters.items()
        if key not in ids and key not in parameter_ids and parameter.requires_grad
        if not parameter.is_meta  # a model without values, of which somebody counts the parameters
    ]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    every = [_watched(one, modules, numbers.get(id(one))) for one in [*parameters, *others]]
    times = Counter[Any]()
    for one in every:  # two models, such as encoder and decoder, may have the same names
        copy = one.described.name, one.described.copy
        times[copy] += 1
        one.described.name += f" ({times[copy]})" if times[copy] > 1 else ""
    masters = {id(one.share.master.tensor) for one in every if one.share.master}
    return [
        one
        for one in every
        if id(one.parameter) not in masters  # the parameters that they are copies of have names
        and (one.share.master is None or one.share.master.optimizer == id(optimizer))
    ]


def _watched(parameter: Any, modules: Modules, number: int | None) -> Watched:
    key, weight = id(parameter), local(parameter)
    described = Described(
        name=modules.names.get(key, f"optimizer.{number}"),
        numel=weight.numel(),
        size=weight.numel(),
        begin=0,
        end=weight.numel(),
        ranks=modules.ranks.get(key, []),
        copy="",
        optimized=number is not None,
        trained=parameter.requires_grad,
        dtype=str(parameter.dtype)[len("torch.") :],
    )
    described.same_rows = modules.split_rows
    share = modules.share(parameter, described)
    if key in modules.ignored:
        described.left_out = "DDP was told to ignore them"
    elif key in modules.hooked or _has_own_hooks(
        getattr(parameter, "_post_accumulate_grad_hooks", None)
    ):
        described.left_out = "hooks of the loop change them"
        share.is_copy = True
    if share.weight:
        described.size = share.weight().numel()
    if share.master:
        described.size, described.optimized = share.master.count, True
        described.master = str(share.master.tensor.dtype)[len("torch.") :]
    shard = f"{share.shard} {described.part}"
    if (described.left_out and not share.is_copy) or key not in modules.names:
        shard, described.ranks = f"{shard} of rank {os.environ.get('RANK', 0)}", []
    described.copy = f"{shard} {described.ranks or ''}"
    return Watched(parameter, described, share)


class Accumulation:
    """Calls a function with each gradient that a backward adds to a parameter.

    A hook of the parameter would also be called where a loop asks ``torch.autograd.grad`` for the
    gradient, as a penalty, a log, or a checkpoint of its own does, and nothing is added. FSDP1's
    flat parameter has one: in mixed precision it has another node in the forward.
    """

    def __init__(self, parameter: Tensor, function: Callable[[Any], None]) -> None:
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None and isinstance(parameter, fsdp.FlatParameter):
            self._handle = parameter.register_hook(function)
            return
        self._node = get_gradient_edge(parameter).node
        """Torch forgets the node, and its hooks, if nobody else has it."""
        self._function = function
        self._handle = self._node.register_prehook(self._call)

    def _call(self, gradients: Sequence[Tensor | None]) -> None:
        if gradients[0] is not None:
            self._function(gradients[0])

    def remove(self) -> None:
        """Call it no more."""
        self._handle.remove()


def _has_own_hooks(hooks: Any) -> bool:
    """Whether some of these hooks, which run after a gradient was accumulated, are the loop's: they
    may change it."""
    modules = [getattr(hook, "__module__", None) or "" for hook in (hooks or {}).values()]
    return any(not module.startswith(("torch.", "deepspeed.", "megatron.")) for module in modules)


def count_foreign(optimizer: Any, modules: Modules | None) -> int:
    """The tensors of an optimizer that belong to no module and have no gradient, as copies of
    weights do, which have their shapes."""
    known = modules.parameters if modules else {}
    shapes = {one.shape for one in known.values()}
    return sum(
        id(parameter) not in known and parameter.grad is None and parameter.shape in shapes
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def is_complete(described: Sequence[Described]) -> bool:
    """Whether this rank has all of these parameters that are trained."""
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return world == 1 or all(
        len(one.ranks) == world and one.size == one.numel == one.end - one.begin
        for one in described
        if one.optimized
    )
