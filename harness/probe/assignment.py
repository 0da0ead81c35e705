"""What the ranks of one layout are given: the one file that crosses to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Assignment:
    """A script and how to run it."""

    script: str
    """A file, or a module."""
    module: bool
    arguments: list[str]
    cwd: str
    imports: str
    """The module with what the script imports."""
    steps: int
    """Optimizer steps to take."""
    keep: list[int]
    """The numbers of the steps, from 0, whose weights and optimizer state are recorded."""
    saves: bool = False
    """Whether the script saves after the last step, and so goes on until it begins another."""
    epoch: bool = False
    """Whether the script goes on to its own end, and the rows of all its steps are recorded."""
    perturb: int | None = None
    """The seed of one-ulp perturbations; None for none."""
    one_order: bool = False
    """Whether all samplers draw the same order."""
    shift: str = ""
    """A file with tensors to add to the weights before the first step."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """By name, the values of constants of the script."""
    move: float = 0.0
    """By how much of their size to move the weights before the first step."""
    on_cpu: bool = False
    """Whether what the script asks of CUDA is done on the CPU."""
