"""What projects declare: which requirements are read, and what a resolver makes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.check import environment, project_files, requirements, resolver, source
from harness.check.synonyms import ELSEWHERE, PUBLISHED
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
    declaration = project_files.declared(source.read(f"{folder / name}{chosen}"))
    return [line for _, line in declaration.lines]


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
        "both>=1,<2 ; python_version < '3.9'",
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
    specifiers = lines(tmp_path, "environment.yml", CONDA)
    assert specifiers == ["torch==2.1.*", "transformers==4.38.2", "accelerate==0.27.2", "up==1.0"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("pyproject.toml", "[project", "is not valid TOML"),
        ("pyproject.toml", "[tool.ruff]", "names no dependencies"),
        ("pyproject.toml", "[dependency-groups]\na = [{include-group='a'}]", "includes itself"),
        ("pyproject.toml", "[project]\ndependencies = 3", "cannot be read"),
        ("setup.cfg", "install_requires", "cannot be read"),
        ("environment.yml", "a: [", "is not valid YAML"),
        ("environment.yml", "- up", "cannot be read: it is a list, not a table"),
        ("environment.yml", "dependencies:", "names no dependencies"),
        ("environment.yml", "dependencies: [{pip: [5]}]", "an entry of dependencies, pip is a num"),
        ("environment.yml", "dependencies: 5", "dependencies is a number, not a list"),
        ("environment.yml", "a: 1", "it has no list 'dependencies'; 'conda list --json' names"),
        ("conda-lock.yml", "package: []\nmetadata: {}", "conda-lock's files are not read"),
        (
            "pyproject.toml",
            "[dependency-groups]\na = [{include-group='zz'}]",
            "dependency-groups.a includes the group 'zz', which is not there",
        ),
        (
            "pyproject.toml",
            "[tool.poetry.dependencies]\nup = 5",
            "tool.poetry.dependencies.up is a number, not a table",
        ),
        (
            "pyproject.toml",
            "[project]\ndependencies = 'up==5.2.0'",
            "project.dependencies is text, not a list",
        ),
        (
            "pyproject.toml",
            "[tool.poetry.dependencies]\nup = 'new'",
            "tool.poetry.dependencies.up: 'new' is not a version",
        ),
        ("Pipfile", "[packages]\nup = 5", "packages.up is a number, not a table"),
        (
            "Pipfile",
            "[packages]\nup = {version = '*', sys_platform = 'linux'}",
            "packages.up: 'sys_platform linux' is no marker",
        ),
        (
            "pyproject.toml",
            f"[tool.poetry.dependencies]\nup = '{'1' * 5000}.* || 2'",
            r"1 \.\.\.' is not a version",
        ),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        lines(tmp_path, name, text)
    assert "\n" not in str(refused.value)


# Conda's match specs


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("pytorch", "torch"),
        ("pytorch 2.1.*", "torch==2.1.*"),
        ("pytorch 2.1", "torch==2.1"),
        ("pytorch=2.1", "torch==2.1.*"),
        ("pytorch =2.1", "torch==2.1.*"),
        ("pytorch = 2.1", "torch==2.1.*"),
        ("pytorch=2.1.2", "torch==2.1.2"),
        ("pytorch=2.1.*", "torch==2.1.*"),
        ("pytorch=2.1=py_0", "torch==2.1"),
        ("pytorch=2.1.0=*cuda*", "torch==2.1.0"),
        ("pytorch==2.1.0=py3_0", "torch==2.1.0"),
        ("pytorch 2.1.* *cuda*", "torch==2.1.*"),
        ("pytorch >=2,<2.3 py_0", "torch>=2,<2.3"),
        ("pytorch >= 2, < 2.3", "torch>=2,<2.3"),
        ("pytorch>=2.1.*", "torch>=2.1"),
        ("pytorch 2.*,!=2.1.0", "torch==2.*,!=2.1.0"),
        ("pytorch *", "torch"),
        ("pytorch[version='2.1.*', build=py_0]", "torch==2.1.*"),
        ('pytorch[version=">=2,<2.3"]', "torch>=2,<2.3"),
        ("pytorch=2.1[build=*cuda*]", "torch==2.1.*"),
        ("conda-forge::pytorch-gpu=2.1", "torch==2.1.*"),
        ("conda-forge/linux-64::pytorch 2.1.0 py_0", "torch==2.1.0"),
        ("https://host/linux-64/pytorch-2.1.0-py3.10_0.tar.bz2", "torch==2.1.0"),
        ("transformers 4.46.3 pyhd8ed1ab_0", "transformers==4.46.3"),
        ("lightning=2.0.2", "lightning==2.0.2"),
        ("huggingface_accelerate=1.15.0 # pinned", "accelerate==1.15.0"),
    ],
)
def test_a_match_spec_of_conda_becomes_a_requirement(
    tmp_path: Path, entry: str, expected: str
) -> None:
    text = f"dependencies:\n  - {json.dumps(entry)}\n"
    assert lines(tmp_path, "environment.yml", text) == [expected]


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
        """.replace("LONG", f"long{'[a=b]' * 20_000}")
    )
    stack = environment.of_files([str(file)], ["transformers", "deepspeed", "accelerate"])
    for name, entry in (
        ("transformers", "transformers[torch]==5.2.0"),
        ("deepspeed", "deepspeed=new"),
    ):
        assert stack.packages[name].version == ""
        assert f"'{entry}' cannot be read" in stack.packages[name].origin
        assert any(f"the release of {name} is not known" in note for note in stack.notes)
    notes = "\n".join(stack.notes)
    assert "'%%%' cannot be read, so it is left out" in notes
    assert "'accelerate 1.0|1.2': which of the alternatives is left open" in notes
    assert "npm left out" in notes
    assert "numpy" not in notes


