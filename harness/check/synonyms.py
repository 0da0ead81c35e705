"""The other names of a package: in conda, in repositories, and of packages that contain its code.

The entries of PUBLISHED were looked up in the index on 2026-11-26 and 2026-11-28. Of a file we only
have the names. An interpreter is asked which packages install a module, so a name that is not here
is noticed there, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.bugs import catalog
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
    "albumentations": ("albu/albumentations",),
    "deepspeed": ("microsoft/deepspeed",),
    "fla-core": ("sustcsonglin/flash-linear-attention",),
    "keras": ("fchollet/keras",),
    "pytorch-lightning": ("lightning-ai/lightning", "pytorchlightning/pytorch-lightning"),
    "sentence-transformers": ("huggingface/sentence-transformers",),
    "timm": ("rwightman/pytorch-image-models",),
    "torchdata": ("pytorch/data",),
    "torchmetrics": ("pytorchlightning/metrics", "lightning-ai/metrics"),
    "torchtune": ("pytorch/torchtune",),
    "trl": ("lvwerra/trl",),
    "webdataset": ("tmbdev/webdataset",),
}
"""Where the repository of a package was before: GitHub redirects."""
UPSTREAM = {
    **{repository.lower(): package for package, repository in REPOSITORIES.items()},
    **{repository: package for package, those in FORMER.items() for repository in those},
}
"""The package in a repository on GitHub."""
AMBIGUOUS = ("ao", "composer", "data", "metrics", "streaming")
"""Names of repositories that say which package is there only together with their owners."""
FORKS: dict[str, str] = {
    name: package
    for repository, package in UPSTREAM.items()
    if (name := canonicalize_name(repository.partition("/")[2])) not in AMBIGUOUS
}
"""The package in anybody's repository or folder of this name."""


@dataclass(frozen=True)
class Published:
    """A package of the index that contains the code of another one."""

    package: str
    evidence: str
    """Why we know: what a wheel installs, or what the index says of the package."""
    same: bool = False
    """Whether its releases have the code of the releases with the same number."""


SUMMARY = "its summary is that of {}"
SAME = {
    "lightning": ("pytorch-lightning", "it installs lightning.pytorch"),
    "composer": ("mosaicml", "0.32.1 installs composer, file by file that of mosaicml 0.32.1"),
    "mmengine-lite": ("mmengine", "0.10.7 installs mmengine, file by file that of mmengine 0.10.7"),
}
"""By canonical name, the package that it publishes again, and the evidence."""
WHEELS = {
    "accelerate": {"accelerate-kt": "1.14.0.post4"},
    "albumentations": {"albumentationsx": "2.5.1"},
    "deepspeed": {"deepspeed-moee": "0.12"},
    "diffusers": {
        "diffusers-qaic": "0.24.0",
        "diffusers-unchained": "0.16.2",
        "diffusersv": "0.25.dev0",
    },
    "grain": {"grain-nightly": "0.2.16.dev20260112"},
    "keras": {"keras-nightly": "3.16.0.dev2026102704"},
    "liger-kernel": {"liger-kernel-nightly": "0.8.5.dev20261027042432"},
    "mosaicml-streaming": {"streaming-community": "0.14.2"},
    "open-clip-torch": {"open-clip-torch-any-py3": "1.3.2"},
    "peft": {"peft-kt": "0.18.1", "peft-machinify": "0.3.0.dev0", "peft-patched": "0.9.3"},
    "timm": {"timm-clean": "0.4.12"},
    "torchtune": {"forked-torchtune": "0.0.0"},
    "transformers": {
        "transformers-backport": "4.33.4",
        "transformers-kt": "5.6.0.post6",
        "transformers-openpi": "4.53.3",
        "transformers-usf": "4.56.0.post13",
    },
    "trl": {
        "mod-trl": "0.20.0.dev0",
        "trl-fpo": "0.0.15",
        "trl-kt": "0.24.0",
        "trl-token-reduction": "0.1.0",
    },
    "webdataset": {"webdatasetng": "1.0.1"},
}
"""By package, forks and nightly builds, and the version whose wheel installs its module."""
SUMMARIES = {
    "deepspeed": ("adeepspeed",),
    "diffusers": ("my-diffusers", "soujpg-diffusers"),
    "grain": ("grain-free-threading",),
    "huggingface-hub": ("huggingface-hub-gomall", "wisemodel-hub"),
    "keras": ("keras-test",),
    "mmengine": ("mmengine-open",),
    "mosaicml-streaming": ("zgl-streaming",),
    "peft": ("vfpeft",),
    "sentence-transformers": ("document-transformers", "text-transformers"),
    "timm": ("timm-eidl",),
    "torch": ("pytorch-riscv64", "rpi-torch", "torch-abi", "torch-aipy"),
    "torchmetrics": ("torchmetrics-sdv2",),
    "transformers": (
        *("divyanx-transformers", "mcwtransformers", "my-transformers", "rlinf-transformer-openpi"),
        *("transformers-machinify", "transformers-mcw", "transformers-phobert"),
        *("transformers-qwenomni", "transformers-usf-om-vl-exp-v0", "transformers-v5-pre-rc0"),
        *("transformers-v4-55-0-glm-4-5v-preview", "transformers4576", "xmersawitransformers"),
    ),
    "webdataset": ("ppwebdataset", "webdataset-latch", "webdataset-py36"),
}
"""By package, other names under which the index has its own summary, or one that says so."""

PUBLISHED = {
    **{name: Published(*entry, same=True) for name, entry in SAME.items()},
    **{
        name: Published(package, f"its wheel of {version} installs the module of {package}")
        for package, those in WHEELS.items()
        for name, version in those.items()
    },
    **{
        name: Published(package, SUMMARY.format(package))
        for package, those in SUMMARIES.items()
        for name in those
    },
}
"""By canonical name. Not here, as they contain other code: deepspeed-mii, deepspeed-kernels,
deepspeed-vacc, diffusers-npu (an empty wheel), lightning-fabric, megatron-fsdp (it installs
megatron_fsdp), peft-ex, pytorch-ignite-nightly and timm-ctp (modules of their own), tf-keras, and
``apex``, which is not NVIDIA's."""


def named_in(packages: Iterable[str]) -> list[str]:
    """These packages and the names under which their code is published as well."""
    names = list(dict.fromkeys(packages))
    return names + [name for name, copy in PUBLISHED.items() if copy.package in names]


@cache
def unrecorded_libraries() -> frozenset[str]:
    """The well-known training libraries of which the catalogue has no bug."""
    text = Path(__file__).with_name("training_libraries.txt").read_text(encoding="utf-8")
    names = {line for line in text.splitlines() if not line.startswith("#")}
    return frozenset(names.difference(named_in(catalog.upstreams())))


def forked(names: Iterable[str]) -> set[str]:
    """The packages that forks or nightly builds among these names replace."""
    return {PUBLISHED[n].package for n in names if n in PUBLISHED and not PUBLISHED[n].same}
