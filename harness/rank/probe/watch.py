"""Records what each step of a probed training does, without a change of the script.

It uses torch's own hooks and replaced functions of torch: the optimizer's step, calls of modules,
``Tensor.backward``, clipping and dropout. Dropout is switched off, as layouts could not be compared
otherwise, but it still draws its random numbers.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from harness.bugs.api.numbers import near
from harness.bugs.packages import IMPORTS
from harness.detectors.arithmetic import Projection
from harness.detectors.rows import leaves
from harness.rank.compare import ulp
from harness.rank.probe import compiled, exchange, losses, on_cpu, seeds, stops
from harness.rank.probe.exchange import Assignment
from harness.rank.probe.finite import Finite
from harness.rank.probe.on_cpu import replace_everywhere
from harness.rank.probe.parameters import (
    Engine,
    NamedParameters,
    Optimized,
    engine_of,
    fill_memory,
    full,
    local,
    moved,
    number_of,
    optimizer_skips,
    rehearses,
    reshard,
)
from harness.rank.probe.samples import bound, digest, draw_one_order, rows
from harness.rank.probe.schedules import Schedules
from harness.rank.probe.unlike import (
    schedules_unlike_by_design,
    trainers_unlike_by_design,
    unlike_by_design,
)

Step = dict[str, Any]

SITE = "/site-packages/"

SCALED = 0.01
"""How far (as a fraction) gradients that a scaler multiplies may be from that multiple."""

OF_MICRO_BATCHES = ("rows", "losses", "parts", "clips", "drops")
"""The lists of a step that have entries for its micro-batches, in order."""

OUTSIDE = 1e-6
"""If something other than a step changes weights by more than this part of their size, it is
reported: averages that an evaluation swaps in come back within rounding."""

PARTS_UP_TO = 2_000_000
"""Up to this number of parameters, each micro-batch's own gradient is kept."""