# Poetry, PDM, uv and others


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (">= 0.20, < 0.21", "up>=0.20,<0.21"),
        (">=0.20 <0.21", "up>=0.20,<0.21"),
        ("^ 1.2", "up>=1.2,<2"),
        ("~ 1.2", "up>=1.2,<1.3"),
        ("~1", "up>=1,<2"),
        ("^0.0.3", "up>=0.0.3,<0.0.4"),
        ("1.*", "up==1.*"),
        ("= 1.2", "up==1.2"),
        ("== 1.2", "up==1.2"),
        ("~= 1.2", "up~=1.2"),
        ("!=1.3", "up!=1.3"),
        ("^1.2 || ^2.0", "up>=1.2,<3"),
        ("2.* || 1.0 || ~=1.2", "up>=1.0,<3"),
        ("<1 || >=3", "up"),
    ],
)
def test_a_constraint_of_poetry_becomes_a_specifier(
    tmp_path: Path, constraint: str, expected: str
) -> None:
    text = f"[tool.poetry.dependencies]\nup = '{constraint}'"
    assert lines(tmp_path, "pyproject.toml", text) == [expected]
    notes = project_files.declared(source.read(str(tmp_path / "pyproject.toml"))).notes
    message = f"which of the alternatives '{constraint}' is left open"
    assert any(message in note for note in notes) == ("||" in constraint)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{version="5", python="<3.9"}', ["up==5 ; python_version < '3.9'"]),
        (
            '{version="5", python="^3.9", markers="os_name == \'nt\'"}',
            ["up==5 ; (os_name == 'nt') and (python_version >= '3.9' and python_version < '4')"],
        ),
        (
            '{version="5", python="3.8.1 || >=3.10"}',
            ["up==5 ; (python_full_version == '3.8.1') or (python_version >= '3.10')"],
        ),
        ('{version="5", python="*"}', ["up==5"]),
        ('{version="5", platform="linux"}', ["up==5 ; sys_platform == 'linux'"]),
        (
            '{version="5", platform="linux || darwin"}',
            ["up==5 ; (sys_platform == 'linux') or (sys_platform == 'darwin')"],
        ),
        (
            '[{version="4",python="<3.10"},{version="5",python=">=3.10"}]',
            ["up==4 ; python_version < '3.10'", "up==5 ; python_version >= '3.10'"],
        ),
        ('{path="../vendor/x", develop=true}', ["up @ file:../vendor/x"]),
        ('{file="dist/up-1.0.tar.gz"}', ["up @ file:dist/up-1.0.tar.gz"]),
        ('{url="https://host/up-1.0.tar.gz"}', ["up @ https://host/up-1.0.tar.gz"]),
        ('{git="git@host:o/up.git"}', ["up @ git+ssh://git@host/o/up.git"]),
    ],
)
def test_conditions_and_places_of_poetry_are_those_of_pip(
    tmp_path: Path, entry: str, expected: list[str]
) -> None:
    text = f"[tool.poetry.dependencies]\nup = {entry}"
    assert lines(tmp_path, "pyproject.toml", text) == expected


