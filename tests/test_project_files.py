"""What projects declare: which requirements are read, and what a resolver makes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.check import environment, project_files, requirements, resolver, source
from harness.system.errors import UserError
from tests.index import Handler, no_network, page, served
from tests.index import file as file_of
from tests.sandbox import refused

__all__ = ["no_network", "served"]

PYPROJECT = """
[project]
name = "ours"
requires-python = ">=3.10"
dependencies = ["up>=1", "second_one==2.0 ; python_version < '3'"]
[project.optional-dependencies]
train = ["trainer~=1.2"]
all = ["ours[train]", "another"]
[dependency-groups]
test = ["tester", {include-group = "lint"}]
lint = ["linter"]
"""
POETRY = """
[tool.poetry.dependencies]
python = "^3.9"
up = "^1.2"
zero = "^0.3.1"
tilde = "~1.4"
exact = "2.0"
any = "*"
extra = {version = ">=1,<3", extras = ["fast"], markers = "python_version > '3'"}
rare = {version = "1.0", optional = true}
both = [{version = "^1", python = "<3.9"}, {version = "^2"}]
hers = {git = "https://host/hers.git"}
[tool.poetry.extras]
more = ["rare"]
[tool.poetry.group.dev.dependencies]
tester = "*"
"""
SETUP = """
[options]
python_requires = >=3.8
install_requires =
    up>=1
    down