class Watch:
    """The hooks of a rank, and its recorded steps. After the last step it calls ``finish``."""

    def __init__(self, assignment: Assignment, finish: Callable[[], None]) -> None:
        import torch

        self.assignment, self.done = assignment, finish
        self.steps: list[Step] = []
        self.root: Any = None
        self.stage: int | None = None
        """Which stage of a pipeline the model is, from 0."""
        self.known = NamedParameters()
        self.engine: Engine | None = None
        self.seen: list[list[str]] = []
        """The rows of each step; over an epoch, also of the steps that are not recorded."""
        self.reported = losses.Reported()
        self.schedules = Schedules()
        self.batch: Mapping[str, Any] = {}
        """The model's first inputs, by argument, if relations are to be checked."""
        self.noise: Any = None
        if assignment.perturb is not None:
            self.noise = torch.Generator().manual_seed(assignment.perturb)
        self._state = ""
        """The state of the generators in the model's call, after the last dropout."""
        self._depth = 0
        self._saved_late = False
        """Whether an asynchronous save has begun."""
        self._backs = False
        """Whether a backward is running."""
        self._evaluated: set[int] = set()
        """The ids of the modules that were called without training."""
        self._left: dict[str, Any] = {}
        """The weights after the last step."""
        self._quiet: set[str] = set()
        """The rows on which the model ran without gradients before the first step."""
        self._untouched: list[Any] = []
        """The optimizers all of whose steps a scaler has skipped so far."""
        self._begin()

    @property
    def recording(self) -> bool:
        """Whether steps are still recorded; after the last one, only rows of an epoch are."""
        return len(self.steps) < self.assignment.steps

    def _begin(self) -> None:
        """Begin to record a step."""
        self.seen.append([])
        self.now: Step = {"rows": [], "losses": [], "parts": [], "stale": 0.0, "skipped": 0}
        self.now |= {"clips": [], "raw": None, "drops": [], "own": None, "scaled": False}
        self.now |= {"coarse": 0.0, "draws": False, "stops": False}
        self.now |= {"cleared": {}, "unused": set()}
        self._trained: dict[str, int] = {}
        """The lengths of the step's lists after the last backward that left gradients."""
        self._finite = Finite()
        self._clipped: list[Any] = []

    def records(self) -> dict[str, Any]:
        """What the rank writes to its file."""
        return {
            "steps": self.steps,
            "skipped": self.now["skipped"],
            "infinite": self._finite.text() or self.now.get("overflow", ""),
            "seen": self.seen,
            "reported": self.reported.values,
            "releases": _releases(),
            "imported": _imported(),
            "on_cpu": dict(on_cpu.asked),
            "schedule": self._schedule(),
            "relations": self._relations(),
        }

    def _relations(self) -> dict[str, list[str]]:
        """Check the relations of ``models`` on this model and its first batch."""
        if not self.assignment.relations or self.root is None:
            return {}
        from harness.rank.probe.model_relations import answers

        return answers(self.assignment.relations, self.root, self.batch)

    def _schedule(self) -> dict[str, int]:
        """The lengths of the schedule, if nothing is trained afterwards."""
        others = self.assignment.saves or self.assignment.epoch or self.assignment.shift
        if others or self.noise is not None or self.engine is not None or self.recording:
            return {}
        return self.schedules.lengths([step["lr"][0] for step in self.steps])

    # -- hooks --

    def install(self) -> None:
        """Put the hooks in place, before anything of the script runs."""
        import torch
        from torch.nn import functional
        from torch.optim import optimizer

        called, compiling = torch.nn.Module.__call__, compiled.question()

        @functools.wraps(called)
        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if compiling():
                return called(module, *arguments, **keywords)
            return self._call(called, module, arguments, keywords)

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        torch.Tensor.backward = self._backward(torch.Tensor.backward)  # type: ignore[method-assign]
        scaler = torch.amp.GradScaler
        scaler.step = self._scaled(scaler.step)  # type: ignore[method-assign]
        scaler.unscale_ = self._unscaled(scaler.unscale_)  # type: ignore[method-assign]
        replace_everywhere(torch.nn.utils.clip_grad_norm_, self._clip)
        replace_everywhere(functional.dropout, self._dropout)
        replace_everywhere(functional.scaled_dot_product_attention, self._attention)
        if self.assignment.one_order:
            draw_one_order()
        compiled.install(bool(self.assignment.shift) or self.noise is not None, self._around)
        self.reported.install(lambda: len(self.seen) - 1)
        self.schedules.install()
        stops.install(self._stopped)

    def _stopped(self, drew: bool) -> None:
        """Note that the script stopped gradients on purpose, or sampled from the model's output."""
        if not self._backs:
            self.now["stops"] = True
            self.now["draws"] |= drew

    def _call(self, called: Any, module: Any, arguments: Any, keywords: Any) -> Any:
        """Call a module. The first module with parameters that no other module calls, in a training
        step, is the model."""
        import torch

        outermost, self._depth = not self._depth, self._depth + 1
        try:
            number, step = len(self.now["rows"]), self.now
            if outermost and torch.is_grad_enabled() and _trains(module) and not rehearses(module):
                self._begin_micro_batch(module, arguments, keywords)
            elif outermost:
                self._evaluated.add(id(module))
                if not self.steps and _weights(module):
                    self._quiet |= set(rows(*bound(module, arguments, keywords)))
            watched = outermost and self.recording and bool(self.now["rows"])
            watched = watched and torch.is_grad_enabled()  # the model, or the loss of its output
            self._state = _generators() if watched else self._state
            with on_cpu.without_mode() if compiled.is_compiled(module) else nullcontext():
                output = called(module, *arguments, **keywords)
            if watched:
                self._drew()
                self._state = ""
        finally:
            self._depth -= 1
        if not self.steps and torch.is_grad_enabled():
            self._finite.recomputed |= self._backs
            self._finite.look(self.root, module, output)
        if getattr(output, "dtype", None) in (torch.bfloat16, torch.float16):
            self.now["coarse"] = max(self.now["coarse"], torch.finfo(output.dtype).eps)
        if losses.LABELS in keywords and self.noise is None and self.now["own"] is None:
            losses.follow(output, keywords, self._note_share)
            self.now["endless"] = losses.ends_masked(keywords)
        if self.noise is not None and next(module.children(), None) is None:
            output = self._nudged(output)
        if outermost and len(step["rows"]) > number:
            _note_use(output, step, number)
        return output

    def _around(
        self, modules: Sequence[Any], call: Any, arguments: Sequence[Any], keywords: Any
    ) -> Any:
        """Call a compiled function: the first of its modules that trains is the model."""
        import torch

        outermost, self._depth = not self._depth, self._depth + 1
        try:
            number, step, taught = len(self.now["rows"]), self.now, len(self.now["losses"])
            if outermost and torch.is_grad_enabled():
                trained = (each for each in modules if _trains(each) and _weights(each))
                for module in islice(trained, 1):
                    self._begin_micro_batch(module, arguments, keywords)
            with on_cpu.without_mode():
                output = call()
        finally:
            self._depth -= 1
        # a function may also make the backward, or the step, itself
        if len(step["rows"]) > number and self.now is step and len(step["losses"]) == taught:
            _note_use(output, step, number)
        return output

    def _drew(self) -> None:
        """Note whether the model drew random numbers other than dropout's."""
        self.now["draws"] |= bool(self._state) and self._state != _generators()

    def _note_share(self, share: Projection, shifted: bool) -> None:
        self.now["own"] = self.now["own"] or share.ratio
        self.now["shifted"] = shifted

    def _nudged(self, output: Any) -> Any:
        """Move the output of a leaf module, and its gradient, by a random ulp."""
        import torch

        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return output
        if hasattr(output, "full_tensor"):
            return output
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient + ulp(gradient, self.noise))
        return output + ulp(output, self.noise)

    def _begin_micro_batch(self, module: Any, arguments: Any, keywords: Any) -> None:
        """Note that the model, or another stage of it, gets a micro-batch."""
        if not _weights(module):
            return
        if self.root is None:
            self.root = module
            if self.assignment.relations:
                self.batch = dict(bound(module, arguments, keywords)[1])
            self._meet()
        if module is self.root:
            self._see(rows(*bound(module, arguments, keywords)))
        if self.recording:
            self._know(module)

    def _see(self, digests: list[str]) -> None:
        """Record the rows of a micro-batch."""
        self.seen[-1] += digests
        self.now["stops"] |= bool(digests) and self._quiet.issuperset(digests)
        if self.recording:
            self.now["rows"].append(digests)

    def _meet(self) -> None:
        """Prepare for the model, which is called for the first time."""
        self.stage = number_of(self.root)
        self.reported.install(lambda: len(self.seen) - 1)
        if (engine := engine_of(self.root)) is not None:
            self._watch_engine(engine)
        count = sum(parameter.numel() for parameter in self.root.parameters())
        self._keeps_parts = count <= PARTS_UP_TO and self.engine is None
        file = self.assignment.shift
        self._shift = exchange.loaded(Path(file).read_bytes()) if file else {}

    def _know(self, module: Any) -> None:
        """Learn the parameters of the model or of another stage, and move those of a new one."""
        if new := module not in self.known:
            reshard(module)
        for name, parameter in self.known.learn(module):
            if new:
                self._move(name, parameter)
            self._follow(name, parameter)

    def _move(self, name: str, parameter: Any) -> None:
        """Move a weight at random, by an ulp, or along the gradient, as the assignment says.

        A fault may not show where a training begins, so --perturb moves the weights at random.
        """
        import torch

        if self.assignment.move and self.engine is not None:
            raise RuntimeError("--perturb cannot move the weights of DeepSpeed's optimizers")
        if self.assignment.move:
            moved(parameter, self.assignment.move)
        with torch.no_grad():
            mine = local(parameter)
            if self.noise is not None and mine.is_floating_point():
                mine.add_(ulp(mine, self.noise))
            if name in self._shift:
                along = torch.from_numpy(self._shift[name])
                mine.add_(along.to(mine.device, mine.dtype))

    def _follow(self, name: str, parameter: Any) -> None:
        """Record a parameter's gradient of each micro-batch."""
        if parameter.requires_grad and self._keeps_parts and not hasattr(parameter, "full_tensor"):
            parameter.register_hook(functools.partial(self._part, name))

    def _part(self, name: str, gradient: Any) -> None:
        """Record a parameter's gradient of one backward on this rank, before any reduction."""
        if self.now["parts"] and self.recording:
            part = self.now["parts"][-1]
            part[name] = part[name] + full(gradient) if name in part else full(gradient)

    def _backward(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def watched(loss: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self.recording or self._backs:  # a mode of torch calls it once more
                return backward(loss, *arguments, **keywords)
            self._note_cleared()
            if not self.now["parts"]:
                self.now["stale"] = self._norm()
            gradient = arguments[0] if arguments else keywords.get("gradient")
            if gradient is None:  # otherwise a pipeline's stage continues a backward
                self.now["losses"].append(float(full(loss).sum()))
            self.now["parts"].append({})
            self._backs = True
            try:
                return backward(loss, *arguments, **keywords)
            finally:
                self._backs = False
                if any(p.grad is not None for p in self._parameters()):
                    self._trained = {what: len(self.now[what]) for what in OF_MICRO_BATCHES}

        return watched

    def _note_cleared(self) -> None:
        """Note how much of the step belongs to micro-batches whose gradients were cleared: a
        rehearsal before the loop is no part of a step."""
        gradients = (local(p.grad) for p in self._parameters() if p.grad is not None)
        if self._trained and not any(bool(one.any()) for one in gradients):
            self.now |= {"cleared": self._trained, "stale": 0.0, "raw": None}
            self._trained, self._clipped = {}, []

    def _parameters(self) -> Iterable[Any]:
        return self.root.parameters() if self.root is not None else ()

    def _norm(self) -> float:
        """The norm of the gradients that this rank has now."""
        return _norm(self._parameters())

    def _clip(self, clip: Any) -> Any:
        @functools.wraps(clip)
        def watched(parameters: Any, max_norm: Any, *arguments: Any, **keywords: Any) -> Any:
            import torch

            single = isinstance(parameters, torch.Tensor)
            parameters = [parameters] if single else list(parameters)
            if self.now["raw"] is None and self.recording:
                self.now["raw"] = {
                    self.known.names.get(id(p), f"parameter {n}"): full(p.grad)
                    for n, p in enumerate(parameters)
                    if p.grad is not None
                }
            self._clipped = parameters
            norm = clip(parameters, max_norm, *arguments, **keywords)
            self.now["clips"].append((float(max_norm), float(full(norm))))
            return norm

        return watched

    def _dropout(self, dropout: Any) -> Any:
        compiling = compiled.question()

        @functools.wraps(dropout)
        def draw(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p > 0 and not compiling():
                self.now["drops"].append(_generator(input))
                self._drew()
                dropout(input.detach(), p, True)
                self._state = self._state and _generators()
            return input

        return draw

    def _attention(self, attention: Any) -> Any:
        compiling = compiled.question()

        @functools.wraps(attention)
        def attend(
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            **keywords: Any,
        ) -> Any:
            if dropout_p > 0 and not compiling():
                self.now["drops"].append(_generator(query))
            return attention(query, key, value, attn_mask, 0.0, is_causal, **keywords)

        return attend

    # -- steps --

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """The hook before an optimizer's step. With a closure, the gradients come in the step."""
        if self.engine is not None:
            return None
        self._end_if_done()
        if not self.recording:
            return None
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if closure is None and optimizer_skips(optimizer):
            if not optimizer.state:
                self._untouched.append(optimizer)
            self._filled = fill_memory()
            return None
        if closure is None:
            if self.root is not None or self.now["parts"]:  # otherwise DeepSpeed makes its state
                self._look(self._optimized(optimizer))
            return None

        self.now["outside"] = self._outside(self._optimized(optimizer).weights())

        def watched() -> Any:
            value = closure()
            self._look(self._optimized(optimizer))
            return value

        return (optimizer, watched), {}

    def _optimized(self, optimizer: Any) -> Optimized:
        untouched = any(each is optimizer for each in self._untouched)
        return Optimized(optimizer, self.known.name, untouched)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self.recording:
            self._begin()
        elif self.engine is None and optimizer_skips(optimizer):
            self._filled()
            self._skip()
        elif self.engine is None and "grad" in self.now:
            self._keep(self._optimized(optimizer))
            self._untouched = [each for each in self._untouched if each is not optimizer]

    def _scaled(self, step: Any) -> Any:
        """The step of a loss scaler, which skips the optimizer's step if a gradient overflows. A
        fused optimizer is always called: it divides by the scale, or skips, itself."""

        @functools.wraps(step)
        def watched(scaler: Any, *arguments: Any, **keywords: Any) -> Any:
            self.now["scaled"] = scaler.is_enabled()
            before = len(self.steps), self.now["skipped"]
            begun, late = self.now, self._late(scaler)
            value = step(scaler, *arguments, **keywords)
            begun["clipped_scaled"] = begun.get("clipped_scaled") or late()
            if self.recording and (len(self.steps), self.now["skipped"]) == before:
                self._skip()
            return value

        return watched

    def _unscaled(self, unscale: Any) -> Any:
        """The function that divides gradients by the scale of the loss, also before the step."""

        @functools.wraps(unscale)
        def watched(scaler: Any, *arguments: Any, **keywords: Any) -> Any:
            late = self._late(scaler)
            value = unscale(scaler, *arguments, **keywords)
            self.now["clipped_scaled"] = self.now.get("clipped_scaled") or late()
            return value

        return watched

    def _late(self, scaler: Any) -> Callable[[], float]:
        """A function that returns the scale of the loss if gradients were clipped before this call
        and divided by the scale since; otherwise 0."""
        clipped, before = self._clipped, _norm(self._clipped)
        scale = scaler.get_scale() if clipped and scaler.is_enabled() else 1.0

        def late() -> float:
            divided = before > 0 and near(before, _norm(clipped) * scale, share=SCALED)
            return scale if divided and scale != 1 else 0.0

        return late

    def _skip(self) -> None:
        """Discard a step that was not taken, but note that and where it overflowed."""
        skipped, overflow = self.now["skipped"] + 1, self._finite.text()
        self._begin()
        self.now |= {"skipped": skipped, "overflow": overflow}

    def _watch_engine(self, deepspeed_engine: Any) -> None:
        """Watch the engine: DeepSpeed's optimizers step by shards, some of them several times."""
        take = deepspeed_engine._take_model_step
        engine = self.engine = Engine(deepspeed_engine)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            self._end_if_done()
            if not self.recording:
                self._begin()
                return take(*arguments, **keywords)
            self._look(engine)
            value = take(*arguments, **keywords)
            if engine.overflowed():
                self._skip()
            else:
                self._keep(engine)
            return value

        deepspeed_engine._take_model_step = watched

    def _look(self, updated: Any) -> None:
        """Record the state of the optimizer before its step."""
        before = self._before = updated.weights()
        every = {**before, **updated.copies()}
        self.now.setdefault("outside", self._outside(before))
        self.now |= {
            "grad": updated.gradients(),
            "lr": [float(group["lr"]) for group in updated.groups],
            "optimizer": updated.kind,
            "eps": updated.eps(),
            "largest": {n: float(w.abs().max()) if w.numel() else 0.0 for n, w in every.items()},
            "group": _settings(updated.groups),
            "clipping": updated.clipping(),
            "fresh": updated.fresh(),
            "starts": dict(self.known.starts),
            "infinite": self._finite.text(),
            "infinite_module": self._finite.module,
        }
        if len(self.steps) in self.assignment.keep:
            self.now |= {"before": every, "state": updated.state()}

    def _outside(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """By name, how far weights changed since the last step, as a part of their size."""
        pairs = ((n, w, self._left[n]) for n, w in weights.items() if n in self._left)
        parts = {
            name: float((now - left).norm() / left.norm())
            for name, now, left in pairs
            if now.shape == left.shape
        }
        return {name: part for name, part in parts.items() if part > OUTSIDE}

    def _keep(self, updated: Any) -> None:
        """Record how far the step moved the weights, and begin the next one."""
        after = updated.weights()
        self._left |= {n: w for n, w in after.items() if n in self.known.names.values()}
        self.now["update"] = {
            n: (after[n].double() - w.double()).to(w.dtype) for n, w in self._before.items()
        }
        exact = not (self.now["scaled"] or self.now["coarse"] or self.now["stops"])
        self.now["slopes"] = self.engine is None and exact
        if not self.steps:
            unlike = [
                *unlike_by_design(self.root),
                *schedules_unlike_by_design(),
                *trainers_unlike_by_design(),
            ]
            self.now |= {
                "unlike": unlike,
                "shims": list(on_cpu.installed_shims),
                "seeded": seeds.replaced(int(os.environ.get("RANK", 0))),
                "stage": self.stage,
                "compiled": list(compiled.asked),
            }
        parts = map(id, self.root.modules()) if self.root is not None else ()
        self.now["evaluated"] = not self._evaluated.isdisjoint(parts)
        self.steps.append(self.now)
        self.schedules.step()
        self._begin()
        if not self.assignment.saves:
            self._end_if_done()
        elif not self.recording:
            on_cpu.replace_asynchronous(self._save_late)

    def _save_late(self, save: Any) -> Any:
        """Wrap an asynchronous save: the step after it must not change the file."""

        @functools.wraps(save)
        def saved(*arguments: Any, **keywords: Any) -> Any:
            self._saved_late = True
            return save(*arguments, **keywords)

        return saved

    def _end_if_done(self) -> None:
        if self.recording or self.assignment.epoch:
            return
        if self._saved_late:
            self._saved_late = False
            return
        self.done()


def _note_use(output: Any, step: Step, number: int) -> None:
    """Count a micro-batch as unused until an output of the model gets a gradient: a call before the
    loop may only initialise lazy modules."""

    def note(gradient: Any) -> None:
        step["unused"].discard(number)

    import torch

    values = [value for _, value in leaves(output, is_dataclass)]
    outputs = [each for each in values if isinstance(each, torch.Tensor) and each.requires_grad]
    for tensor in outputs:
        tensor.register_hook(note)
    step["unused"] |= {number} if outputs else set()


def _norm(parameters: Iterable[Any]) -> float:
    """The norm of this rank's gradients of some parameters."""
    squares = (float(local(p.grad).norm()) ** 2 for p in parameters if p.grad is not None)
    return float(sum(squares) ** 0.5)


def _trains(module: Any) -> bool:
    """Whether a module or a part of it is in training mode: after a validation, Lightning leaves
    the DDP wrapper in evaluation mode."""
    return any(each.training for each in module.modules())


def _weights(module: Any) -> bool:
    """Whether a module has parameters."""
    return next(module.parameters(), None) is not None


def _settings(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The settings that are numbers, if they are equal in all of an optimizer's groups."""
    settings, *others = (
        {n: v for n, v in group.items() if isinstance(v, (int, float))} for group in groups
    )
    return {} if any(one != settings for one in others) else settings


def _releases() -> dict[str, str]:
    """The release of each module that this process has imported."""
    releases = {}
    for name in list(sys.modules):
        if "." not in name or name in IMPORTS.values():
            with suppress(Exception):  # some modules compute their attributes
                releases[name] = sys.modules[name].__version__
    return {name: version for name, version in releases.items() if type(version) is str}


def _imported() -> list[str]:
    """The files of packages that this process has imported: ``transformers/trainer.py``."""
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    return [file.rpartition(SITE)[2] for file in files if SITE in file]


def _generator(tensor: Any) -> str:
    """The state of the generator of a tensor's device."""
    import torch

    on_gpu = tensor.device.type == "cuda"
    return digest(torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state())


def _generators() -> str:
    """The state of the generators that a model may draw from."""
    import torch

    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return " ".join(map(digest, [torch.get_rng_state(), *on_gpu]))