def in_file(
    folder: Path, text: str, *names: str, name: str = "pyproject.toml"
) -> environment.Environment:
    (folder / name).write_text(text)
    return environment.of_files([str(folder / name)], names)


@pytest.mark.usefixtures("offline")
def test_only_what_poetry_installs_on_this_python_counts(tmp_path: Path) -> None:
    entry = '[{version="4",python="<3.10"},{version="5",python=">=3.10"}]'
    stack = in_file(tmp_path, f"[tool.poetry.dependencies]\nup = {entry}", "up")
    assert stack.packages["up"].version == "5"
    stack = in_file(tmp_path, '[tool.poetry.dependencies]\nup={version="5",python="<3.9"}', "up")
    assert "up" not in stack.packages


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("uv_source", "origin"),
    [
        ('{git="https://host/other.git", tag="v1"}', "installed from git"),
        ('{path="../vendor/other", editable=true}', "a local folder"),
        ('{url="https://host/main.zip"}', "a file from the web"),
        ("{workspace=true}", "a local folder"),
        ("[{git='https://host/up', marker=\"sys_platform == 'linux'\"}]", "installed from git"),
        ("[{git='https://host/up', marker=\"sys_platform == 'win32'\"}]", ""),
        ("[{git='https://host/up', extra='train'}]", ""),
        ("{index='mine'}", ""),
    ],
)
def test_where_uv_installs_a_package_from_is_its_origin(
    tmp_path: Path, uv_source: str, origin: str
) -> None:
    text = f"[project]\ndependencies = ['Up_==5.2.0']\n[tool.uv.sources]\nup- = {uv_source}"
    stack = in_file(tmp_path, text.replace("Up_", "Up").replace("up-", "up"), "up")
    version = "" if origin and "zip" not in uv_source else "5.2.0"
    assert (stack.packages["up"].version, stack.packages["up"].origin) == (
        "" if origin else version,
        origin,
    )


@pytest.mark.usefixtures("offline")
def test_uvs_overrides_replace_and_its_constraints_bind(tmp_path: Path) -> None:
    text = """
        [project]
        dependencies = ["up==5.2.0", "down", "gone==1", "away==1"]
        [tool.uv]
        override-dependencies = ["Up==4.0", "other==3.0", "gone ; python_version < '3'"]
        constraint-dependencies = ["down==2.0"]
        exclude-dependencies = ["away", "far"]
        """
    stack = in_file(tmp_path, text, "up", "down", "other", "gone", "away")
    assert {name: package.version for name, package in stack.packages.items()} == {
        "up": "4.0",
        "down": "2.0",
    }
    for name in ("other", "far"):
        assert any(f"the project does not name {name}, so it" in note for note in stack.notes)


@pytest.mark.usefixtures("offline")
def test_pdms_overrides_replace(tmp_path: Path) -> None:
    text = """
        [project]
        dependencies = ["up==5.2.0", "down==1.0"]
        [tool.pdm.resolution.overrides]
        Up = "4.0"
        down = "https://host/main.zip"
        """
    stack = in_file(tmp_path, text, "up", "down").packages
    assert (stack["up"].version, stack["down"].origin) == ("4.0", "a file from the web")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[tool.uv]\ndev-dependencies = ['tester']", "dev"),
        ("[tool.rye]\ndev-dependencies = ['tester']", "dev"),
        ("[tool.pdm.dev-dependencies]\ntrain = ['tester']", "train"),
        ("[tool.hatch.envs.test]\nextra-dependencies = ['tester']", "test"),
        ("[tool.poetry.group.train.dependencies]\ntester = '*'", "train"),
        ("[tool.poetry.dev-dependencies]\ntester = '*'", "dev"),
        ("[tool.flit.metadata.requires-extra]\ntrain = ['tester']", "train"),
    ],
)
def test_groups_of_other_tools_are_left_out_by_name_and_read_by_name(
    tmp_path: Path, text: str, name: str
) -> None:
    text = f"[project]\ndependencies = ['up']\n{text}\n"
    assert lines(tmp_path, "pyproject.toml", text) == ["up"]
    declared = project_files.declared(source.read(str(tmp_path / "pyproject.toml")))
    assert declared.choices == [name]
    assert lines(tmp_path, "pyproject.toml", text, f"[{name}]") == ["up", "tester"]


