"""The checks: each judges the posts of all ranks of a step. None asks a device or a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .accumulation import accumulation
from .checkpoints import checkpoints
from .clipping import clipping
from .common_rows import common_rows
from .finite import finite
from .gradients import gradients
from .groups import groups
from .masters import masters
from .precision import precision
from .replicas import replicas
from .samples import samples
from .updates import unheld, updates
from .views import Alarm, Memory, View

CHECKS: dict[str, Callable[[Sequence[View], Memory], Iterator[Alarm]]] = {
    "replicas": replicas,
    "gradients": gradients,
    "clipping": clipping,
    "updates": updates,
    "unheld": unheld,
    "groups": groups,
    "masters": masters,
    "precision": precision,
    "finite": finite,
    "accumulation": accumulation,
    "samples": samples,
    "common rows": common_rows,
    "checkpoints": checkpoints,
}
"""Each check, by the name under which an option chooses it."""
