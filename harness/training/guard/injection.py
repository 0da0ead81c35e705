"""Writes what a guarded command's processes import and read, and the environment that leads there.

The folder of code is plain files: those of ``harness/rank/guard`` and ``harness/rank/events``, what
they import, and a ``sitecustomize.py`` that starts them. It is written once into the cache, is
read-only, and is named by a digest of its files: it can be mounted into a container, and trainings
that run keep theirs when the harness is updated. Each command has a folder of its own with the
settings file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.rank.guard.settings import VARIABLE, Settings
from harness.system.files import ROOT, folder_whole, locked, new_folder_beside, write_whole, writing
from harness.system.machine import cache_folder, own_folder, refuse_unless_on_a_path
from harness.training.guard import known

HARNESS = ROOT / "harness"
CODE = "distributed_bugs_guard"
"""The package in the injected folder. Its parts have the places of ours: they import each other."""
PARTS = (
    "rank/events/*.py",
    "rank/guard/**/*.py",
    "rank/training/*.py",
    "detectors/arithmetic.py",
    "detectors/rows.py",
    "system/conditions.py",
)
PACKAGES = ("", "rank/", "detectors/", "system/")
"""Packages whose ``__init__.py`` is empty there, as ours imports more than these parts."""
SETTINGS, LOCK = "settings.json", "lock"
PYTHON, TRAINING, ALARM = "python", "training", "alarm"
"""Files that processes write beside the settings: when Python starts, at the first step, and at an
alarm."""


def home() -> Path:
    """The folder in the cache for what guard writes."""
    folder = own_folder(cache_folder(), "guard")
    refuse_unless_on_a_path(folder, "HARNESS_CACHE")
    return folder


def code_folder() -> Path:
    """The injected folder, which is written if the cache does not have it."""
    files = {f"{CODE}/{package}__init__.py": b"" for package in PACKAGES}
    files["sitecustomize.py"] = Path(__file__).with_name("sitecustomize.py").read_bytes()
    for part in PARTS:
        for file in HARNESS.glob(part):
            files[f"{CODE}/{file.relative_to(HARNESS)}"] = file.read_bytes()
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + content + b"\0")
    folder = home() / f"code-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    with writing(folder, "HARNESS_CACHE"):
        try:
            with folder_whole(folder) as aside:
                for name, content in files.items():
                    path = aside / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    path.chmod(0o444)
            for inside in (folder, *folder.glob("**/")):  # not aside: it could not be deleted
                inside.chmod(0o555)
        except OSError:
            if not folder.is_dir():  # otherwise another command was faster, and has the same files
                raise
    return folder


@contextmanager
def run_folder(settings: Settings) -> Iterator[Path]:
    """A folder for one command, with its settings file, until the command ends.

    A report that no user asked for is there, too. Folders of commands that were killed are removed.
    """
    with ExitStack() as stack:
        with writing(home(), "HARNESS_CACHE"), locked(home() / LOCK):
            for left in home().glob(".run.*"):
                with locked(left / LOCK, wait=False) as is_free:
                    if is_free:
                        shutil.rmtree(left, ignore_errors=True)
            folder = new_folder_beside(home() / "run")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(locked(folder / LOCK))
            bugs, out = folder / "known.json", settings.out or str(folder)
            content = replace(settings, out=out, known=str(bugs))
            write_whole(folder / SETTINGS, content.to_json())
        if settings.out:
            with writing(Path(settings.out), "--out"):
                write_whole(Path(settings.out) / SETTINGS, content.to_json())
        known.write(bugs)
        yield folder


def environment(run: Path, code: Path) -> dict[str, str]:
    """The environment of a guarded command. A user's PYTHONPATH stays, behind our folder."""
    users = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(code), *([users] if users else [])])
    return {**os.environ, "PYTHONPATH": path, VARIABLE: str(run / SETTINGS)}
