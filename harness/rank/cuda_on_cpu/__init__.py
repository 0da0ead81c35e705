"""CUDA on a CPU: code that asks for a GPU goes on without one.

``functions`` is the one table of what each function is on a CPU. Who needs the emulation declares
which functions it needs, for whose calls, and how their uses are counted:

- The shims, for scenarios: for the code of one package, in the releases that need it. A run reports
  how often each shim was used.
- ``harness.rank.probe.cuda_calls``, for a user's script: for almost all callers. It counts the
  script's own calls.

Torch's own functions, such as ``torch.zeros`` and ``Tensor.to``, are reached in two ways, with the
same table. ``install`` replaces a function; ``mode.enter_mode`` sees each call of each function of
torch. Neither way serves both:

- A script may name a GPU in any function of torch, also in one that a module has imported by its
  name. Replacing some is not enough. And torch.compile has to see torch's own functions: one that
  asks who calls it breaks the graph, and a script with ``fullgraph=True`` fails.
- A scenario must not have the mode. It is a part of every call of torch (an addition of two numbers
  takes 4.7 us instead of 2.1), so it is on the path of each defect, also in packages that need no
  shim. New threads do not inherit it, so their calls would fail, and their uses would be lost.
  Torch's compiler traces it only in part, so each scenario that compiles would have to leave it, as
  probe does (``mode.without_mode``).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import partial

from harness.rank.cuda_on_cpu.devices import Count
from harness.rank.cuda_on_cpu.functions import CLASSES, FUNCTIONS
from harness.rank.replacement import Callers, replace


def install(
    names: Iterable[str], count: Count, callers: Callers | None = None, everywhere: bool = False
) -> None:
    """Make these functions and classes of torch work on the CPU, and count their uses.

    With ``callers``, functions do so only for these; ``everywhere``, also in modules that have
    imported them by name. What this release of torch does not have is left out.
    """
    for name in names:
        owner_name, _, attribute = name.rpartition(".")
        try:
            owner = pkgutil.resolve_name(owner_name)
        except (AttributeError, ImportError):
            continue
        if not hasattr(owner, attribute):
            continue
        if name in CLASSES:
            setattr(owner, attribute, CLASSES[name](count))
        else:
            replace(owner, attribute, partial(FUNCTIONS[name], count), callers, everywhere)