def test_groups_of_the_same_name_are_one(tmp_path: Path) -> None:
    text = """
        [project]
        name = "ours"
        [project.optional-dependencies]
        dev = ["one"]
        [dependency-groups]
        dev = ["two"]
        [tool.uv]
        dev-dependencies = ["three"]
        [tool.poetry.group.dev.dependencies]
        four = "*"
        [tool.poetry.group.all]
        include-groups = ["dev"]
        """
    assert sorted(lines(tmp_path, "pyproject.toml", text, "[dev]")) == [
        "four",
        "one",
        "three",
        "two",
    ]
    assert lines(tmp_path, "pyproject.toml", text, "[all]") == ["four"]


@pytest.mark.parametrize(("count", "repeats"), [(13, 10), (3000, 1)])
@pytest.mark.parametrize("kind", ["groups", "extras"])
def test_a_group_that_many_include_is_read_once(
    tmp_path: Path, kind: str, count: int, repeats: int
) -> None:
    """The first has a billion of them, and the second is deeper than Python's stack."""
    include = "{include-group='g%d'}," if kind == "groups" else "'x[g%d]',"
    text = "".join(f"g{n} = [{include % (n + 1) * repeats}]\n" for n in range(count))
    table = "dependency-groups" if kind == "groups" else "project.optional-dependencies"
    text = f"[project]\nname = 'x'\n[{table}]\n{text}g{count} = ['up']\n"
    assert lines(tmp_path, "pyproject.toml", text, "[g0]") == ["up"]


DEEP = f"{'(' * 5000}os_name == 'nt'{')' * 5000}"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("pyproject.toml", '[tool.poetry.dependencies]\nup = {markers="%s"}', "is no marker"),
        ("pyproject.toml", '[project]\ndependencies = ["up", "x ; %s"]\nname = "x"', "refused"),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["up"]\n[tool.uv.sources]\nup = {git="x", marker="%s"}',
            "is no marker",
        ),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["up"]\n[tool.uv]\noverride-dependencies = ["x ; %s"]',
            "is no requirement",
        ),
        ("Pipfile", '[packages]\nup = {os_name="%s"}', "is no marker"),
        ("Pipfile.lock", '{"default": {"up": {"markers": "%s"}}}', "is no marker"),
        (
            "pylock.toml",
            'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "up"\nmarker = "%s"',
            "is nested more than",
        ),
    ],
)
def test_a_marker_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text % DEEP)
    with pytest.raises(UserError, match=why):
        environment.of_files([str(tmp_path / name)], ["up"])


def test_a_pipfile_has_groups(tmp_path: Path) -> None:
    text = """
        [[source]]
        url = "https://host"
        [packages]
        up = "==1.0"
        second = {version = ">=2", sys_platform = "== 'linux'", extras = ["fast"]}
        [dev-packages]
        tester = "*"
        [gpu]
        deepspeed = {version = "==0.18.2"}
        [requires]
        python_version = "3.11"
        """
    assert lines(tmp_path, "Pipfile", text) == [
        "up==1.0",
        "second[fast]>=2 ; sys_platform == 'linux'",
    ]
    assert lines(tmp_path, "Pipfile", text, "[gpu]")[-1] == "deepspeed==0.18.2"
    declared = project_files.declared(source.read(str(tmp_path / "Pipfile")))
    assert (declared.choices, declared.python) == (["dev", "gpu"], "==3.11.*")


@pytest.mark.usefixtures("offline")
def test_what_a_build_or_an_unknown_tool_adds_is_said(tmp_path: Path) -> None:
    text = """
        [project]
        dynamic = ["dependencies"]
        optional-dependencies = {train = ["up==1.0"]}
        [tool.pixi.dependencies]
        pytorch = "2.1.*"
        """
    (tmp_path / "pyproject.toml").write_text(text)
    notes = environment.of_files([f"{tmp_path / 'pyproject.toml'}[train]"], ["up"]).notes
    assert any("its dependencies are dynamic" in note for note in notes)
    assert any("the tables of tool.pixi are not read" in note for note in notes)


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
    stack = environment.of_files(["."], ["up"])
    assert stack.packages["up"].version == "2.0"
    assert stack.notes == (".: Pipfile.lock was read; requirements.txt not read",)
    assert stack.complete


