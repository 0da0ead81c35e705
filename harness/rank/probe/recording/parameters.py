"""The parameters of a model as a single process would have them, and their names in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from harness.rank.probe.recording.shards import assembled, divided
from harness.rank.training.layouts import local, plain
from harness.rank.training.stages import stage_number

COPY = " in "
"""Precedes the dtype in the name of a copy of a weight."""


def full(tensor: Any) -> Any:
    """A copy of the complete tensor on the CPU, in fp32 or fp64; a collective for a DTensor."""
    import torch

    whole = assembled(tensor.detach())
    whole = whole if whole.layout is torch.strided else whole.to_dense()
    dtype = torch.float64 if whole.dtype == torch.float64 else torch.float32
    return whole.to("cpu", dtype, copy=True)


def norm(norms: Iterable[float]) -> float:
    """The norm of several tensors, of their norms."""
    return float(sum(each**2 for each in norms) ** 0.5)


def add(parameter: Any, change: Any) -> None:
    """Add a complete tensor to a parameter, of which this rank may have a part."""
    import torch

    if hasattr(parameter, "full_tensor"):
        change = divided(change, parameter)
    mine = local(parameter)
    with torch.no_grad():
        mine.add_(change.to(mine.device, mine.dtype))


def reshard(module: Any) -> None:
    """Make FSDP2 reshard the parameters: while they are gathered, a module has other parameters
    than the optimizer."""
    for part in module.modules():
        if hasattr(part, "unshard") and hasattr(part, "reshard"):
            part.reshard()


def fill_memory() -> Callable[[], None]:
    """Make torch fill uninitialised memory with NaN, until the returned function is called. A
    skipped step leaves such memory in the optimizer's state. It must not matter, and would
    otherwise differ in each run."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    return lambda: torch.use_deterministic_algorithms(before, warn_only=warns)


class Optimized:
    """What an optimizer of torch updates, by the model's names of the parameters."""

    def __init__(
        self, optimizer: Any, name: Callable[[Any], str | None], untouched: bool = False
    ) -> None:
        self.groups = optimizer.param_groups
        self.kind = type(optimizer).__name__
        self.owner, self._name, self._untouched = optimizer, name, untouched

    def _named_parameters(self) -> Iterator[tuple[str, Any]]:
        parameters = (p for group in self.groups for p in group["params"])
        for number, parameter in enumerate(parameters):
            yield self._name(parameter) or f"parameter {number}", parameter

    def gradients(self) -> dict[str, Any]:
        """Gradients as the step applies them: a fused step divides them by the loss scale."""
        from harness.detectors.steps import gradient_scale

        divisor = gradient_scale(self.owner)
        return {
            name: full(p.grad) / divisor
            for name, p in self._named_parameters()
            if p.grad is not None
        }

    def norm_of(self, norms: Mapping[int, float]) -> float:
        """The norm of the gradients that it updates, of these norms by the parameter's id; of all,
        if it has none of the model's parameters. Another optimizer may clear the others later."""
        own = [norms[id(p)] for _, p in self._named_parameters() if id(p) in norms]
        return norm(own or norms.values())

    def weights(self) -> dict[str, Any]:
        return {name: full(p) for name, p in self._named_parameters()}

    def copies(self) -> dict[str, Any]:
        """The model's weights, if the optimizer has its own copies of them; none here."""
        return {}

    def fresh(self) -> bool:
        """Whether it has taken no step, neither here nor before a resume. Steps that a scaler
        skipped do not count, nor empty ones that only make the moments."""
        import torch

        if self._untouched or not self.owner.state:
            return True
        states = (self.owner.state.get(p, {}) for _, p in self._named_parameters())
        moments = [
            local(value)
            for state in states
            for key, value in state.items()
            if key != "step" and isinstance(value, torch.Tensor)
        ]
        return bool(moments) and not any(bool(moment.any()) for moment in moments)

    def clipping(self) -> float | None:
        """The norm to which the optimizer's own step clips gradients. 0 if it does not clip, None
        if it uses other gradients than these."""
        return 0.0

    def state(self) -> dict[str, Any]:
        """The tensors of the optimizer's state: moments and step counts."""
        import torch

        return {
            f"{name} {key}": full(value)
            for name, parameter in self._named_parameters()
            for key, value in sorted(self.owner.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor)
        }

    def eps(self) -> dict[str, float]:
        """One ulp of 1 in the type of each parameter; 0 for whole numbers, as in quantized
        parameters, which are frozen."""
        import torch

        floats = torch.is_floating_point
        return {
            n: torch.finfo(p.dtype).eps if floats(p) else 0.0 for n, p in self._named_parameters()
        }


