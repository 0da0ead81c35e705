"""The releases and settings of this run, and the bugs of the catalogue that they set off."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

from ...system.conditions import holds, word_of
from ..events import frames, is_engine
from ..training import live_objects
from ..training.callers import is_installed, user_frames
from ..training.live_objects import attribute, objects
from .posting.posts import Alarm, ParameterFacts, Post
from .sentences import number_of

STEPS = "gradient_accumulation_steps"
DISTRIBUTED_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer"

SENTENCES = {"resumed": "a checkpoint was loaded", "trainer": "the Trainer runs the loop"}
"""What a setting that is a flag means."""


def releases(packages: Mapping[str, str]) -> dict[str, str]:
    """The release of each package that this process has imported, without a local part.
    ``packages`` are modules with the names of their packages."""
    versions = {}
    for module, package in packages.items():
        if module in sys.modules:
            text = getattr(sys.modules[module], "__version__", "")
            with contextlib.suppress(metadata.PackageNotFoundError):
                text = text if isinstance(text, str) and text else metadata.version(package)
                if text:  # a damaged installation has none
                    versions[module] = text.split("+")[0]
    return versions


def settings_of(
    parameters: ParameterFacts, backwards: int, scaler: Any, *, is_resumed: bool = False
) -> dict[str, Any]:
    """The settings that decide whether a bug occurs, under the catalogue's names for them. One that
    cannot be seen is absent, as is a load that may still come."""
    is_up = dist.is_available() and dist.is_initialized()
    types = {described.dtype for described in parameters.described}
    scaled = scaler is not None and scaler.is_enabled()
    precision = "bf16" if "bfloat16" in types else "fp16" if scaled else "fp32"
    settings = {
        "ranks": dist.get_world_size() if is_up else 1,
        STEPS: planned_micro_batches() or max(1, backwards),
        "precision": precision,
        "trainer": False,
        "optimizer": parameters.kind,
        "gpu": torch.cuda.is_available() and torch.cuda.is_initialized(),
        **({"resumed": True} if is_resumed else {}),
        **_of_megatron(),
    }
    for module, caller in callers():
        if module == "transformers.trainer" and not settings["trainer"]:
            settings["trainer"] = True
            settings.update(_of_trainer(getattr(caller, "args", None)))
        if is_engine(caller):
            settings.update(_of_engine(caller))
            break
    return settings


def callers() -> Iterator[tuple[str, Any]]:
    """The module and the object of each function that led to this step: that a package is imported
    says little."""
    return ((one.f_globals.get("__name__", ""), one.f_locals.get("self")) for one in frames())


def planned_micro_batches() -> int:
    """How many micro-batches of a step whoever runs the loop was asked for, as a package or a
    variable of the loop says; 0 if nobody does, or if an epoch ends with this step, which may have
    fewer."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if getattr(kind, "_shared_state", None):
        state = kind()
        ends = getattr(state, "end_of_dataloader", False)
        return 0 if ends else int(getattr(state, "num_steps", 0) or 0)
    for module, caller in callers():
        trainer = getattr(caller, "trainer", None) if "lightning" in module else None
        plans = [getattr(trainer, "accumulate_grad_batches", None)]
        if module == "transformers.trainer":
            plans.append(_of_trainer(getattr(caller, "args", None)).get(STEPS))
        if is_engine(caller):
            plans.append(_of_engine(caller).get(STEPS))
        if plan := next((one for one in plans if isinstance(one, int)), 0):
            return plan
    return _accumulation_of_loop()


def _accumulation_of_loop() -> int:
    """The number of a variable of the user's code with a name such as ``grad_accum_steps``, or of
    an option of its command line; 0 if there is none, or several."""
    numbers = set()
    for variables in (frame.f_locals for frame in user_frames()):
        options = [vars(one) for one in variables.values() if isinstance(one, argparse.Namespace)]
        for space in (variables, *options):
            numbers |= {
                value
                for name, value in list(space.items())
                if type(value) is int and value > 1 and "accum" in name.lower()
            }
    return numbers.pop() if len(numbers) == 1 else 0


def cleared_by_lightning() -> Alarm | None:
    """An alarm if Lightning itself clears gradients that are there, within the micro-batches of a
    step. Code of the user's on the way there may mean it, and a hook may end an epoch so early."""
    for frame in frames():
        trainer = attribute(frame.f_locals.get("self"), "trainer")
        window = attribute(trainer, "accumulate_grad_batches")
        if not is_installed(frame.f_code.co_filename):
            return None
        if ".loops." in frame.f_globals.get("__name__", "") and isinstance(window, int):
            done = attribute(trainer, "fit_loop.epoch_loop.batch_progress.current.completed")
            lost = done % window if isinstance(done, int) else 0
            text = (
                f"Lightning clears the gradients of {number_of(lost, 'micro-batch', 'es')} of "
                f"{window} before the step that is to use them"
            )
            return Alarm("gradients", "cleared", text, size=float(lost)) if lost else None
    return None


def masks_asked_for() -> str:
    """The setting of trl by which some labels are to be masked; empty if there is none."""
    trainers = (caller for module, caller in callers() if module == "transformers.trainer")
    arguments = getattr(next(trainers, None), "args", None)
    flags = ("assistant_only_loss", "completion_only_loss")
    return next((one for one in flags if getattr(arguments, one, None) is True), "")


def _of_trainer(arguments: Any) -> dict[str, Any]:
    """What the arguments of transformers' Trainer decide."""
    steps = getattr(arguments, "gradient_accumulation_steps", None)
    flags = {name for name in ("bf16", "fp16") if getattr(arguments, name, None) is True}
    return {
        **({STEPS: steps} if isinstance(steps, int) else {}),
        **({"precision": min(flags)} if flags else {}),
    }


