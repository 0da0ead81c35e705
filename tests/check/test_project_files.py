"""Files in which projects declare what they need: which is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.check import environment
from harness.system.errors import HarnessError, UserError
from tests.check.requirement_files import content_of
from tests.check.test_pyproject import lines

SETUP = """
[options]
python_requires = >=3.8
install_requires =
    up>=1
    down
[options.extras_require]
train = trainer
"""
DOWN = "down; os_name == 'posix'"
DEEP = f"{'(' * 5000}os_name == 'nt'{')' * 5000}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("up>=1", ["up>=1"]),
        ("up>=1; down", ["up>=1", "down"]),
        ("\n  up>=1  # as of torch 2.1\n  # down\n  down; os_name == 'posix'", ["up>=1", DOWN]),
        ("\n  up @ git+https://host/up#egg=up", ["up @ git+https://host/up#egg=up"]),
    ],
)
def test_setup_cfg_has_comments_and_semicolons(
    tmp_path: Path, value: str, expected: list[str]
) -> None:
    assert lines(tmp_path, "setup.cfg", f"[options]\ninstall_requires = {value}\n") == expected


def test_setuptools_files_are_read(tmp_path: Path) -> None:
    assert lines(tmp_path, "setup.cfg", SETUP, "[train]") == ["up>=1", "down", "trainer"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("pyproject.toml", "[project", "is not valid TOML"),
        ("pyproject.toml", "[tool.ruff]", "names no dependencies"),
        ("setup.cfg", "install_requires", "is not valid INI: File contains no section headers"),
        ("environment.yml", "a: [", "is not valid YAML"),
        ("environment.yml", "dependencies:", "names no training library"),
        ("environment.yml", "a: 1", "it has no list 'dependencies'; 'conda list --json' names"),
        (
            "pyproject.toml",
            "[dependency-groups]\na = [{include-group='zz'}]",
            "dependency-groups.a includes the group 'zz', which is not there",
        ),
        (
            "pyproject.toml",
            "[tool.poetry.dependencies]\nup = 'new'",
            "tool.poetry.dependencies.up: 'new' is not a version",
        ),
        (
            "Pipfile",
            "[packages]\nup = {version = '*', sys_platform = 'linux'}",
            "packages.up: 'sys_platform linux' is no marker",
        ),
        ("Pipfile", f'[packages]\nup = {{os_name="{DEEP}"}}', "is no marker"),
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "up ; %s"),
        ("requirements.txt", "./up ; %s"),
        ("pyproject.toml", '[project]\ndependencies = ["up ; %s"]'),
        (
            "pyproject.toml",
            '[project]\nname = "x"\ndependencies = ["x[up] ; %s"]\n'
            'optional-dependencies.up = ["up"]',
        ),
        ("pyproject.toml", '[tool.poetry.dependencies]\nup = {markers="%s"}'),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["up"]\n[tool.uv.sources]\nup = {git="x", marker="%s"}',
        ),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["up"]\n[tool.uv]\noverride-dependencies = ["up ; %s"]',
        ),
        ("Pipfile.lock", '{"default": {"up": {"markers": "%s"}}}'),
        (
            "pylock.toml",
            'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "up"\nmarker = "%s"\n'
            '[packages.directory]\npath = "."',
        ),
        (
            "uv.lock",
            "version = 1\n[manifest]\n"
            'overrides = [{name = "up", marker = "%s"}]\n[[package]]\nname = "up"\nversion = "1"',
        ),
        ("environment.yml", "dependencies:\n- pip:\n  - up ; %s"),
    ],
)
@pytest.mark.parametrize(
    "marker", ["'a' == 'b'", "'train' in 'training'", "os_name ~= '1'", DEEP], ids=lambda m: m[:9]
)
def test_a_marker_that_compares_nothing_or_is_nested_too_deeply_is_refused(
    tmp_path: Path, name: str, text: str, marker: str
) -> None:
    (tmp_path / name).write_text(text % marker)
    message = r"refused|is no (marker|requirement)|is not as the standard says"
    if marker != DEEP:
        message = f"'{marker}' is no marker".replace("'", ".")
    with pytest.raises(UserError, match=message):
        environment.of_files([str(tmp_path / name)], ["up"])


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


VIRTUAL = 'version = 1\n[[package]]\nname = "ours"\nversion = "1"\nsource = { virtual = "." }\n'


@pytest.mark.parametrize(
    ("name", "text", "choice"),
    [
        ("requirements.txt", "# in pyproject.toml\n", "pyproject.toml"),
        ("requirements.txt", "--extra-index-url https://host/simple\n", "pyproject.toml"),
        ("uv.lock", VIRTUAL, "pyproject.toml"),
        ("requirements.txt", "down==1.0\n", "requirements.txt"),
        ("requirements.txt", "-e .\n", "requirements.txt"),
    ],
)
@pytest.mark.usefixtures("offline")
def test_a_file_of_a_folder_that_names_nothing_is_passed_over(
    tmp_path: Path, name: str, text: str, choice: str
) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['up==1.0']\n")
    (tmp_path / name).write_text(text)
    notes = "; ".join(environment.of_files([str(tmp_path)], ["up"]).notes)
    assert f"{tmp_path}: {choice} was read" in notes


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "pyproject.toml",
            "[dependency-groups]\ntrain = ['up==1.0']\n",
            r"names no dependencies but those of train: .*pyproject\.toml\[NAME\]",
        ),
        ("environment.yml", "dependencies: [numpy]\n", "yml names no training library"),
        ("uv.lock", "version = 2\n", "version 2 of uv.lock"),
        ("requirements.txt", "up=1\n", "'up=1' is refused"),
    ],
)
def test_a_folder_without_dependencies_says_what_its_files_have(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(HarnessError, match=why):
        environment.of_files([str(tmp_path)], ["up"])


@pytest.mark.usefixtures("offline")
def test_what_else_a_folder_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires = up==1.0\n")
    for name in ("setup.py", "pixi.toml"):  # code wins over setup.cfg where both have the key
        (tmp_path / name).write_text("")
    notes = environment.of_files([str(tmp_path)], ["up"]).notes
    assert f"{tmp_path}: setup.cfg was read; setup.py, pixi.toml not read" in notes


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


def test_a_file_may_include_others_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "project" / "requirements").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.ruff]\n")
    (tmp_path / "project" / "base.txt").write_text("up==1.0\n")
    (tmp_path / "secret.txt").write_text("secret==1.0\n")
    inner = tmp_path / "project" / "requirements" / "dev.txt"
    inner.write_text("-r ../base.txt\n")
    assert str(content_of(inner).versions["up"]) == "==1.0"
    inner.write_text("-r ../../secret.txt\n")
    with pytest.raises(UserError, match=r"it is outside of .*/project: .* give both files with -r"):
        content_of(inner)


@pytest.mark.parametrize("name", ["requirements.txt", "uv.lock", "pyproject.toml", "setup.cfg"])
@pytest.mark.parametrize("words", [".", "project.txt"])
def test_a_link_that_leads_out_of_the_project_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    """The author of a repository must not choose which of the user's files are read."""
    (tmp_path / "secret.txt").write_text("[project]\ndependencies = ['secret==1.0']\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / name).symlink_to("../secret.txt")
    (folder / "project.txt").write_text("-e .\n")
    monkeypatch.chdir(folder)
    if words == "." or name in ("pyproject.toml", "setup.cfg"):
        with pytest.raises(UserError, match=rf"{name} is a link to .*, outside of its project"):
            environment.of_files([words], ["secret"])


def test_a_link_within_the_project_is_followed(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "base.txt").write_text("up==1.0\n")
    (tmp_path / "requirements.txt").symlink_to("docker/base.txt")
    assert environment.of_files([str(tmp_path)], ["up"]).packages["up"].version == "1.0"
