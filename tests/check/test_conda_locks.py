"""The lock files of conda-lock and pixi."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from harness.check import environment
from harness.check.installed import Exact, Installed, OneOf, Unknown

NAMES = ["torch", "transformers", "accelerate", "peft"]
UP = "https://github.com/huggingface"


def entry(name: str, version: str, manager: str = "conda", platform: str = "linux-64") -> str:
    return (
        f"- name: {name}\n  version: '{version}'\n  manager: {manager}\n  platform: {platform}\n"
        f"  dependencies: {{}}\n  url: https://host/{name}-{version}.conda\n  category: main\n"
    )


def conda_lock(*entries: str) -> str:
    head = "# comment\nversion: 1\nmetadata:\n  platforms:\n  - linux-64\npackage:\n"
    return head + "".join(entries)


def packages(tmp_path: Path, name: str, text: str) -> dict[str, Installed]:
    file = tmp_path / name
    file.write_text(text)
    stack = environment.of_files([str(file)], NAMES)
    assert stack.complete
    return dict(stack.packages)


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize("name", ["conda-lock.yml", "gpu.conda-lock.yml", "locks/env.yaml"])
def test_conda_lock_has_the_packages_of_conda_and_pip_for_one_platform(
    tmp_path: Path, name: str
) -> None:
    text = conda_lock(
        entry("_libgcc_mutex", "0.1"),
        entry("pytorch", "2.1.0"),
        entry("pytorch", "2.0.0", platform="osx-arm64"),
        entry("transformers", "4.38.2", "pip"),
        entry("transformers", "4.30.0", "pip", "osx-arm64"),
    )
    (tmp_path / "locks").mkdir()
    assert packages(tmp_path, name, text) == {
        "torch": Exact("2.1.0"),
        "transformers": Exact("4.38.2"),
    }


def test_conda_lock_of_another_platform_is_read_and_git_is_unknown(tmp_path: Path) -> None:
    text = conda_lock(entry("pytorch", "2.0.0", platform="osx-arm64"))
    text += (
        "- name: peft\n  version: 0.9.0\n  manager: pip\n  platform: osx-arm64\n"
        f"  url: git+{UP}/peft.git@abcdef0123\n"
        "- name: accelerate\n  version: 0.9.0\n  manager: pip\n  platform: osx-arm64\n"
        f"  url: git+{UP}/accelerate@v1.2.0\n"
    )
    assert packages(tmp_path, "conda-lock.yml", text) == {
        "torch": Exact("2.0.0"),
        "peft": Unknown("installed from git", "0.9.0"),
        "accelerate": Exact("1.2.0"),
    }


FIVE = f"""\
version: 5
environments:
  default:
    channels: []
    packages:
      linux-64:
      - conda: https://host/linux-64/pytorch-2.1.0-cuda_1.conda
      - pypi: https://host/transformers-4.38.2-py3-none-any.whl
      - pypi: git+{UP}/peft?tag=v0.9.0#abcdef
      - pypi: .
      osx-arm64:
      - conda: https://host/osx-arm64/pytorch-2.0.0-cuda_1.conda
  new:
    packages:
      linux-64:
      - pypi: https://host/transformers-4.40.0-py3-none-any.whl
packages:
- kind: conda
  name: pytorch
  version: 2.1.0
  url: https://host/linux-64/pytorch-2.1.0-cuda_1.conda
- kind: pypi
  name: transformers
  version: 4.38.2
  url: https://host/transformers-4.38.2-py3-none-any.whl
- kind: pypi
  name: transformers
  version: 4.40.0
  url: https://host/transformers-4.40.0-py3-none-any.whl
- kind: pypi
  name: peft
  version: 0.9.0
  url: git+{UP}/peft?tag=v0.9.0#abcdef
- kind: pypi
  name: accelerate
  version: 1.0.0
  path: .
"""
SIX = FIVE.replace("version: 5", "version: 6").replace("  url: ", "  was: ")
for kind in ("conda", "pypi"):
    SIX = SIX.replace(f"- kind: {kind}\n", f"- {kind}: PLACE\n")
for place in (
    "https://host/linux-64/pytorch-2.1.0-cuda_1.conda",
    "https://host/transformers-4.38.2-py3-none-any.whl",
    "https://host/transformers-4.40.0-py3-none-any.whl",
    f"git+{UP}/peft?tag=v0.9.0#abcdef",
    ".",
):
    SIX = SIX.replace("PLACE", place, 1)
SIX = SIX.replace("  name: pytorch\n  version: 2.1.0\n", "  sha256: a5\n")


@pytest.mark.parametrize("text", [FIVE, SIX, FIVE.replace("version: 5", "version: 4")])
def test_pixi_has_the_packages_of_all_environments_for_one_platform(
    tmp_path: Path, text: str
) -> None:
    stack = packages(tmp_path, "pixi.lock", text)
    assert stack["torch"] == Exact("2.1.0")
    both = OneOf(("4.38.2", "4.40.0"), "pixi.lock has 4.38.2 and 4.40.0")
    assert stack["transformers"] == both
    assert stack["peft"] == Exact("0.9.0")
    assert stack["accelerate"] == Unknown("a local folder", "1.0.0")


@pytest.mark.parametrize("name", ["pixi.lock", "conda-lock.yml"])
def test_the_lock_of_a_folder_is_read_before_what_it_was_made_from(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [pytorch=2.5]\n")
    (tmp_path / name).write_text(
        FIVE if name == "pixi.lock" else conda_lock(entry("pytorch", "2.1.0"))
    )
    stack = environment.of_files([str(tmp_path)], NAMES)
    assert stack.packages["torch"].version == "2.1.0"
    assert stack.notes[-1] == f"{tmp_path}: {name} was read; environment.yml not read"