def _of_megatron() -> dict[str, Any]:
    """How megatron-core splits a model, and whether it has its distributed optimizer."""
    state = sys.modules.get("megatron.core.parallel_state")
    parts = {
        "tensor_parallel": _asked(state, "get_tensor_model_parallel_world_size"),
        "pipeline_parallel": _asked(state, "get_pipeline_model_parallel_world_size"),
    }
    if not all(isinstance(number, int) for number in parts.values()):
        return {}
    # Its step has ended when this one is looked at: it is no caller any more.
    is_distributed = bool(objects((DISTRIBUTED_OPTIMIZER,)).get(DISTRIBUTED_OPTIMIZER))
    return {**parts, "distributed_optimizer": is_distributed}


def _of_engine(engine: Any) -> dict[str, Any]:
    """What DeepSpeed's engine has of its configuration."""
    schedule = type(getattr(engine, "lr_scheduler", None)).__name__
    in_fp16, in_bf16 = _asked(engine, "fp16_enabled"), _asked(engine, "bfloat16_enabled")
    stages = getattr(engine, "num_stages", 1)
    settings = {
        "zero_stage": _asked(engine, "zero_optimization_stage"),
        "gradient_clipping": _asked(engine, "gradient_clipping"),
        "gradient_accumulation_steps": _asked(engine, "gradient_accumulation_steps"),
        "dynamic_loss_scale": _asked(engine, "dynamic_loss_scale") if in_fp16 else False,
        "pipeline_parallel": stages if isinstance(stages, int) else None,
        "warmup_of_deepspeed": schedule.startswith("Warmup"),
        "contiguous_gradients": _asked(engine, "zero_contiguous_gradients"),
    }
    inner = getattr(engine, "basic_optimizer", None)
    if inner is not None:  # torch's Muon, of the script, is another one
        settings["muon_of_deepspeed"] = type(inner).__name__ == "MuonWithAuxAdam"
    offload = getattr(getattr(engine, "optimizer", None), "cpu_offload", None)
    if isinstance(offload, bool):
        settings["offload_optimizer"] = offload
    if in_fp16 is not None:
        settings["precision"] = "fp16" if in_fp16 else "bf16" if in_bf16 else "fp32"
    return {name: value for name, value in settings.items() if value is not None}


def _asked(engine: Any, name: str) -> Any:
    """What a method of DeepSpeed's engine or a function of a module returns; None if this release
    has no such one, or if it fails: nothing was set up."""
    try:
        return getattr(engine, name)()
    except Exception:
        return None


def read(file: str) -> dict[str, Any]:
    """The packages of the catalogue, and its bugs, as the command has written them."""
    with open(file, encoding="utf-8") as opened:
        content: dict[str, Any] = json.load(opened)
    return content


def facts_of(
    post: Post, backwards: int, scaler: Any, bugs_file: str, *, is_resumed: bool = False
) -> dict[str, Any]:
    """The releases and settings of this run, and the bugs of ``bugs_file`` that they may set off.
    To be called by the thread that trains, within the step."""
    catalogue: dict[str, Any] = {"packages": {"torch": "torch"}, "bugs": []}
    if bugs_file:
        catalogue = read(bugs_file)
    versions = releases(catalogue["packages"])
    settings = settings_of(post.parameters, backwards, scaler, is_resumed=is_resumed)
    return {
        "releases": versions,
        "settings": settings,
        "known_bugs": known_bugs(
            catalogue["bugs"], versions, settings, {module for module, _ in callers()}
        ),
    }


def known_bugs(
    bugs: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    settings: Mapping[str, Any],
    modules: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The bugs whose release this run has and that its settings and its objects do not exclude.
    ``certain`` are those that they set off. ``modules`` are those whose code runs this step.
    """
    candidates = [
        bug
        for bug in bugs
        if all(versions.get(name) in those for name, those in bug["affected"].items())
        and all(holds(r, settings[n]) for n, r in bug["settings"].items() if n in settings)
    ]
    live = objects({name for bug in candidates for name in bug["seen"]})
    bugs_of_run = []
    for bug in candidates:
        by_objects = live_objects.is_met(bug["seen"], live, modules)
        if by_objects is False:
            continue
        is_seen = by_objects is True and all(name in settings for name in bug["settings"])
        is_certain = bug["certain"] and is_seen
        facts = {key: value for key, value in bug.items() if key not in ("affected", "seen")}
        because = _because(bug, versions, settings) if is_certain else ""
        bugs_of_run.append({**facts, "certain": is_certain, "because": because})
    return bugs_of_run


UNSHOWN = (STEPS, "precision")
"""Settings that a step does not show: a bug may step too early, and autocast leaves the weights."""


def impossible_bugs(file: str, optimizer: str) -> list[str]:
    """The names of the bugs of a file that this run cannot set off, whatever its releases are. To
    be called within the step."""
    settings = settings_of(ParameterFacts(optimizer), 1, None)
    settings = {name: value for name, value in settings.items() if name not in UNSHOWN}
    bugs = [{**bug, "affected": {}} for bug in read(file)["bugs"]]
    modules = {module for module, _ in callers()}
    possible = {bug["name"] for bug in known_bugs(bugs, {}, settings, modules)}
    return sorted({bug["name"] for bug in bugs} - possible)


def _because(
    bug: Mapping[str, Any], versions: Mapping[str, str], settings: Mapping[str, Any]
) -> str:
    """The releases and settings that set off a bug, as text."""
    reasons = [f"{name} is {versions[name]}" for name in bug["affected"]]
    reasons += [
        SENTENCES.get(name) or f"{name} is {word_of(settings[name])}" for name in bug["settings"]
    ]
    reasons += [bug["code"]] if bug.get("code") else []
    return " and ".join(reasons)
