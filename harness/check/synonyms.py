"""The other names of a package: in conda, in repositories, and of packages that contain its code.

Each entry of PUBLISHED was looked up in the index on 2026-11-26: the module is that of the newest
wheel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.bugs.commits import REPOSITORIES

ELSEWHERE = {
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "huggingface-accelerate": "accelerate",
    "huggingface-datasets": "datasets",
    "huggingface-transformers": "transformers",
    "megatron-lm": "megatron-core",
    "open-clip": "open-clip-torch",
    "ignite": "pytorch-ignite",
    "torch-metrics": "torchmetrics",
    "torch-data": "torchdata",
    "prodigy": "prodigyopt",
}
"""What conda and repositories call packages. The index may have something else of that name, such
as ``ignite``, so a requirement means what the index has."""


FORMER = {
    "deepspeed": ("microsoft/deepspeed",),
    "pytorch-lightning": ("lightning-ai/lightning", "pytorchlightning/pytorch-lightning"),
    "timm": ("rwightman/pytorch-image-models",),
    "torchdata": ("pytorch/data",),
    "torchtune": ("pytorch/torchtune",),
    "trl": ("lvwerra/trl",),
}
"""Where the repository of a package was before: GitHub redirects."""
UPSTREAM = {
    **{repository.lower(): package for package, repository in REPOSITORIES.items()},
    **{repository: package for package, those in FORMER.items() for repository in those},
}
"""The package in a repository on GitHub."""


@dataclass(frozen=True)
class Published:
    """A package of the index that contains the code of another one."""

    package: str
    module: str
    """What its wheel installs."""
    same: bool = False
    """Whether its releases have the code of the releases with the same number."""


PUBLISHED = {
    "lightning": Published("pytorch-lightning", "lightning.pytorch", same=True),
    "accelerate-kt": Published("accelerate", "accelerate"),
    "grain-nightly": Published("grain", "grain"),
    "keras-nightly": Published("keras", "keras"),
    "open-clip-torch-any-py3": Published("open-clip-torch", "open_clip"),
    "peft-kt": Published("peft", "peft"),
    "peft-machinify": Published("peft", "peft"),
    "peft-patched": Published("peft", "peft"),
    "trl-fpo": Published("trl", "trl"),
    "trl-kt": Published("trl", "trl"),
    "trl-token-reduction": Published("trl", "trl"),
    "deepspeed-moee": Published("deepspeed", "deepspeed"),
}
"""By canonical name. Not here, as they contain other code: deepspeed-mii, deepspeed-kernels,
deepspeed-vacc, lightning-fabric, peft-ex, and ``apex``, which is not NVIDIA's."""


def named_in(packages: Iterable[str]) -> list[str]:
    """These packages and the names under which their code is published as well."""
    names = list(dict.fromkeys(packages))
    return names + [name for name, copy in PUBLISHED.items() if copy.package in names]
