"""Virtual environments that have a few packages of this one, and what these need."""

from __future__ import annotations

import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def environment(folder: Path, *names: str) -> Path:
    """Make an environment whose packages are links to those of this one; returns its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in _with_needs(*names):
        files = distribution.files or ()
        tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin" / "python"


def _with_needs(*names: str) -> list[metadata.Distribution]:
    waiting, distributions = list(names), dict[str, metadata.Distribution]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in distributions:
            continue
        distributions[name] = metadata.distribution(name)
        needs = map(Requirement, distributions[name].requires or ())
        waiting += [n.name for n in needs if not n.marker or n.marker.evaluate({"extra": ""})]
    return list(distributions.values())
