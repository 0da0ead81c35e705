"""Real text that every machine has: the source of Python's own standard library, as bytes.

It is the modules directly under the library's folder, sorted by name, joined, and cut at 4 MB. The
bytes depend on the patch release of Python, so the records have their SHA-256. Files that say where
this Python was built (``_sysconfigdata*``), or that its distributor added (``sitecustomize.py``),
are left out.

Imports torch: import it inside ``run``.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.bugs import api

SIZE = 4_000_000
"""Bytes of text at most."""

LEAST = 1_000_000
"""With fewer bytes, the standard library is not there as source."""

LOCAL = ("_sysconfigdata", "sitecustomize", "usercustomize")
"""How the names of files start that differ between machines with the same Python."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on, [bytes] in uint8, and where they are from."""

    data: Tensor
    files: int
    sha256: str

    def batch(self, sequences: int, length: int, generator: torch.Generator) -> Tensor:
        """Random pieces of the text as int64 [sequences, length], drawn with ``generator``."""
        starts = torch.randint(len(self.data) - length, (sequences,), generator=generator)
        return torch.stack([self.data[s : s + length] for s in starts.tolist()]).long()

    def batches(self, ctx: api.Context, sequences: int, length: int) -> Iterator[Tensor]:
        """This rank's part of one batch after another, on its device, without end.

        Each rank draws the complete batch, so the text does not depend on the number of ranks.
        """
        generator = torch.Generator().manual_seed(ctx.seed)
        while True:
            whole = self.batch(sequences, length, generator)
            yield whole.chunk(ctx.world_size)[ctx.rank].to(ctx.device)

    @property
    def facts(self) -> dict[str, Any]:
        """What to record of the text."""
        return {"sha256": self.sha256, "bytes": len(self.data), "files": self.files}


def standard_library(size: int = SIZE) -> Corpus:
    """The first ``size`` bytes; raises RuntimeError where the library's source is missing."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text, files = bytearray(), 0
    for file in sorted(folder.glob("*.py"), key=lambda file: file.name):
        if len(text) >= size:
            break
        if not file.name.startswith(LOCAL):
            text += file.read_bytes()
            files += 1
    del text[size:]
    if len(text) < min(LEAST, size):
        raise RuntimeError(f"only {len(text)} bytes of source in the standard library here")
    data = torch.frombuffer(text, dtype=torch.uint8)
    return Corpus(data, files, hashlib.sha256(text).hexdigest())