def test_a_damaged_file_of_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = 'up==1.0'\n")
    (tmp_path / "environment.yml").write_text("dependencies: [up=2.0]\n")
    with pytest.raises(UserError, match=r"project\.dependencies is text, not a list"):
        environment.of_files([str(tmp_path)], ["up"])


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
    stack = environment.of_files([str(file)], ["up", "down"], day)
    assert {name: package.version for name, package in stack.packages.items()} == expected
    assert ("as no index has their wheels: nowhere, source" in " ".join(stack.notes)) == (
        "source" in text
    )


def test_requirements_that_contradict_each_other_are_looked_up_alone(
    published: type[Handler], tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert {n: package.version for n, package in stack.packages.items()} == {
        "up": "2.0",
        "down": "3.0",
    }
    assert "no releases were found that fit together" in stack.notes[0]


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_newest_tested_releases_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("accelerate<1.15\n")
    stack = environment.of_files([str(file)], ["accelerate"])
    assert stack.packages["accelerate"].version == "1.14.0"
    assert stack.notes[0] == "not known: the releases of torch"
    assert "the package index does not respond" in stack.notes[1]
    assert "the newest tested release is taken" in stack.notes[2]
    assert "accelerate needs it" in stack.packages["torch"].origin


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
    stack = environment.of_files([str(file)], ["up", "down"])
    assert stack.packages["down"].version == "3.0"


@pytest.mark.parametrize(
    ("line", "day", "note"),
    [
        ("up==9.9.9.9", "", "there is no such release, "),
        ("source==9.9", "", "there is no such release, "),
        ("up==2.0", "2024-03-01", "there was no such release on 2024-03-01, "),
        ("up>=1", "1990-01-01", "there was no such release on 1990-01-01, "),
        (
            "source==1.0",
            "2024-01-01",
            "what these need was not looked up, as no index has their wheels",
        ),
        ("up==1.0+mine", "", "what these need was not looked up, as no index has their wheels"),
    ],
)
def test_a_release_that_does_not_exist_is_said(
    published: type[Handler], tmp_path: Path, line: str, day: str, note: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"{line}\ndown\n")
    (first_note, *_) = environment.of_files([str(file)], ["up", "down"], day).notes
    assert first_note.startswith(note)
    assert re.split("[=>]", line)[0] in first_note


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
    error = refused(capsys, ["check", "-r", str(file)])
    assert f"as no index has their wheels: {line.partition('=')[0]}; {file} has none of " in error


def test_packages_that_fit_together_without_the_others_are_resolved(
    published: type[Handler], tmp_path: Path
) -> None:
    publish(published, "tool", "1.0", "missing>=9", day="2024-01-01")
    file = tmp_path / "requirements.txt"
    file.write_text("up\ntool==1.0\nmissing<9\n")
    publish(published, "missing", "1.0", day="2024-01-01")
    stack = environment.of_files([str(file)], ["up", "down"])
    assert {name: package.version for name, package in stack.packages.items()} == {
        "up": "2.0",
        "down": "2.5",
    }
    assert "the other requirements contradict up" in stack.notes[0]


def test_what_needs_an_unknown_release_is_said_first(
    published: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bugs would vanish: 'no up'."""
    monkeypatch.setattr(resolver, "NEEDS", {"down": ("other",), "other": ("deep",)})
    file = tmp_path / "requirements.txt"
    file.write_text("up==2.0\ndown>=3\n")
    stack = environment.of_files([str(file)], ["up", "down", "other", "deep"])
    assert stack.notes[0] == "not known: the releases of deep and other"
    assert stack.packages["other"].version == ""
    assert "down needs it" in stack.packages["other"].origin


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
    stack = environment.of_files([str(file)], ["up"])
    assert stack.packages["up"].version == "2.0"
    has_note = any(
        "line 1: it does not show which package is there" in note for note in stack.notes
    )
    assert has_note or line == "../.."
