"""The tables of pyproject.toml and Pipfile: of the standard, Poetry, PDM, uv and others."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.check import environment, project_folders
from harness.check.formats import Declaration
from harness.check.installed import LEFT_OUT, Exact, Unknown
from harness.check.requirement_lines import Skipped
from harness.system.errors import UserError

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


def project_file(folder: Path, name: str, text: str, chosen: str = "") -> Declaration:
    (folder / name).write_text(text)
    file = project_folders.opened(f"{folder / name}{chosen}").source
    assert isinstance(file, Declaration)
    return file


def lines(folder: Path, name: str, text: str, chosen: str = "") -> list[str]:
    """The requirements that a file declares, and that hold here."""
    file = project_file(folder, name, text, chosen)
    return [line.text for _, line in file.lines(file.chosen) if line.items]


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
        "extra[fast]>=1,<3",
        "both>=2,<3",
        "hers @ git+https://host/hers.git",
    ]
    assert "rare==1.0" in lines(tmp_path, "pyproject.toml", POETRY, "[more]")
    assert lines(tmp_path, "pyproject.toml", POETRY, "[dev]")[-1] == "tester"


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
    ],
)
def test_a_constraint_of_poetry_becomes_a_specifier(
    tmp_path: Path, constraint: str, expected: str
) -> None:
    text = f"[tool.poetry.dependencies]\nup = '{constraint}'"
    assert lines(tmp_path, "pyproject.toml", text) == [expected]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("^1.2 || ^2.0", "up>=2.0,<3"),
        ("2.* || 1.0 || ~=1.2", "up==2.*"),
        ("<1 || >=3", "up>=3"),
        ("1 || *", "up"),
        ("1.0 || == 1.2", "up>=1.2,<=1.2"),  # not as exact as 1.2: an environment may have 1.0
    ],
)
def test_the_newest_of_poetrys_alternatives_counts_and_a_note_says_so(
    tmp_path: Path, constraint: str, expected: str
) -> None:
    text = f"[tool.poetry.dependencies]\nup = '{constraint}'"
    assert lines(tmp_path, "pyproject.toml", text) == [expected]
    (note,) = project_file(tmp_path, "pyproject.toml", text).content.notes
    assert f"up: which of the alternatives '{constraint}' is left open" in note


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{version="5", python="<3.9"}', []),
        ('{version="5", python="^3.9", markers="os_name == \'nt\'"}', []),
        ('{version="5", python="^3.9", markers="os_name == \'posix\'"}', ["up==5"]),
        ('{version="5", python="3.8.1 || >=3.10"}', ["up==5"]),
        ('{version="5", python="*"}', ["up==5"]),
        ('{version="5", platform="linux"}', ["up==5"]),
        ('{version="5", platform="darwin || win32"}', []),
        ('{version="5", platform="!=win32"}', ["up==5"]),
        ('[{version="4",python="<3.10"},{version="5",python=">=3.10"}]', ["up==5"]),
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


POETRYS = "[tool.poetry.dependencies]\nup = '^5'\ntorch = {version = '>=2', source = 'NAME'}\n"
UVS = "[project]\ndependencies = ['up', 'torch>=2']\n[tool.uv.sources]\ntorch = {index = 'NAME'}\n"
PDMS = "[project]\ndependencies = ['up', 'torch>=2']\n"
PIPENVS = "[packages]\nup = '*'\ntorch = {version = '>=2', index = 'NAME'}\n"
INDEX = "\nname = 'NAME'\nurl = 'https://host/whl/PLACE'\n"
TOOLS = {
    "uv": ("pyproject.toml", UVS + "[[tool.uv.index]]" + INDEX),
    "poetry": ("pyproject.toml", POETRYS + "[[tool.poetry.source]]" + INDEX),
    "pdm": ("pyproject.toml", PDMS + f"[[tool.pdm.source]]{INDEX}include_packages = ['torch']\n"),
    "pipenv": ("Pipfile", PIPENVS + "[[source]]" + INDEX),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("name", "place", "expected"),
    [
        ("mine", "cu121", ["torch>=2", "torch>=2.1,<2.6"]),
        ("pytorch-cu124", "", ["torch>=2", "torch>=2.4,<2.7"]),
        ("pytorch-cpu", "", ["torch>=2"]),
        ("PyPI", "", ["torch>=2"]),
        ("mine", "nightly/cpu", ["torch: it comes from the index mine, which is not asked"]),
        ("mine", "cu999", ["torch: it comes from the index mine, which is not asked"]),
    ],
)
def test_another_index_may_not_have_the_newest_release(
    tmp_path: Path, tool: str, name: str, place: str, expected: list[str]
) -> None:
    """The index of torch for CUDA 12.1 ends with 2.5.1: it was judged with torch 2.15.0."""
    file, text = TOOLS[tool]
    source = project_file(tmp_path, file, text.replace("NAME", name).replace("PLACE", place))
    items = [(line, item) for _, line in source.lines(()) for item in line.items]
    assert [
        f"{item.name}: {item.because}" if isinstance(item, Skipped) else line.text
        for line, item in items
        if not line.text.startswith("up")
    ] == expected


@pytest.mark.usefixtures("offline")
def test_ranges_are_unknown_where_uv_is_to_take_the_lowest_releases(tmp_path: Path) -> None:
    text = "[project]\ndependencies = ['up>=5', 'down==2.0']\n[tool.uv]\nresolution = 'lowest'\n"
    packages = in_file(tmp_path, text, "up", "down").packages
    assert packages["up"] == Unknown("tool.uv.resolution is lowest, which is not followed")
    assert packages["down"] == Exact("2.0")


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
    stack = in_file(tmp_path, text, "up", "down", "other", "gone", "away", "far")
    assert {name: package.version for name, package in stack.packages.items()} == {
        "up": "4.0",
        "down": "2.0",
        "gone": "",
        "away": "",
        "far": "",
    }


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("declared", ["torch>=2.6", "other"])
@pytest.mark.parametrize(
    "setting",
    [
        "override-dependencies = [\"torch; sys_platform == 'never'\"]",
        "exclude-dependencies = ['torch']",
    ],
)
def test_a_package_that_overrides_leave_out_comes_from_elsewhere(
    tmp_path: Path, declared: str, setting: str
) -> None:
    """Projects for NVIDIA's containers leave out torch: the container has a build of its own."""
    text = f"[project]\ndependencies = ['{declared}']\n[tool.uv]\n{setting}"
    stack = in_file(tmp_path, text, "torch")
    assert stack.packages == {"torch": Unknown(LEFT_OUT)}
    assert not any("wheels" in note for note in stack.notes)


