"""Splits the user's command line into a script and its arguments, and fills them in.

Launchers (torchrun, accelerate launch, deepspeed) are removed, because each layout has its own
number of ranks.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from harness.system.errors import UserError

NUMBERS = ("rows", "total", "k", "ranks", "micro_batches", "at")
PLACEHOLDERS = (*NUMBERS, "dir")

_FACTOR = rf"\s*(?:{'|'.join(NUMBERS)}|\d+)\s*"
PLACEHOLDER = re.compile(rf"\{{(dir|{_FACTOR}(?:\*{_FACTOR})*)\}}")
"""A placeholder, or a product of placeholders and whole numbers, such as {rows*1024}."""

OTHER = re.compile(r"\{([\w\s()]*[-+*/%][-+*/%\w\s().]*)\}")
"""Arithmetic in braces."""

FLAGS = {
    "torchrun": {
        "standalone", "no-python", "run-path", "virtual-local-rank", "no_python", "run_path",
    },
    "accelerate": {
        "cpu", "multi_gpu", "multi-gpu", "tpu", "use_deepspeed", "use-deepspeed", "use_fsdp",
        "use-fsdp", "use_megatron_lm", "debug", "quiet", "no_python", "use_xpu", "ipex", "m",
        "module", "same_network",
    },
    "deepspeed": {"no_python", "no_local_rank", "no_ssh", "force_multi", "enable_each_rank_log"},
    "python": {"u", "O", "B", "E", "I", "s", "S", "v", "q"},
}  # fmt: skip
"""The options of each launcher that take no value."""

IGNORED = {"use_deepspeed", "use_fsdp", "config_file", "use_megatron_lm", "dynamo_backend"}
"""Options of ``accelerate launch`` that change what a script does, and that a probe cannot obey."""


@dataclass(frozen=True)
class Target:
    """A script, or a module, and its arguments with placeholders."""

    script: str
    arguments: tuple[str, ...]
    module: bool = False
    constants: Mapping[str, str] = field(default_factory=dict)
    """By name, what to set constants of the script to; with placeholders."""

    @property
    def names_micro_batches(self) -> bool:
        """Whether the command says how many micro-batches a step has."""
        placeholders = names((*self.arguments, *self.constants.values()))
        return bool(placeholders & {"k", "micro_batches"})

    @property
    def file(self) -> Path | None:
        """The file of the script or of the module; None if it cannot be found."""
        if not self.module:
            return Path(self.script)
        path = Path(*self.script.split("."))
        files = path.with_suffix(".py"), path / "__main__.py"
        if file := next(filter(Path.is_file, files), None):  # the harness's path has no such folder
            return file.resolve()
        with suppress(ImportError, ValueError):
            spec = find_spec(self.script)
            if spec is not None and spec.origin:
                return Path(spec.origin)
        return None

    def filled(self, values: Mapping[str, object], extra_arguments: str = "") -> list[str]:
        """The arguments and ``extra_arguments``, without placeholders. Other braces stay."""
        return [_filled(word, values) for word in (*self.arguments, *shlex.split(extra_arguments))]

    def filled_constants(self, values: Mapping[str, object]) -> dict[str, str]:
        return {name: _filled(text, values) for name, text in self.constants.items()}


def _filled(word: str, values: Mapping[str, object]) -> str:
    def value(match: re.Match[str]) -> str:
        factors = [part.strip() for part in match[1].split("*")]
        if not any(part in values for part in factors):
            return match[0]
        if len(factors) == 1:
            return str(values[factors[0]])
        return str(math.prod(int(str(values.get(part, part))) for part in factors))

    return PLACEHOLDER.sub(value, word)


def names(words: Iterable[str]) -> set[str]:
    """The placeholders in some words; raises UserError for other arithmetic, such as {rows/2}."""
    placeholders: set[str] = set()
    for word in words:
        for match in PLACEHOLDER.finditer(word):
            placeholders |= {part.strip() for part in match[1].split("*")}
        for arithmetic in OTHER.finditer(PLACEHOLDER.sub("", word)):
            if not set(re.findall(r"\w+", arithmetic[1])) & set(PLACEHOLDERS):
                continue
            raise UserError(
                f"{arithmetic[0]} in {word}: write a placeholder ({', '.join(PLACEHOLDERS)}), or a "
                "product with whole numbers, such as {rows*1024}"
            )
    return placeholders & set(PLACEHOLDERS)


def target(words: Sequence[str]) -> Target:
    """The script and its arguments; raises UserError without a script, or if it does not exist."""
    words, launcher = _without_launcher(list(words))
    words, module = _without_options(words, launcher)
    if not words:
        raise UserError("name a script: python -m harness probe train.py --batch-size {rows}")
    script, *arguments = words
    if not module and not Path(script).is_file():
        raise UserError(f"there is no script {script}")
    return Target(script, tuple(arguments), module)


def _without_launcher(words: list[str]) -> tuple[list[str], str]:
    """The words after the launcher, and its name; ``python`` if there is none."""
    name = Path(words[0]).name if words else ""
    if words[:1] == ["accelerate"] and words[1:2] == ["launch"]:
        return words[2:], "accelerate"
    if name in ("torchrun", "deepspeed"):
        return words[1:], name
    if name.startswith("python") and not name.endswith(".py"):
        if words[1:3] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            return words[3:], "torchrun"
        if words[1:3] == ["-m", "accelerate.commands.launch"]:
            return words[3:], "accelerate"
        return words[1:], "python"
    return words, "python"


def _without_options(words: list[str], launcher: str) -> tuple[list[str], bool]:
    """The words from the script on, and whether it is a module."""
    module = False
    while words and words[0].startswith("-"):
        name, equals_sign, _ = words.pop(0).lstrip("-").partition("=")
        if name in ("m", "module"):
            module = True
            if launcher == "python":
                break
        elif launcher == "accelerate" and name in IGNORED:
            raise UserError(
                f"--{name} of accelerate launch changes what the script does, and is not obeyed: "
                "configure that in the script for the test"
            )
        elif not equals_sign and name not in FLAGS[launcher]:
            words[:1] = []
    return words, module
