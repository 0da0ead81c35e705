"""Conda's environment.yml and its match specs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.check import environment
from harness.check.synonyms import ELSEWHERE, PUBLISHED
from tests.check.test_pyproject import lines

CONDA = """
name: ours
dependencies:
  - python=3.10
  - pytorch::pytorch=2.1
  - transformers==4.38.2
  - accelerate=0.27.2=py_0
  - numpy
  - pip:
    - up==1.0
"""


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("torch==2.4.0+cu121 --extra-index-url https://host/whl/cu121", "torch==2.4.0+cu121"),
        ("torch==2.4.0 --hash=sha256:00", "torch==2.4.0"),
        ("'torch==2.4.0  # as of May'", "torch==2.4.0"),
    ],
)
def test_the_lines_for_pip_are_those_of_a_requirements_file(
    tmp_path: Path, entry: str, expected: str
) -> None:
    text = f"dependencies: [{{pip: [{entry}]}}]" if "'" in entry else CONDA + f"    - {entry}\n"
    assert lines(tmp_path, "environment.yml", text)[-1] == expected


@pytest.mark.parametrize("head", ["", "# ours\n---\nname: base\nchannels:\n  - defaults\n\n"])
def test_an_environment_is_known_by_its_text(tmp_path: Path, head: str) -> None:
    """``conda env export | distributed-bugs check -r -``"""
    assert lines(tmp_path, "-", f"{head}dependencies:\n- pytorch=2.1\n") == ["torch==2.1.*"]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("pytorch", "torch"),
        ("pytorch 2.1.*", "torch==2.1.*"),
        ("pytorch 2.1", "torch==2.1"),
        ("pytorch=2.1", "torch==2.1.*"),
        ("pytorch = 2.1", "torch==2.1.*"),
        ("pytorch=2.1.2", "torch==2.1.2"),
        ("pytorch=2.1.*", "torch==2.1.*"),
        ("pytorch=2.1=py_0", "torch==2.1"),
        ("pytorch=2.1.0=*cuda*", "torch==2.1.0"),
        ("pytorch=*=*cuda*", "torch"),
        ("pytorch==2.1.0=py3_0", "torch==2.1.0"),
        ("pytorch 2.1.* *cuda*", "torch==2.1.*"),
        ("pytorch >=2,<2.3 py_0", "torch>=2,<2.3"),
        ("pytorch >= 2, < 2.3", "torch>=2,<2.3"),
        ("pytorch>=2.1.*", "torch>=2.1"),
        ("pytorch 2.*,!=2.1.0", "torch==2.*,!=2.1.0"),
        ("pytorch *", "torch"),
        ("pytorch 2.0.0|2.1.0", "torch>=2.1.0,<=2.1.0"),  # neither is certain
        ("pytorch[version='2.1.*', build=py_0]", "torch==2.1.*"),
        ('pytorch[version=">=2,<2.3"]', "torch>=2,<2.3"),
        ("pytorch=2.1[build=*cuda*]", "torch==2.1.*"),
        ("conda-forge::pytorch-gpu=2.1", "torch==2.1.*"),
        ("conda-forge/linux-64::pytorch 2.1.0 py_0", "torch==2.1.0"),
        ("https://host/linux-64/pytorch-2.1.0-py3.10_0.tar.bz2", "torch==2.1.0"),
        ("https://host/chan::transformers=5.2.0", "transformers==5.2.0"),
        ("https://host:8080/t/key/chan/linux-64::pytorch 2.1.0 py_0", "torch==2.1.0"),
        ("file:///chan::pytorch[version='2.1.*']", "torch==2.1.*"),
        ("conda-forge:space:pytorch=2.1", "torch==2.1.*"),
        ("lightning=2.0.2", "lightning==2.0.2"),
        ("huggingface_accelerate=1.15.0 # pinned", "accelerate==1.15.0"),
    ],
)
def test_a_match_spec_of_conda_becomes_a_requirement(
    tmp_path: Path, entry: str, expected: str
) -> None:
    text = f"dependencies:\n  - {json.dumps(entry)}\n"
    assert lines(tmp_path, "environment.yml", text) == [expected]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ("pytorch>=1.13, pytorch-cuda=11.7", ["torch>=1.13", "torch>=1.13,<2.1"]),
        ("pytorch-cuda=12.1, pytorch", ["torch", "torch>=2.1,<2.6"]),
        ("pytorch-cuda=12.1, transformers", ["transformers"]),
        ("pytorch-cuda=12.1, {pip: [torch==2.7.1]}", ["torch==2.7.1"]),
        ("pytorch-cuda=12.1, pytorch=2.7.1", ["torch==2.7.1"]),
        ("pytorch-cuda=99, pytorch", ["torch"]),
        ("pytorch-cuda>=11.7, pytorch>2.0.0", ["torch>2.0.0", "torch>=1.13,<2.6"]),
        ("'pytorch-cuda>=11.7,<12', pytorch", ["torch", "torch>=1.13,<2.6"]),
        ("pytorch-cuda 11.6|11.7, pytorch", ["torch", "torch>=1.13,<2.1"]),
        ("pytorch-cuda, pytorch", ["torch", "torch>=1.13,<2.6"]),
        ("'pytorch::pytorch>=2'", ["torch>=2", "torch<2.6"]),
        ("'pytorch/linux-64::pytorch=2.7'", ["torch==2.7.*"]),
        ("'conda-forge::pytorch' of pytorch", ["torch"]),
        ("pytorch of pytorch, nvidia, defaults", ["torch", "torch<2.6"]),
        ("pytorch of conda-forge, pytorch", ["torch"]),
        ("pytorch of nvidia, pytorch", ["torch", "torch<2.6"]),
        ("pytorch=2.7 of pytorch", ["torch==2.7.*"]),
    ],
)
def test_pytorch_cuda_limits_the_torch_of_conda(
    tmp_path: Path, entries: str, expected: list[str]
) -> None:
    """DiT has ``pytorch>=1.13`` and ``pytorch-cuda=11.7``: it was judged with torch 2.15.0."""
    names, _, channels = entries.partition(" of ")
    text = f"{{dependencies: [{names}], channels: [{channels}]}}"
    assert lines(tmp_path, "environment.yml", text) == expected


@pytest.mark.usefixtures("offline")
def test_what_is_no_package_of_pythons_is_not_said(tmp_path: Path) -> None:
    """``conda env export`` lists a dozen of them; each got a line."""
    file = tmp_path / "environment.yml"
    others = ["_libgcc_mutex=0.1=main", "_openmp_mutex=5.1=1_gnu", "ca-certificates=2023.08.22"]
    others += ["_sysroot_linux-64_curr_repodata_hack=3", "ld_impl_linux-64=2.38=h1181459_1"]
    others += [
        "pytorch-cuda=12.1=ha16c6d3_5",
        "pytorch-mutex=1.0=cuda",
        "libgcc-ng=11.2.0",
        "r-base",
    ]
    others += ["tzdata=2023c=h04d1e81_0", "conda-forge::_x86_64-microarch-level=3", "__glibc>=2.17"]
    file.write_text("".join(["dependencies:\n", *(f"- {o}\n" for o in ["pytorch=2.1.0", *others])]))
    stack = environment.of_files([str(file)], ["torch"])
    assert stack.packages["torch"].version == "2.1.0"
    assert not [note for note in stack.notes if "environment.yml, dependencies" in note]


@pytest.mark.parametrize("package", [*PUBLISHED, *ELSEWHERE])
def test_conda_has_every_other_name_of_a_package(tmp_path: Path, package: str) -> None:
    text = f"dependencies: ['{package} 1.0']"
    assert lines(tmp_path, "environment.yml", text) == [f"{ELSEWHERE.get(package, package)}==1.0"]


@pytest.mark.usefixtures("offline")
def test_what_cannot_be_read_in_condas_environment_is_said(tmp_path: Path) -> None:
    file = tmp_path / "environment.yml"
    file.write_text(
        """
        dependencies:
          - transformers[torch]==5.2.0
          - deepspeed=new
          - "%%%"
          - LONG
          - accelerate 1.0|1.2
          - numpy 1.*
          - npm: [left]
          - "%peft 0.1"
          - sel(linux): trl=0.9
        """.replace("LONG", f"long{'[a=b]' * 20_000}")
    )
    names = ["transformers", "deepspeed", "accelerate", "peft", "trl"]
    stack = environment.of_files([str(file)], names)
    for name, entry in (
        ("transformers", "transformers[torch]==5.2.0"),
        ("deepspeed", "deepspeed=new"),
        ("peft", "%peft 0.1"),
        ("trl", "sel(linux): trl=0.9"),
    ):
        assert stack.packages[name].version == ""
        assert f"'{entry}' cannot be read" in stack.packages[name].origin
        assert any(f"the release of {name} is not known" in note for note in stack.notes)
    notes = "\n".join(stack.notes)
    assert "'%%%' cannot be read, so it is left out" in notes
    assert "'accelerate 1.0|1.2': which of the alternatives is left open" in notes
    assert "'npm: left' cannot be read, so it is left out" in notes
    assert "numpy" not in notes