[options.extras_require]
train = trainer
"""
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


def lines(folder: Path, name: str, text: str, chosen: str = "") -> list[str]:
    """The requirements that a file declares."""
    (folder / name).write_text(text)
    found = project_files.declared(source.read(f"{folder / name}{chosen}"))
    return [line for _, line in found.lines]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("", ["up>=1", "second_one==2.0 ; python_version < '3'"]),
        ("[train]", ["up>=1", "second_one==2.0 ; python_version < '3'", "trainer~=1.2"]),
        ("[all]", ["up>=1", "second_one==2.0 ; python_version < '3'", "trainer~=1.2", "another"]),
        ("[test]", ["up>=1", "second_one==2.0 ; python_version < '3'", "tester", "linter"]),
    ],
)
def test_pyproject_has_extras_and_groups_by_name(
    tmp_path: Path, chosen: str, expected: list[str]
) -> None:
    assert lines(tmp_path, "pyproject.toml", PYPROJECT, chosen) == expected


def test_an_extra_that_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no extra or group nope; it has: all, lint, test, train"):
        lines(tmp_path, "pyproject.toml", PYPROJECT, "[nope]")


def test_poetrys_tables_are_read(tmp_path: Path) -> None:
    assert lines(tmp_path, "pyproject.toml", POETRY) == [
        "up>=1.2,<2",
        "zero>=0.3.1,<0.4",
        "tilde>=1.4,<1.5",
        "exact==2.0",
        "any",
        "extra[fast]>=1,<3 ; python_version > '3'",
        "both>=1,<2",
        "both>=2,<3",
        "hers @ git+https://host/hers.git",
    ]
    assert "rare==1.0" in lines(tmp_path, "pyproject.toml", POETRY, "[more]")
    assert lines(tmp_path, "pyproject.toml", POETRY, "[dev]")[-1] == "tester"


def test_setuptools_files_are_read(tmp_path: Path) -> None:
    assert lines(tmp_path, "setup.cfg", SETUP, "[train]") == ["up>=1", "down", "trainer"]
    dynamic = """
        [project]
        dynamic = ["dependencies"]
        [tool.setuptools.dynamic]
        dependencies = {file = ["base.txt"]}
        """
    (tmp_path / "base.txt").write_text("up==1.0\n")
    (tmp_path / "pyproject.toml").write_text(dynamic)
    content = requirements.read([source.read(str(tmp_path / "pyproject.toml"))])
    assert str(content.versions["up"]) == "==1.0"


def test_condas_environment_has_the_names_of_pip(tmp_path: Path) -> None:
    found = lines(tmp_path, "environment.yml", CONDA)
    assert found == ["torch==2.1.*", "transformers==4.38.2", "accelerate==0.27.2", "up==1.0"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("pyproject.toml", "[project", "is not valid TOML"),
        ("pyproject.toml", "[tool.ruff]", "names no dependencies"),
        ("pyproject.toml", "[dependency-groups]\na = [{include-group='a'}]", "includes itself"),
        ("pyproject.toml", "[project]\ndependencies = 3", "cannot be read"),
        ("setup.cfg", "install_requires", "cannot be read"),
        ("environment.yml", "a: [", "is not valid YAML"),
        ("environment.yml", "- up", "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        lines(tmp_path, name, text)
    assert "\n" not in str(refused.value)


# Folders and locks


def test_of_a_folder_a_lock_is_preferred_and_a_pyproject_of_tools_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool.ruff]\n")
    with pytest.raises(UserError, match=r"\. has none of uv\.lock, .* that names dependencies"):
        environment.of_files(["."], ["up"])
    Path("requirements.txt").write_text("up==1.0\n")
    assert environment.of_files(["."], ["up"]).notes[-1] == ".: requirements.txt was read"
    Path("Pipfile.lock").write_text(json.dumps({"default": {"Up": {"version": "==2.0"}}}))
    found = environment.of_files(["."], ["up"])
    assert found.packages["up"].version == "2.0"
    assert found.notes == (".: Pipfile.lock was read; requirements.txt not read",)
    assert found.complete


def test_pdms_lock_is_read(tmp_path: Path) -> None:
    text = """
        [metadata]
        lock_version = "4.5.0"
        [[package]]
        name = "up"
        version = "1.0"
        [[package]]
        name = "second_one"
        version = "2.0"
        git = "https://host/second.git"
        """
    (tmp_path / "pdm.lock").write_text(text)
    packages = environment.of_files([str(tmp_path / "pdm.lock")], ["up", "second-one"]).packages
    assert packages["up"].version == "1.0"
    assert packages["second-one"].origin == "installed from git"


# Resolving


def publish(served: type[Handler], name: str, version: str, *needs: str, day: str) -> None:
    """Add a wheel to the index: its metadata are all that a resolver reads."""
    wheel = f"{name}-{version}-py3-none-any.whl"
    files = served.pages.get(name, page())["files"]
    entry = file_of(wheel, f"{day}T00:00:00") | {"core-metadata": True}
    served.pages[name] = page(*files, entry) | {"name": name}
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    text = "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), "", ""])
    served.pages[f"{name}/{wheel}.metadata"] = text


@pytest.fixture
def published(served: type[Handler], cache: Path) -> type[Handler]:
    publish(served, "up", "1.0", "down<2", day="2024-01-01")
    publish(served, "up", "2.0", "down<3", day="2024-06-01")
    for version, day in (("1.5", "2023-12-01"), ("2.5", "2024-05-01"), ("3.0", "2024-07-01")):
        publish(served, "down", version, day=day)
    served.pages["source"] = page(file_of("source-1.0.tar.gz", "2023-01-01T00:00:00"))
    return served


@pytest.mark.parametrize(
    ("text", "day", "expected"),
    [
        ("up", "", {"up": "2.0", "down": "2.5"}),
        ("up", "2024-03-01", {"up": "1.0", "down": "1.5"}),
        ("up\ndown", "", {"up": "2.0", "down": "2.5"}),
        ("up\nsource==1.0\nnowhere", "", {"up": "2.0", "down": "2.5"}),
        ("up==1.0", "", {"up": "1.0", "down": "1.5"}),
    ],
)
def test_releases_fit_together_on_a_day(
    published: type[Handler], tmp_path: Path, text: str, day: str, expected: dict[str, str]
) -> None:
    """Each package alone would be the newest: down 3.0, which up forbids."""
    file = tmp_path / "requirements.txt"
    file.write_text(f"{text}\n")
    found = environment.of_files([str(file)], ["up", "down"], day)
    assert {name: package.version for name, package in found.packages.items()} == expected
    assert ("as they have no wheel: nowhere, source" in " ".join(found.notes)) == ("source" in text)


def test_requirements_that_contradict_each_other_are_looked_up_alone(
    published: type[Handler], tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    found = environment.of_files([str(file)], ["up", "down"])
    assert {n: package.version for n, package in found.packages.items()} == {
        "up": "2.0",
        "down": "3.0",
    }
    assert "no releases were found that fit together" in found.notes[0]


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_newest_tested_releases_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("accelerate<1.15\n")
    found = environment.of_files([str(file)], ["accelerate"])
    assert found.packages["accelerate"].version == "1.14.0"
    assert found.notes[0] == "not known: the releases of torch"
    assert "the package index does not respond" in found.notes[1]
    assert "the newest tested release is taken" in found.notes[2]
    assert "accelerate needs it" in found.packages["torch"].origin


def test_a_project_for_other_pythons_is_resolved_for_the_oldest_of_them(tmp_path: Path) -> None:
    assert resolver._python(">=3.99") == ""
    assert resolver._python(">=3.8") == ""
    assert resolver._python("<3.9,>=3.7") == "3.7"


# What is not looked up


def test_what_a_package_without_wheels_needs_is_resolved_as_well(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing names torch, but DeepSpeed needs it, and is left out as it has no wheels."""
    monkeypatch.setattr(resolver, "NEEDS", {"source": ("down",)})
    file = tmp_path / "requirements.txt"
    file.write_text("source==1.0\n")
    found = environment.of_files([str(file)], ["up", "down"])
    assert found.packages["down"].version == "3.0"