class Engine:
    """What DeepSpeed's engine updates. Its optimizers have flat shards."""

    def __init__(self, engine: Any) -> None:
        self.owner = engine
        self.groups = engine.optimizer.param_groups
        self.kind = type(getattr(engine.optimizer, "optimizer", engine.optimizer)).__name__

    def _named_parameters(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self.owner.module.named_parameters():
            if parameter.requires_grad:
                yield plain(name), parameter

    def gradients(self) -> dict[str, Any]:
        from deepspeed.utils import safe_get_full_grad

        from harness.rank.training.deepspeed import whole_gradient

        gradients = {}
        for name, parameter in self._named_parameters():
            gradient = whole_gradient(self.owner.optimizer, parameter)
            gradient = safe_get_full_grad(parameter) if gradient is None else gradient
            if gradient is not None:
                gradients[name] = full(gradient)
        return gradients

    def norm_of(self, norms: Mapping[int, float]) -> float:
        return norm(norms.values())

    def weights(self) -> dict[str, Any]:
        from deepspeed.utils import safe_get_full_fp32_param

        from harness.rank.training.deepspeed import whole_masters

        masters, by_name = whole_masters(self.owner.optimizer), {}
        for name, p in self._named_parameters():
            master = safe_get_full_fp32_param(p)
            by_name[name] = full(masters.get(id(p), p) if master is None else master)
        return by_name

    def copies(self) -> dict[str, Any]:
        """The model's weights in bf16 or fp16, of which the optimizer has fp32 copies."""
        return {copy: full(p) for copy, p in self._copies()}

    def _copies(self) -> Iterator[tuple[str, Any]]:
        from harness.rank.training.deepspeed import is_partitioned

        for name, parameter in self._named_parameters():
            if parameter.element_size() < 4 and not is_partitioned(parameter):
                yield f"{name}{COPY}{str(parameter.dtype).removeprefix('torch.')}", parameter

    def fresh(self) -> bool:
        return not self.owner.global_steps

    def clipping(self) -> float | None:
        if self.owner.fp16_enabled():
            return None  # the gradients have the scale of the loss
        return float(self.owner.gradient_clipping() or 0.0)

    def state(self) -> dict[str, Any]:
        return {}

    def overflowed(self) -> bool:
        """Whether the last step was skipped, because a gradient in fp16 was infinite."""
        return bool(getattr(self.owner.optimizer, "overflow", False))

    def eps(self) -> dict[str, float]:
        import torch

        masters = {name: torch.finfo(torch.float32).eps for name, _ in self._named_parameters()}
        return masters | {copy: torch.finfo(p.dtype).eps for copy, p in self._copies()}


class NamedParameters:
    """Parameters with known names: those of the model, or those of stages that are called without a
    module around them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """By the id of the parameter."""
        self.starts: dict[str, int] = {}
        """If an optimizer has a piece of a parameter, the index of the piece's first value."""
        self._parameters: list[Any] = []
        self._asked: dict[int, Any] = {}
        self._prefixes: dict[int, str] = {}
        """By the id of a module, the prefix of its parameters' names: the number of a stage and a
        dot, if other stages have the same names; otherwise empty."""
        self._modules: list[Any] = []
        """Kept alive so that no other object gets their ids. The first one is the model."""
        self._retired: list[Any] = []
        """The same for what was forgotten."""

    def __contains__(self, module: Any) -> bool:
        return id(module) in self._prefixes

    def items(self) -> Iterator[tuple[str, Any]]:
        """All parameters that were named, with their names."""
        yield from ((self.names[id(each)], each) for each in self._parameters)

    def learn(self, module: Any) -> Iterator[tuple[str, Any]]:
        """Name the new parameters of a module and return them. After the first module only trained
        parameters count: a frozen module is no stage of the model."""
        named = list(named_in_whole(module))
        if module not in self:
            taken, prefix = set(self.names.values()), ""
            if any(name in taken for name, p in named if id(p) not in self.names):
                number = stage_number(module)
                prefix = f"{len(self._modules) if number is None else number}."
            self._prefixes[id(module)] = prefix
            self._modules.append(module)
        frozen_too = module is self._modules[0]
        for name, parameter in named:
            if id(parameter) not in self.names and (frozen_too or parameter.requires_grad):
                self.names[id(parameter)] = self._prefixes[id(module)] + name
                self._parameters.append(parameter)
                yield self.names[id(parameter)], parameter

    def forget(self) -> None:
        """Forget all names: the model is another one. The ids are not used again."""
        self.names.clear()
        self._prefixes.clear()
        self._retired += [self._modules, self._parameters]
        self._modules, self._parameters = [], []

    def prefix(self, module: Any) -> str | None:
        """What precedes the names of a module's parameters; None if it is not learnt."""
        return self._prefixes.get(id(module))

    def name(self, tensor: Any) -> str | None:
        """The name of an optimizer's tensor: of a parameter, or of a piece of one."""
        if id(tensor) not in self.names and id(tensor) not in self._asked:
            self._asked[id(tensor)] = tensor
            if tensor.dim() == 1 and tensor.numel() and _lies_whole(tensor):
                self._name_piece(tensor)
        return self.names.get(id(tensor))

    def _name_piece(self, tensor: Any) -> None:
        """Name a view of a piece of a parameter, as when ranks share the optimizer's work."""
        for whole in filter(_lies_whole, self._parameters):
            start = (tensor.data_ptr() - whole.data_ptr()) // whole.element_size()
            if whole.dtype == tensor.dtype and 0 <= start <= whole.numel() - tensor.numel():
                self.names[id(tensor)] = name = self.names[id(whole)]
                self.starts[name] = start
                return


def _lies_whole(tensor: Any) -> bool:
    """Whether this rank has all values of a tensor, in contiguous memory."""
    return not hasattr(tensor, "full_tensor") and tensor.is_contiguous()


def named_in_whole(module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters with their names in the whole model. megatron-core's stages count layers from 0,
    but each layer has its number in the model."""
    numbers = dict(_numbers(module))
    for name, parameter in module.named_parameters():
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            parts[end - 1] = numbers.get(".".join(name.split(".")[:end]), parts[end - 1])
        yield plain(".".join(parts)), parameter


def _numbers(module: Any) -> Iterator[tuple[str, str]]:
    """For layers in a list that have a number, from 1: their paths, and their indexes in the whole
    model's list. Numbers that do not increase with the list mean something else."""
    lists: dict[str, dict[int, int]] = {}
    for path, part in module.named_modules():
        parent, _, place = path.rpartition(".")
        number = getattr(part, "layer_number", None)
        if place.isdigit() and isinstance(number, int) and number > 0:
            lists.setdefault(parent, {})[int(place)] = number - 1
    for parent, places in lists.items():
        if len({number - place for place, number in places.items()}) == 1:
            for place, number in places.items():
                yield ".".join(filter(None, (parent, str(place)))), str(number)
