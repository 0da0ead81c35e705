"""Relations for a model with DeepSpeed's ZeRO stage 3."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed as dist

from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.relations.checkpoints import must_stay
from harness.rank.models.relations.replicas import halves, require_mean
from harness.rank.models.subject import Subject, loss_of, run, seed
from harness.system.text import count

SETTINGS = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
}

CLOSE = 1e-5
"""The part of a value in a buffer by which two correct computations may differ."""


def zero_init(subject: Subject) -> str | None:
    """A model constructed inside ``deepspeed.zero.Init``, in bf16, has the same buffers as outside.

    Buffers of floats are compared only if they must stay in fp32, see ``fp32_kept``.
    """
    deepspeed = _deepspeed()
    construct = subject.construct or (lambda: subject.make()[0])
    expected, again = _buffers(construct, 1), _buffers(construct, 2)
    settings = {**SETTINGS, "bf16": {"enabled": True}}
    with (
        _one_rank(),
        _known_to_transformers(settings),
        deepspeed.zero.Init(config_dict_or_path=settings),
    ):
        actual = _buffers(construct, 1)
    must = must_stay(subject.module)
    fixed = [n for n in expected if torch.equal(expected[n], again[n])]  # others are random
    compared = [n for n in fixed if must(n) or not expected[n].is_floating_point()]
    for name in compared:
        _require_same(name, actual.get(name), expected[name])
    if not compared:
        raise NoAnswer("it has no buffer that must stay as it is")
    return count(len(compared), "buffer")


def _require_same(name: str, actual: Any, expected: Any) -> None:
    """Raise Wrong unless a buffer has the expected shape, type and values."""
    from harness.detectors.buffers import difference

    if actual is None or actual.shape != expected.shape:
        raise Wrong(f"{name} has another shape inside zero.Init")
    apart = difference(name, expected, actual)  # as parts of the expected values
    if apart and (not apart.relative <= CLOSE or actual.dtype != expected.dtype):
        kind = str(actual.dtype).removeprefix("torch.")
        raise Wrong(f"{name} is {kind} inside zero.Init, off by up to {100 * apart.relative:.2g} %")


def _buffers(construct: Any, number: int) -> dict[str, Any]:
    seed(number)
    return {name: value.detach().clone() for name, value in construct().named_buffers()}


def _deepspeed() -> Any:
    import deepspeed  # type: ignore[import-not-found]

    # It would be compiled. The shared memory of its collectives is only for several ranks.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    """A process group with only this process."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    _deepspeed().init_distributed("gloo", verbose=False)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _known_to_transformers(settings: dict[str, Any]) -> Iterator[None]:
    """Tell transformers that weights are split: it then initializes them differently."""
    try:
        from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config  # type: ignore[import-not-found]
    except ImportError:
        yield
        return
    config = HfDeepSpeedConfig(settings)
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del config


def zero3(subject: Subject) -> str | None:
    """ZeRO stage 3 on 2 ranks gives the mean of both ranks' gradients."""
    deepspeed = _deepspeed()
    deepspeed.init_distributed("gloo", verbose=False)
    module = subject.module
    mine, expected, allowed = halves(subject)
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=SETTINGS)
    engine.eval()
    engine.backward(loss_of(run(engine, mine)))
    from deepspeed.utils import safe_get_full_grad  # type: ignore[import-not-found]

    actual = {name: safe_get_full_grad(p) for name, p in parameters.items()}
    if not any(value is not None for value in actual.values()):
        raise NoAnswer("DeepSpeed returns no gradient")
    require_mean({n: g for n, g in actual.items() if g is not None}, expected, allowed)
    return None