@pytest.mark.usefixtures("offline")
def test_what_only_a_group_needs_and_overrides_leave_out_counts_with_this_group(
    tmp_path: Path,
) -> None:
    text = """
        [project]
        dependencies = ["other"]
        optional-dependencies = {train = ["torch"]}
        [tool.uv]
        override-dependencies = ["torch; sys_platform == 'never'"]
        """
    assert "torch" not in in_file(tmp_path, text, "torch").packages
    stack = environment.of_files([f"{tmp_path}/pyproject.toml[train]"], ["torch"])
    assert stack.packages == {"torch": Unknown(LEFT_OUT)}


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
    assert project_file(tmp_path, "pyproject.toml", text).choices(()) == [name]
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
    assert lines(tmp_path, "Pipfile", text) == ["up==1.0", "second[fast]>=2"]
    assert lines(tmp_path, "Pipfile", text, "[gpu]")[-1] == "deepspeed==0.18.2"
    pipfile = project_file(tmp_path, "Pipfile", text)
    assert (pipfile.choices(()), pipfile.content.python) == (["dev", "gpu"], "==3.11.*")


@pytest.mark.usefixtures("offline")
def test_what_a_build_or_an_unknown_tool_adds_is_said(tmp_path: Path) -> None:
    text = """
        [project]
        dynamic = ["dependencies"]
        optional-dependencies = {train = ["up==1.0"]}
        [tool.pixi.dependencies]
        pytorch = "2.1.*"
        [tool.conda-lock.dependencies]
        pytorch = "2.1.*"
        """
    (tmp_path / "pyproject.toml").write_text(text)
    notes = environment.of_files([f"{tmp_path / 'pyproject.toml'}[train]"], ["up"]).notes
    assert any("its dependencies are dynamic" in note for note in notes)
    for tool in ("pixi", "conda-lock"):
        assert any(f"the tables of tool.{tool} are not read" in note for note in notes)
