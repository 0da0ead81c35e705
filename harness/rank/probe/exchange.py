"""What the harness sends to the ranks of a layout, and what the ranks send back.

Both may have different releases of numpy. A pickle of an array names modules of numpy, which have
moved between releases. So arrays are sent as their type, shape and bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
