"""An overlay copies torch's Python files, so that an edit never changes the original."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect
from harness.bugs.pins import Stack, Torch
from harness.publish import steps
from harness.releases import edits, index, overlay, resolution, torches, uv
from harness.releases.index import Release
from harness.releases.overlay import Overlay
from harness.run import command_line
from harness.system.errors import Inconclusive, Unsupported
from harness.system.files import sha256
from harness.system.terminal import terminal
from tests.made_up import one_to_two

FUNCTION = "def rate():\n    return 1\n"
EDITED = "torch/optim/lr_scheduler.py"


DEFECT = Defect("torch", EDITED, "rate", one_to_two, "the rate is two", "torch>=9.1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An environment with a torch of four files, as its wheel lists them."""
    home = tmp_path / "environment"
    files = {
        "torch/__init__.py": "from torch.optim.lr_scheduler import rate\n",
        "torch/optim/__init__.py": "",
        EDITED: FUNCTION,
        "torch/lib/libtorch.so": "a library",
        "torch-9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.1\n",
    }
    lines = []
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = hashlib.sha256(text.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        lines.append(f"{name},sha256={encoded},{len(text)}")
    record = home / "torch-9.1.dist-info" / "RECORD"
    record.write_text("\n".join([*lines, "torch-9.1.dist-info/RECORD,,", "../../../bin/run,,"]))
    return home


def stack(home: Path) -> Stack:
    record = home / "torch-9.1.dist-info" / "RECORD"
    return Stack({"torch": "9.1"}, "", *pins.here(), torch=Torch(str(home), sha256(record)))


def borrowed(home: Path, cache: Path, *defects: Defect) -> Overlay:
    with overlay.borrow(stack(home), defects, cache) as loan:
        return loan


def run(site: Path, code: str) -> str:
    """The output of a new process that imports torch from an overlay."""
    environment = {"PYTHONPATH": str(site)}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def contents(folder: Path) -> dict[str, str]:
    return {str(path): sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_an_edit_changes_the_overlay_and_never_the_installed_torch(home: Path, cache: Path) -> None:
    before = contents(home)
    plain, edited = borrowed(home, cache), borrowed(home, cache, DEFECT)
    code = "import torch; print(torch.rate(), torch.__file__)"
    assert run(plain.site, code) == f"1 {plain.site}/torch/__init__.py"
    assert run(edited.site, code) == f"2 {edited.site}/torch/__init__.py"
    assert contents(home) == before
    assert "+    return 2" in edited.diff


def test_what_reads_the_source_sees_the_edit(home: Path, cache: Path) -> None:
    code = "import inspect, torch; print(inspect.getsource(torch.rate))"
    assert run(borrowed(home, cache, DEFECT).site, code) == FUNCTION.strip().replace("1", "2")


def test_libraries_are_linked_and_python_files_are_the_overlays_own(
    home: Path, cache: Path
) -> None:
    loan = borrowed(home, cache, DEFECT)
    assert (loan.site / "torch" / "lib").resolve() == home / "torch" / "lib"
    assert not (loan.site / EDITED).is_symlink()
    assert EDITED in (loan.files or {})
    assert "torch/lib/libtorch.so" not in (loan.files or {})
    assert (home / "torch" / "lib" / "libtorch.so").stat().st_mode & 0o200, "it was made read-only"


def test_a_torch_that_is_not_as_its_wheel_is_refused(home: Path, cache: Path) -> None:
    (home / EDITED).write_text(FUNCTION.replace("1", "3"))
    with pytest.raises(Inconclusive, match=r"lr_scheduler.py is not as the wheel of torch has it"):
        borrowed(home, cache)


def test_another_torch_in_the_same_folder_is_another_overlay(home: Path, cache: Path) -> None:
    original = borrowed(home, cache)
    text = FUNCTION.replace("1", "4")
    (home / EDITED).write_text(text)
    record = home / "torch-9.1.dist-info" / "RECORD"
    record.write_text("".join(line for line in record.open() if not line.startswith(EDITED)))
    record.open("a").write(f"\n{EDITED},,{len(text)}")
    assert borrowed(home, cache).key != original.key


def test_an_edit_that_does_not_fit_this_torch_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / EDITED).write_text("def rate():\n    return 7\n")
    with pytest.raises(Unsupported, match=r"matches 0 times in rate; it fits torch>=9.1$"):
        edits.apply_defect(DEFECT, tmp_path, "torch==9.0")


def test_a_torch_that_is_not_at_hand_is_unsupported(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(torches.INDEX, raising=False)
    with pytest.raises(Unsupported, match=r"torch 1\.2\.3 is not installed, but \d.*TORCH_INDEX"):
        torches.at_hand("1.2.3", cache)


def test_an_old_torch_gets_a_numpy_that_it_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compile_lock(arguments: list[str], stdin: str, **_: object) -> str:
        asked.append(stdin)
        assert "--exclude-newer" not in arguments
        return "numpy==1.26.4\n"

    monkeypatch.setattr(uv, "run", compile_lock)
    stacks = [
        Stack({"torch": release}, "", *pins.here(), torch=Torch("", ""))
        for release in ("2.2.2", "2.3.0")
    ]
    locks = [resolution.lock(stack) for stack in stacks]
    assert locks == ["numpy==1.26.4\ntorch==2.2.2\n", "torch==2.3.0\n"]
    assert asked == ["numpy<2\n"]


def test_each_edit_of_torch_says_which_releases_it_fits() -> None:
    names = [name for name in catalog.sound() if "torch" in catalog.scenario(name).pins]
    assert names
    for name in names:
        scenario = catalog.scenario(name)
        assert all(each.fits for each in scenario.defects if each.upstream == "torch"), name


@pytest.mark.parametrize(("index_of_torch", "expected"), [("", [torches.installed()]), ("x", None)])
def test_a_nightly_tests_the_torch_that_is_installed(
    index_of_torch: str, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_releases = [
        Release("torch", v, "2026-01-01") for v in ("1.0.0", torches.installed() or "", "99.0")
    ]
    monkeypatch.setattr(index, "releases_of", lambda names: {"torch": index_releases})
    if index_of_torch:
        monkeypatch.setenv(torches.INDEX, index_of_torch)
    else:
        monkeypatch.delenv(torches.INDEX, raising=False)
    configs = [command_line.compose(["scenario=loss_parallel_identity"])]
    releases = steps.read_index(configs, terminal(io.StringIO()))["torch"]
    assert isinstance(releases, list)
    assert [release.version for release in releases] == (
        expected or [release.version for release in index_releases]
    )
