"""Relations for a model that is saved and loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.subject import Subject, logits
from harness.system.text import count

FREQUENCIES = ("inv_freq", "freqs")
"""Parts of the names of buffers with rotary frequencies. Positions multiply their rounding."""


def saved(subject: Subject) -> Path:
    """The folder with the model's checkpoint. Raises NoAnswer if the model cannot save."""
    module = subject.module
    if not (hasattr(module, "save_pretrained") and hasattr(type(module), "from_pretrained")):
        raise NoAnswer("the model has no save_pretrained and from_pretrained")
    folder = subject.folder / "saved"
    if not folder.exists():
        module.save_pretrained(folder)
    return folder


def loaded(subject: Subject, folder: Path, dtype: Any = None, **settings: Any) -> Any:
    """Load the model of a checkpoint, in evaluation mode."""
    cls, config = type(subject.module), type(subject.config)
    # EXAONE has LLaMA's class and a config of its own.
    if getattr(cls, "config_class", config) is not config:
        settings["config"] = config.from_pretrained(folder)
    module = cls.from_pretrained(folder, dtype=dtype or torch.float32, **settings)
    return module.eval()


def save_load(subject: Subject) -> str | None:
    """A loaded model has the weights, buffers and ties of the saved one, in fp32 and bf16."""
    module = subject.module
    again = loaded(subject, saved(subject))
    _require_same(again, module, "in fp32")
    expected, actual = logits(subject.module, subject.batch), logits(again, subject.batch)
    subject.require_equal(actual, expected, "after it was loaded")
    half = loaded(subject, saved(subject), torch.bfloat16)
    folder = subject.folder / "half"
    half.save_pretrained(folder)
    _require_same(loaded(subject, folder, torch.bfloat16), half, "in bf16")
    return None


def _require_same(model: Any, original: Any, where: str) -> None:
    """Raise Wrong unless two models have the same parameters, buffers and ties."""
    tensors = dict(_tensors(model))
    for name, tensor in _tensors(original):
        copy = tensors.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            raise Wrong(f"{where}, {name} has another shape or type after it was loaded")
        if not torch.equal(torch.nan_to_num(copy), torch.nan_to_num(tensor)):
            raise Wrong(f"{where}, {name} has other values after it was loaded")
    lost = _ties(original) - _ties(model)
    if lost:
        raise Wrong(f"{where}, {' and '.join(sorted(sorted(map(sorted, lost))[0]))} are not tied")


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _ties(module: Any) -> set[frozenset[str]]:
    """The groups of parameter names that share one tensor."""
    groups: dict[int, set[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def fp32_kept(subject: Subject) -> str | None:
    """A model loaded in bf16 keeps in fp32, unchanged, what must stay in fp32."""
    half = loaded(subject, saved(subject), torch.bfloat16)
    originals = dict(_tensors(subject.module))
    must = must_stay(half)
    names = [
        name for name, _ in _tensors(half) if must(name) and originals[name].is_floating_point()
    ]
    if not names:
        raise NoAnswer("it has no rotary frequencies, and names nothing that must stay in fp32")
    for name, tensor in _tensors(half):
        if name in names and (why := _lost(tensor, originals[name])):
            raise Wrong(f"{name} {why} after it was loaded in bf16")
    return count(len(names), "tensor")


def must_stay(module: Any) -> Callable[[str], bool]:
    """A test of names: must this tensor stay in fp32, because the model says so or because it is
    a rotary frequency?"""

    strict = [
        part
        for each in module.modules()
        for part in (getattr(each, "_keep_in_fp32_modules_strict", None) or ())
    ]

    def must(name: str) -> bool:
        if any(part in name.rpartition(".")[2] for part in FREQUENCIES):
            return True
        return any(re.search(rf"(^|\.){part}(\.|$)", name) for part in strict)

    return must


def _lost(tensor: Any, original: Any) -> str:
    """How a tensor differs from its fp32 original; empty if it does not."""
    if tensor.dtype != torch.float32:
        away = float((tensor.float() - original).abs().max())
        return f"is {str(tensor.dtype).removeprefix('torch.')}, off by up to {away:.3g},"
    return "" if torch.allclose(tensor, original, rtol=1e-6, atol=0) else "has other values"
