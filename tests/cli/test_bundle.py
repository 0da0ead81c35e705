"""A bundle, made here and used without a network."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.__main__ import main
from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect
from harness.cli import bundle
from harness.rank.manifest import BuiltFile
from harness.releases import overlay, uv
from harness.releases.overlay import Overlay
from harness.system import archives

USE = """\
set -eu
python3() {{ "{python}" "$@"; }}
. {bundle}/activate
cd {elsewhere}
python3 -W ignore -m harness run scenario=tied_embedding_training lane=cpu runs={elsewhere}/runs
"""


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays have a file of 1 MB, and archives have a size only: 0.3 MB for each scenario, and
    2 MB for warmup_groups."""

    @contextmanager
    def borrowed(stack: pins.Stack, defects: tuple[Defect, ...], _: Path) -> Iterator[Overlay]:
        key = overlay.key(stack, defects)
        yield Overlay(key, Path("none"), "", "", files={"data": BuiltFile(1_000_000, key)})

    def pack(archive: Path, files: Mapping[str, Path]) -> None:
        names = [Path(name).parent.name for name in files if name.endswith("/bug.toml")]
        sizes = [2_000_000 if name == "warmup_groups" else 300_000 for name in names]
        archive.write_bytes(bytes(sum(sizes)))

    monkeypatch.setattr(overlay, "borrow", borrowed)
    monkeypatch.setattr(uv, "execute", lambda *_: subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(archives, "pack", pack)


def contents(folder: Path) -> dict[str, Any]:
    text: dict[str, Any] = json.loads((folder / "bundle.json").read_text())
    return text


@pytest.mark.usefixtures("without_files")
def test_a_bundle_of_all_has_only_what_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "sound", lambda: ("split_then_skip", "tied_grad_reduce"))
    assert main(["bundle", "--all", "--out", str(tmp_path / "box")]) == 0
    assert contents(tmp_path / "box")["scenarios"] == ["tied_grad_reduce"]


USED_BY_A_RUN = """\
import sys
from importlib.metadata import packages_distributions
from harness.bugs import catalog
from harness.run import run_config, suite
catalog.scenario("bf16_clip")
modules = {name.partition(".")[0] for name in sys.modules}
print(*{dist for name in modules for dist in packages_distributions().get(name, ())})
"""


def test_a_bundle_contains_each_package_that_a_run_imports() -> None:
    """Bundles had no tomli, which reads bug.toml: nothing could run from one."""
    command = [sys.executable, "-c", USED_BY_A_RUN]
    packages = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "tomli" in packages
    assert not {canonicalize_name(name) for name in packages} - with_what_they_need(bundle.NEEDED)


def with_what_they_need(names: Iterable[str]) -> set[str]:
    """Packages and, at any depth, the packages that they require here."""
    # The machine has torch; a .pth file of setuptools is read whenever Python starts.
    complete, waiting = {"torch", "numpy", "distributed-bugs", "setuptools"}, list(names)
    while waiting:
        if (name := canonicalize_name(waiting.pop())) not in complete:
            complete.add(name)
            requirements = map(Requirement, metadata.requires(name) or ())
            waiting += [r.name for r in requirements if not r.marker or r.marker.evaluate()]
    return complete


@pytest.mark.launch
@pytest.mark.slow
def test_a_bundle_is_enough_to_run_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    monkeypatch.setattr(archives, "COMPRESSION", fast)  # otherwise half a minute
    bundle, elsewhere = tmp_path / "bundle", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["bundle", "tied_embedding_training", "--out", str(bundle)]) == 0
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HARNESS", "PYTHON"))},
        "UV_OFFLINE": "1",
        "HARNESS_CACHE": str(tmp_path / "cache"),
    }
    script = USE.format(python=sys.executable, bundle=bundle, elsewhere=elsewhere)
    command = ["bash", "-c", script]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "tied_embedding_training: reproduced" in process.stdout
    assert not list(bundle.glob(".unpacked"))
    again = main(["bundle", "tied_embedding_training", "--out", str(bundle)])
    assert again == 2, "an existing bundle was overwritten"
