"""Names under which a package is published twice, in files and in environments."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from harness.bugs import catalog
from harness.check.bug_status import BugStatus, recorded
from harness.check.environment import Environment, of_files, of_interpreter
from harness.check.installed import NewestOf, OneOf, at_address
from harness.check.synonyms import PACKAGES, PUBLISHED
from harness.cli import check

NAMES = sorted({"torch", *catalog.upstreams()})


def of(tmp_path: Path, file: str, text: str) -> Environment:
    (tmp_path / file).write_text(text)
    return of_files([str(tmp_path / file)], NAMES)


def lock(*packages: str) -> str:
    """A poetry.lock with these packages: ``lightning==2.6.0``."""
    entries = (package.split("==") for package in packages)
    tables = (f'[[package]]\nname = "{name}"\nversion = "{version}"\n' for name, version in entries)
    return "".join(tables) + '[metadata]\nlock-version = "2.0"\npython-versions = "*"\n'


def test_each_other_name_has_its_evidence_and_a_package_of_the_catalogue() -> None:
    for name, copy in PUBLISHED.items():
        assert name == canonicalize_name(name)
        assert copy.package in NAMES, name
        assert copy.evidence, name


def test_a_package_under_another_name_is_judged_by_its_release(tmp_path: Path) -> None:
    names = list(catalog.sound())
    for bug, ours, other in (
        ("composer_batch_sampler", "mosaicml==0.21.1", "composer==0.21.1"),
        ("mmengine_resume_data", "mmengine==0.10.2", "mmengine-lite==0.10.2"),
    ):
        answers = [recorded(names, of(tmp_path, "poetry.lock", lock(one))) for one in (ours, other)]
        statuses = [{bug.scenario: bug.status for bug in bugs} for bugs in answers]
        assert statuses[0] == statuses[1]
        assert statuses[0][bug] is BugStatus.AFFECTED


@pytest.mark.parametrize("name", [n for n, copy in PUBLISHED.items() if not copy.same])
def test_a_file_with_a_fork_alone_is_unknown_and_that_is_said_first(
    tmp_path: Path, name: str
) -> None:
    environment = of(tmp_path, "poetry.lock", lock(f"{name}==1.0"))
    package = PUBLISHED[name].package
    assert list(environment.packages) == [package]
    assert f"{name} 1.0 is installed in its place" in environment.notes[0]
    both = of(tmp_path, "poetry.lock", lock(f"{name}==1.0", f"{package}==2.0")).packages[package]
    assert both.version == ""
    assert name in both.origin


@pytest.mark.usefixtures("offline")
def test_a_requirement_of_a_fork_is_unknown_and_that_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("liger-kernel-nightly==0.8.5.dev20261027042432\n")
    check.main(["-r", "requirements.txt"])  # uv's cache may know the releases of what it needs
    first, _, _ = capsys.readouterr().out.partition("\n\n")
    assert "liger-kernel-nightly 0.8.5.dev20261027042432 is installed in its place" in first


@pytest.mark.parametrize(
    ("packages", "candidates"),
    [
        (
            ("lightning==2.6.0", "lightning==2.5.0", "pytorch-lightning==2.6.1"),
            {"2.6.1", "2.6.0", "2.5.0"},
        ),
        (
            ("lightning==2.6.0", "pytorch-lightning==2.6.1", "pytorch-lightning==2.5.0"),
            {"2.6.1", "2.6.0", "2.5.0"},
        ),
        (("lightning==2.6.0", "lightning==2.5.0", "pytorch-lightning==2.5.0"), {"2.6.0", "2.5.0"}),
        (("lightning==2.6.0", "pytorch-lightning==2.6"), set()),
    ],
)
def test_all_releases_of_a_package_and_its_synonym_count(
    tmp_path: Path, packages: tuple[str, ...], candidates: set[str]
) -> None:
    environment = of(tmp_path, "poetry.lock", lock(*packages))
    package = environment.packages["pytorch-lightning"]
    assert set(package.versions if isinstance(package, OneOf) else ()) == candidates


def test_of_many_releases_only_the_first_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("poetry.lock").write_text(lock(*(f"deepspeed==0.19.{n}" for n in range(20))))
    check.main(["-r", "poetry.lock"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("0.19.4 or one of 15 others")


def test_of_very_many_releases_none_is_looked_up(tmp_path: Path) -> None:
    packages = [f"{name}==1.{n}" for name in ("deepspeed", "transformers") for n in range(1500)]
    environment = of(tmp_path, "poetry.lock", lock(*packages))
    assert environment.packages["deepspeed"].origin == "poetry.lock has 1,500 versions of it"
    assert recorded(["bf16_clip"], environment)[0].status is BugStatus.UNKNOWN
    assert environment.notes[0].endswith("poetry.lock has 1,500 versions of it")


def install(site: Path, name: str, version: str, *files: str, top_level: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if top_level:
        (info / "top_level.txt").write_text(f"{top_level}\n")


@pytest.fixture
def venv_folder(tmp_path: Path) -> Path:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    return tmp_path / "env"


def test_a_new_fork_in_an_environment_is_noticed_without_a_table(venv_folder: Path) -> None:
    site = next((venv_folder / "lib").glob("python3*/site-packages"))
    install(site, "a-new-fork", "9.9", "transformers/__init__.py", "transformers/trainer.py")
    install(site, "in-development", "1.0", "__editable__.in_development-1.0.pth", top_level="peft")
    install(site, "mcore-of-a-vendor", "0.9", "megatron/core/__init__.py")
    install(site, "accelerate", "1.15.0", "accelerate/__init__.py")
    install(site, "accelerate-own", "1.15.0", "accelerate/__init__.py")
    install(site, "trl", "1.0", "trl/__init__.py", "tests/transformers/__init__.py")
    environment = of_interpreter(venv_folder, NAMES)
    origins = {name: package.origin for name, package in environment.packages.items()}
    assert origins == {
        "transformers": "a-new-fork 9.9 is installed in its place",
        "peft": "in-development 1.0 is installed in its place",
        "megatron-core": "mcore-of-a-vendor 0.9 is installed in its place",
        "accelerate": "accelerate-own is installed beside it",
        "trl": "",
    }
    assert len(environment.notes) == 4


@pytest.mark.parametrize("package", NAMES)
def test_the_repository_of_each_package_is_known(package: str) -> None:
    repository = PACKAGES[package].repository
    for address in (
        f"git+https://github.com/{repository}",
        f"git+https://github.com/{repository}.git@main#subdirectory=src",
        f"git+ssh://git@github.com/{repository}@v1.0",
        f"https://github.com/{repository}/archive/main.zip",
    ):
        assert at_address(address)[0] == package, address
        assert at_address(address, editable=True)[0] == package, address


@pytest.mark.parametrize(
    ("address", "package"),
    [
        ("git+https://github.com/huggingface/pytorch-image-models", "timm"),
        ("git+https://github.com/me/pytorch-image-models@fix", "timm"),
        ("git+https://github.com/mosaicml/composer", "mosaicml"),
        ("git+https://github.com/me/composer", "composer"),
        ("git+https://github.com/mosaicml/streaming", "mosaicml-streaming"),
        ("git+https://github.com/pytorch/ao", "torchao"),
        ("git+https://github.com/pytorch/data", "torchdata"),
        ("git+https://github.com/me/data", "data"),
        ("git+https://github.com/fla-org/flash-linear-attention", "fla-core"),
        ("git+https://github.com/allenai/OLMo-core", "ai2-olmo-core"),
        ("git+https://github.com/mlfoundations/open_clip@v2.24#egg=open_clip", "open-clip-torch"),
        ("git+https://gitlab.example.org/me/mirror#egg=open_clip", "open-clip-torch"),
    ],
)
def test_a_repository_is_that_of_a_package(address: str, package: str) -> None:
    assert at_address(address)[0] == package


NEEDED = ("torch", "torchmetrics", "timm", "huggingface-hub")
"""What the packages below need."""


@pytest.mark.parametrize(
    ("requirement", "package"),
    [
        ("open_clip @ git+https://github.com/mlfoundations/open_clip", "open-clip-torch"),
        ("megatron-lm @ git+https://github.com/NVIDIA/Megatron-LM", "megatron-core"),
        ("composer @ git+https://github.com/mosaicml/composer@v0.21.1", "mosaicml"),
        ("lightning @ git+https://github.com/Lightning-AI/pytorch-lightning", "pytorch-lightning"),
        ("other @ git+https://github.com/NVIDIA/Megatron-LM#subdirectory=other", ""),
    ],
)
@pytest.mark.usefixtures("offline")
def test_a_requirement_may_have_the_name_of_the_repository(
    tmp_path: Path, requirement: str, package: str
) -> None:
    environment = of(tmp_path, "requirements.txt", requirement)
    ours = [name for name, entry in environment.packages.items() if not isinstance(entry, NewestOf)]
    assert [name for name in ours if name not in NEEDED] == [package] * bool(package)