@pytest.mark.parametrize(
    ("line", "day", "note"),
    [
        ("up==9.9.9.9", "", "there is no such release, "),
        ("source==9.9", "", "there is no such release, "),
        ("up==2.0", "2024-03-01", "there was no such release on 2024-03-01, "),
        ("up>=1", "1990-01-01", "there was no such release on 1990-01-01, "),
        ("source==1.0", "2024-01-01", "what these need was not looked up, as they have no wheel"),
        ("up==1.0+mine", "", "what these need was not looked up, as they have no wheel"),
    ],
)
def test_a_release_that_does_not_exist_is_said(
    published: type[Handler], tmp_path: Path, line: str, day: str, note: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\ndown\n")
    (found, *_) = environment.of_files([str(file)], ["up", "down"], day).notes
    assert found.startswith(note)
    assert re.split("[=>]", line)[0] in found


def test_before_the_first_release_a_package_is_unknown(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be the newest tested release."""
    monkeypatch.setattr(requirements, "tested_releases", lambda _: ("9.0",))
    file = tmp_path / "requirements.txt"
    file.write_text("up>=1\n")
    up = environment.of_files([str(file)], ["up"], "1990-01-01").packages["up"]
    assert up.version == ""
    assert up.origin == "the index has no release of it for this Python until 1990-01-01"
    file.write_text("up>=2\n")
    with pytest.raises(UserError, match=r"no release until 2024-03-01 is up>=2: they go from 1\.0"):
        environment.of_files([str(file)], ["up"], "2024-03-01")


@pytest.mark.parametrize("line", ["nowhere==3.1", "source==1.0"])
def test_a_package_whose_needs_are_not_known_is_said_if_it_is_alone(
    published: type[Handler], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\n")
    said = refused(capsys, ["check", "-r", str(file)])
    assert f"as they have no wheel: {line.partition('=')[0]}; {file} has none of " in said


def test_packages_that_fit_together_without_the_others_are_resolved(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "tool", "1.0", "missing>=9", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("up\ntool==1.0\nmissing<9\n")
    publish(published, "missing", "1.0", day="2024-01-01")
    found = environment.of_files([str(file)], ["up", "down"])
    assert {name: package.version for name, package in found.packages.items()} == {
        "up": "2.0",
        "down": "2.5",
    }
    assert "the other requirements contradict up" in found.notes[0]


def test_what_needs_an_unknown_release_is_said_first(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bugs would vanish: 'no up'."""
    monkeypatch.setattr(resolver, "NEEDS", {"down": ("other",), "other": ("deep",)})
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    found = environment.of_files([str(file)], ["up", "down", "other", "deep"])
    assert found.notes[0] == "not known: the releases of deep and other"
    assert found.packages["other"].version == ""
    assert "down needs it" in found.packages["other"].origin


def test_a_file_may_include_others_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "project" / "requirements").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.ruff]\n")
    (tmp_path / "project" / "base.txt").write_text("up==1.0\n")
    (tmp_path / "secret.txt").write_text("secret==1.0\n")
    inner = tmp_path / "project" / "requirements" / "dev.txt"
    inner.write_text("-r ../base.txt\n")
    assert str(requirements.read([source.read(str(inner))]).versions["up"]) == "==1.0"
    inner.write_text("-r ../../secret.txt\n")
    with pytest.raises(UserError, match=r"it is outside of .*/project: .* give both files with -r"):
        requirements.read([source.read(str(inner))])


def test_a_yaml_file_is_condas_whatever_its_name(tmp_path: Path) -> None:
    assert lines(tmp_path, "conda.yaml", CONDA)[0] == "torch==2.1.*"


@pytest.mark.parametrize("line", ["./-e evil", "./two words", "../.."])
def test_a_folder_that_names_no_package_is_said(
    published: type[Handler], tmp_path: Path, line: str
) -> None:
    file = tmp_path / "project" / "requirements.txt"
    file.parent.mkdir()
    file.write_text(f"{line}\nup\n")
    found = environment.of_files([str(file)], ["up"])
    assert found.packages["up"].version == "2.0"
    shown = any("line 1: it does not show which package is there" in note for note in found.notes)
    assert shown or line == "../.."
