"""What the harness sends to the ranks of a layout, and what the ranks send back.

Both may have different releases of numpy. A pickle of an array names modules of numpy, which have
moved between releases. So arrays are sent as their type, shape and bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

FILES = "files"
"""The subfolder of a run's folder that is the script's ``{dir}``."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a script is run for."""

    steps: int = 0
    """Optimizer steps to take."""
    perturb: int | None = None
    """The seed of one-ulp perturbations; None for none."""
    saves: bool = False
    """Whether the script saves after the last step, and so goes on until it begins another."""
    epoch: bool = False
    """Whether the script goes on to its own end, and the rows of all its steps are recorded."""
    one_order: bool = False
    """Whether all samplers draw the same order."""
    relations: Sequence[str] = ()
    """Relations of ``models`` to ask of the model after the last step."""
    places: bool = False
    """Whether what the modules get and return in the last step is recorded, and its gradients."""
    mode: str = ""
    """Of ``modes``; empty for that of the script."""
    dropout: bool = False
    """Whether dropout stays on."""


@dataclass(frozen=True)
class Assignment(Task):
    """A script and how to run it."""

    script: str
    """A file, or a module."""
    module: bool
    arguments: list[str]
    cwd: str
    imports: str
    """The module with what the script imports."""
    keep: Sequence[int] = ()
    """The numbers of the steps, from 0, whose weights and optimizer state are recorded."""
    rows: int = 0
    """Rows that the first micro-batch of a rank has, with ``{rows}``; 0 if that is not known."""
    shift: str = ""
    """A file with tensors to add to the weights before the first step."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """By name, the values of constants of the script."""
    bugs: str = ""
    """A file with the bugs of the catalogue and their conditions; empty not to ask for them."""
    on_cpu: bool = False
    """Whether what the script asks of CUDA is done on the CPU."""
    folders: Sequence[str] = ()
    """The user's folders, which the ranks read, and do not change."""
    own: str = ""
    """The folder with what the ranks write into the user's instead."""
    earlier: str = ""
    """The same of the run that this one goes on from, if it does."""
    shared: Sequence[str] = ()
    """Folders that all runs write into, though they lie in the user's."""
    temporary: str = ""
    """The folder for temporary files."""


@dataclass
class Step:
    """What a rank records of a step. Dictionaries are by the names of parameters, if they do not
    say otherwise."""

    rows: list[list[str]] = field(default_factory=list)
    """Digests, by micro-batch."""
    losses: list[float] = field(default_factory=list)
    """By backward."""
    parts: list[dict[str, Any]] = field(default_factory=list)
    """By backward, its own gradients, before any reduction."""
    clips: list[tuple[float, float, bool]] = field(default_factory=list)
    """Of each clipping the limit, the norm before, and whether it clips values."""
    drops: list[str] = field(default_factory=list)
    """The state of the generator before each dropout."""
    rates: set[float] = field(default_factory=set)
    """Of dropout."""
    modes: set[bool] = field(default_factory=set)
    """Whether what depends on the training mode was in it, in the calls that got a gradient."""
    cleared: dict[str, int] = field(default_factory=dict)
    """By list of the step, how many entries belong to gradients that were cleared."""
    unused: set[int] = field(default_factory=set)
    """The micro-batches whose outputs got no gradient."""
    skipped: int = 0
    """Steps before it that a scaler skipped."""
    overflow: str = ""
    """Where the last of these was not finite."""
    infinite: str = ""
    """The first place that is not finite, in words."""
    stale: float = 0.0
    """The norm of the gradients before the first backward."""
    left: float = 0.0
    """The norm of this rank's gradients after the last backward."""
    scaled: bool = False
    """Whether a scaler of the loss takes the step."""
    scale: float = 0.0
    """With which it begins."""
    clipped_scaled: float = 0.0
    """The scale of the loss if it still multiplied the gradients when they were clipped."""
    coarse: float = 0.0
    """An ulp of 1 in the coarsest 16-bit type of what modules return."""
    own: float | None = None
    """The gradient of the logits, as a multiple of that of the mean cross-entropy."""
    shifted: bool = False
    """Whether labels are shifted twice."""
    endless: bool = False
    """Whether the end of each row has no label."""
    draws: bool = False
    """Whether the model draws random numbers other than dropout's."""
    stops: bool = False
    """Whether the loop stops gradients on purpose."""
    slopes: bool = False
    """Whether the loss is exact enough for finite differences."""
    evaluated: bool = False
    places: list[dict[str, Any]] = field(default_factory=list)
    """The calls of modules, if they are watched."""

    raw: dict[str, Any] | None = None
    """The gradients before the first clipping; None without one."""
    grad: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    """The weights, also in copies of 16 bits, if the step is to keep them."""
    update: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """Of the optimizer, by parameter and entry, if the step is to keep it."""
    outside: dict[str, float] | None = None
    """How far weights changed since the step before, as a part of their size."""
    eps: dict[str, float] = field(default_factory=dict)
    """An ulp of 1 in the type of the weight."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest value of the weight."""
    starts: dict[str, int] = field(default_factory=dict)
    """If an optimizer has a piece of a parameter, the index of the piece's first value."""
    optimizer: str = ""
    """Its class; empty before it has looked at its gradients."""
    number: int = 0
    """Of the optimizer."""
    lr: list[float] = field(default_factory=list)
    """By group."""
    group: dict[str, Any] = field(default_factory=dict)
    """The settings that all groups have."""
    clipping: float | None = 0.0
    """The norm to which the optimizer's own step clips; None if it uses other gradients."""
    fresh: bool = False
    """Whether the optimizer has taken no step before."""
    copies: Sequence[Mapping[str, Any]] = ()
    """Of the model, after the last step."""
    several_ranks: bool = False
    """Whether it was made of the steps of several ranks."""

    # Only of the first step:
    settings: dict[str, str] = field(default_factory=dict)
    """In words."""
    unlike: list[str] = field(default_factory=list)
    """What differs between layouts by design."""
    shims: list[str] = field(default_factory=list)
    seeded: bool = False
    """Whether the script has set a seed."""
    stage: int | None = None
    """Of a pipeline, from 0."""
    impossible: Sequence[str] = ()
    """The known bugs that the run cannot set off."""
    unheld: dict[str, int] = field(default_factory=dict)
    """The sizes of parameters that get gradients, are in no optimizer, and never move."""
    strangers: int = 0
    """Tensors without a gradient that the optimizers have, and no model."""
    empty: bool = False
    """Whether the optimizers have no tensor at all."""
    checkpoints: int = 0
    """How many calls recompute activations."""
    compiled: bool = False
    remarks: list[str] = field(default_factory=list)
    """Lines for the report."""

    def tensors(self, quantity: str) -> dict[str, Any]:
        """A quantity of each parameter: ``grad``, ``raw``, ``update``, ``before`` or ``state``."""
        return getattr(self, quantity) or {}

    def copy(self, **changes: Any) -> Step:
        """The same with other values."""
        return replace(self, **changes)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Tensors and arrays as a call of ``_array``."""
        if not hasattr(value, "dtype"):
            return NotImplemented
        array = value if hasattr(value, "tobytes") else value.numpy()
        return _array, (array.dtype.str, array.shape, array.tobytes())


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    import numpy

    return numpy.frombuffer(content, dtype).reshape(shape).copy()


def dumped(recorded: Any) -> bytes:
    """Convert dictionaries and lists of plain values, tensors and arrays to bytes."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(recorded)
    return buffer.getvalue()


def loaded(content: bytes) -> Any:
    """Read these bytes back, with arrays. Only for bytes that this project wrote."""
    return pickle.loads(content)
