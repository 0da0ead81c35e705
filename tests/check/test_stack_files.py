"""The releases of an environment are read from lock files, lists and requirements."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.check import environment, synonyms
from harness.check.installed import LEFT_OUT, Exact, Installed, OneOf, Unknown
from harness.system.errors import Inconclusive, UserError
from tests.index import Handler, no_network, served

__all__ = ["no_network", "served"]

NAMES = ["Up", "second_one"]

UV = """
version = 1
revision = 3
requires-python = ">=3.10"
resolution-markers = ["sys_platform == 'linux'", "sys_platform != 'linux'"]

[[package]]
name = "mine"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "up" }]
"""
UV_PACKAGE = """
[[package]]
name = "up"
version = "%s"
source = { %s }
resolution-markers = [%s]
"""
INDEX = 'registry = "https://host/simple"'
POETRY = """
%s
[metadata]
lock-version = "2.1"
python-versions = ">=3.10,<4.0"
content-hash = "a5"
"""
POETRY_PACKAGE = """
[[package]]
name = "up"
version = "%s"
optional = false
groups = ["main"]
%s
"""
PYLOCK = """
lock-version = "1.0"
created-by = "us"
requires-python = ">=3.10"
"""
PYLOCK_PACKAGE = """
[[packages]]
name = "up"
version = "%s"
%s
"""
CONDA_LOCK = "version: 1\nmetadata: {}\npackage:"
SDIST = 'sdist = {url = "https://host/up-%s.tar.gz", hashes = {sha256 = "a5"}}'


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No resolver asks an index: tests/check/test_resolver.py has those."""
    monkeypatch.setenv("UV_OFFLINE", "1")


def uv(*entries: tuple[str, str, str]) -> str:
    return UV + "".join(UV_PACKAGE % entry for entry in entries)


def poetry(*entries: tuple[str, str]) -> str:
    return POETRY % "".join(POETRY_PACKAGE % entry for entry in entries)


def pylock(*entries: tuple[str, str]) -> str:
    return PYLOCK + "".join(PYLOCK_PACKAGE % entry for entry in entries)


def sdist(version: str, marker: str = "python_version > '3'") -> tuple[str, str]:
    return version, f'marker = "{marker}"\n{SDIST % version}'


def conda(*entries: tuple[str, str, str]) -> str:
    return json.dumps([{"name": n, "version": v, "channel": c} for n, v, c in entries])


Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the working directory, or to standard input (``-``)."""
    monkeypatch.chdir(tmp_path)

    def to(name: str, text: str) -> None:
        if name == "-":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        else:
            Path(name).write_text(text)

    return to


def up_in(*files: str) -> Installed | None:
    return environment.of_files(files, NAMES).packages.get("up")


NOT_HERE = "sys_platform == 'win32'"
HERE = "sys_platform == 'linux'"
GIT_TAG = """[package.source]
type = "git"
url = "https://github.com/us/up.git"
reference = "v4.40.0"
resolved_reference = "a5" """
ONE, TWO = Exact("4.40.0"), Exact("4.57.6")
BOTH = OneOf(("4.40.0", "4.57.6"), "uv.lock has 4.40.0 and 4.57.6")
ELSEWHERE = Unknown(LEFT_OUT)
GIT = Unknown("installed from git", "4.40.0")
EDITABLE = Unknown("an editable install", "4.40.0")


def manifest(overrides: str) -> str:
    """A lock with these overrides, and with a release that they may leave out."""
    return uv(("4.40.0", INDEX, "")) + f"[manifest]\noverrides = [{overrides}]"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("uv.lock", UV, None),
        ("uv.lock", uv(("4.40.0", INDEX, "")), ONE),
        ("uv.lock", manifest(f'{{name = "Up", marker = "{NOT_HERE}"}}'), ELSEWHERE),
        ("uv.lock", manifest(f'{{name = "up", marker = "{HERE}"}}'), ONE),
        ("uv.lock", manifest(f'{{name="up", marker="{NOT_HERE}"}}, {{name="up"}}'), ONE),
        ("uv.lock", uv() + '[manifest]\nexcludes = ["up"]', ELSEWHERE),
        ("uv.lock", uv(("4.40.0", INDEX, f'"{NOT_HERE}"')), None),
        ("uv.lock", uv(("4.40.0", INDEX, f'"{NOT_HERE}"'), ("4.57.6", INDEX, f'"{HERE}"')), TWO),
        ("uv.lock", uv(("4.40.0", INDEX, ""), ("4.57.6", INDEX, "")), BOTH),
        (
            "uv.lock",
            uv(
                ("4.40.0", INDEX, f"\"{HERE} and extra == 'a' and extra != 'b'\""),
                ("4.57.6", INDEX, f"\"{HERE} and extra != 'a' and extra == 'b'\""),
            ),
            BOTH,
        ),
        (
            "uv.lock",
            uv(
                ("4.40.0", INDEX, "\"python_version < '3.99'\""),
                ("4.57.6", INDEX, "\"python_version >= '3.99'\""),
            ).replace(">=3.10", ">=3.98"),
            BOTH,
        ),
        ("uv.lock", uv(("4.40.0", 'git = "https://host/up?rev=main#a5"', "")), GIT),
        ("uv.lock", uv(("abc", 'git = "https://host/up#a5"', "")), Unknown(GIT.because)),
        ("uv.lock", uv(("4.40.0", 'editable = "../up"', "")), EDITABLE),
        (
            "uv.lock",
            uv(("4.40.0", 'editable = "../up"', "")).replace('version = "4.40.0"', ""),
            Unknown("an editable install"),
        ),
        ("uv.lock", uv(("4.40.0", 'git = "https://github.com/us/up?tag=v4.40.0#a5"', "")), ONE),
        ("uv.lock", uv(("4.40.0", 'git = "https://github.com/us/up?branch=v4.40.0#a5"', "")), GIT),
        (
            "uv.lock",
            uv(("4.41.0.dev0", 'git = "https://github.com/us/up#a5"', "")),
            Exact("4.41.0.dev0"),
        ),
        ("poetry.lock", poetry(), None),
        ("poetry.lock", poetry(("4.40.0", GIT_TAG)), ONE),
        ("poetry.lock", poetry(("4.40.0", "")), ONE),
        ("poetry.lock", poetry(("4.40.0", f'markers = "{NOT_HERE}"')), None),
        ("poetry.lock", poetry(("4.40.0", 'markers = "extra == \\"train\\""')), ONE),
        (
            "poetry.lock",
            poetry(
                ("4.40.0", f'markers = {{main = "{NOT_HERE}"}}'),
                ("4.57.6", f'markers = {{main = "{HERE}", dev = "{NOT_HERE}"}}'),
            ),
            TWO,
        ),
        (
            "poetry.lock",
            poetry(("4.40.0", '[package.source]\ntype = "git"\nurl = "https://host/up"')),
            GIT,
        ),
        (
            "poetry.lock",
            poetry(("4.40.0", 'develop = true\n[package.source]\ntype = "directory"\nurl = "up"')),
            EDITABLE,
        ),
        (
            "poetry.lock",
            poetry(("4.40.0", '[package.source]\ntype = "legacy"\nurl = "https://host/simple"')),
            ONE,
        ),
        ("pylock.toml", pylock(sdist("4.40.0")), ONE),
        ("pylock.toml", pylock(sdist("4.40.0", NOT_HERE), sdist("4.57.6")), TWO),
        ("pylock.toml", pylock(sdist("4.40.0", "'train' in extras")), ONE),
        (
            "pylock.train.toml",
            pylock(sdist("4.40.0"), sdist("4.57.6", "'dev' not in dependency_groups")),
            OneOf(BOTH.versions, "pylock.train.toml has 4.40.0 and 4.57.6"),
        ),
        (
            "pylock.toml",
            pylock(
                (
                    "4.40.0",
                    'vcs = {type = "git", url = "https://github.com/us/up", commit-id = "a5", '
                    'requested-revision = "v4.40.0"}',
                )
            ),
            ONE,
        ),
        (
            "pylock.toml",
            pylock(("4.40.0", 'vcs = {type = "git", url = "https://host/up", commit-id = "a5"}')),
            GIT,
        ),
        ("pylock.toml", pylock(("4.40.0", 'directory = {path = "up", editable = true}')), EDITABLE),
        (
            "pylock.toml",
            pylock(
                ("", 'archive = {path = "up-4.40.0-py3-none-any.whl", hashes = {sha256 = "a5"}}')
            ).replace('version = ""', ""),
            Unknown("a local file", "4.40.0"),
        ),
        (
            "Pipfile.lock",
            '{"_meta": {}, "default": {}, "gpu": {"Up": {"version": "==4.40.0"}}}',
            ONE,
        ),
        ("conda.json", "[]", None),
        ("conda.json", conda(("up", "4.40.0", "conda-forge"), ("pip", "1", "pypi")), ONE),
        ("conda.json", conda(("Up", "4.40.0", "<develop>")), EDITABLE),
    ],
)
def test_a_file_that_lists_all_packages_is_complete(
    write: Write, name: str, text: str, expected: Installed | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(synonyms.UPSTREAM, "us/up", "up")
    write(name, text)
    stack = environment.of_files([name], NAMES)
    assert stack.packages == ({"up": expected} if expected else {})
    assert (stack.where, stack.complete, stack.interpreter) == (name, True, None)
    write("-", text)
    if expected:  # without packages it is recognised by its name
        (package,) = environment.of_files(["-"], NAMES).packages.values()
        assert package.version == expected.version


def test_other_names_of_torch_and_its_builds_are_known(write: Write) -> None:
    def torch(name: str, text: str) -> Installed:
        write(name, text)
        return environment.of_files([name], NAMES).packages["torch"]

    assert torch("-", conda(("pytorch", "2.5.1", "conda-forge"))) == Exact("2.5.1")
    builds = uv(("2.13.0+cpu", INDEX, ""), ("2.13.0+cu130", INDEX, "")).replace('"up"', '"torch"')
    assert torch("uv.lock", builds) == Exact("2.13.0")
    mixed = builds.replace("+cpu", "")
    assert torch("uv.lock", mixed) == Exact("2.13.0")
    for label in ("cu130", "cpu", "rocm6.4", "xpu", "cpu.cxx11.abi", "cu117.with.pypi.cudnn"):
        assert torch("-", f"torch==2.13.0+{label}\n") == Exact("2.13.0")


FREEZE = """\
accelerate==1.2.3
# Editable Git install with no remote (up==4.40.0)
-e /home/me/fork
second-one @ git+https://host/second@a5
torch==2.13.0+cu130
"""


def test_a_freeze_on_standard_input_is_complete(write: Write) -> None:
    write("-", FREEZE)
    stack = environment.of_files(["-"], NAMES)
    assert stack.packages == {
        "up": Unknown("an editable install", "4.40.0"),
        "second-one": Unknown("installed from git"),
        "torch": Exact("2.13.0"),
    }
    assert (stack.where, stack.complete) == ("standard input", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("-", FREEZE + "rl_games==5.4.2\n"),
        ("requirements.txt", "up==4.40.0\nrl-games\n"),
        ("requirements.txt", "up==4.40.0\nrl-games @ git+https://host/rl_games\n"),
        ("environment.yml", "dependencies: [rl-games=5.4, {pip: [up==4.40.0]}]"),
        ("pyproject.toml", '[project]\ndependencies = ["up==4.40.0", "Rl_Games>=5"]'),
        (
            "uv.lock",
            uv(("1", INDEX, "")) + (UV_PACKAGE % ("1", INDEX, "")).replace("up", "rl-games"),
        ),
        ("conda.json", conda(("up", "4.40.0", "pypi"), ("rl-games", "5", "pypi"))),
    ],
)
def test_training_libraries_that_the_catalogue_does_not_have_are_named(
    write: Write, name: str, text: str
) -> None:
    write(name, text)
    stack = environment.of_files([name], NAMES)
    assert "up" in stack.packages
    assert "rl-games" not in stack.packages
    note = "no bug of rl-games is recorded here, which does not mean that it has none"
    assert note in stack.notes


@pytest.mark.parametrize(("name", "text"), [("-", FREEZE), ("uv.lock", uv(("1.0", INDEX, "")))])
def test_a_day_changes_nothing_in_a_list_of_all_packages(
    write: Write, name: str, text: str
) -> None:
    write(name, text)
    stack = environment.of_files([name], NAMES, "2025-01-01")
    assert stack.notes[-1] == f"--as-of has no effect: {stack.where} lists every release"


@pytest.mark.parametrize(
    "line", ["numpy>=2", "numpy==2.*", "numpy==2; python_version > '3'", "--pre", "./numpy", "#"]
)
def test_other_requirements_are_not_complete(write: Write, line: str) -> None:
    write("-", f"{line}\n" if line == "#" else f"{FREEZE}{line}\n")
    assert not environment.of_files(["-"], NAMES).complete
    write("requirements.txt", FREEZE)
    assert not environment.of_files(["requirements.txt"], NAMES).complete


def test_several_requirements_files_describe_one_environment(write: Write) -> None:
    write("a.txt", "up==4.40.0\n")
    write("b.txt", "second-one==1.0\nup>4\n")
    stack = environment.of_files(["a.txt", "b.txt", "a.txt"], NAMES)
    assert stack.packages == {"up": ONE, "second-one": Exact("1.0")}
    assert (stack.where, stack.complete) == ("a.txt and b.txt", False)
    write("-", FREEZE)
    assert not environment.of_files(["a.txt", "-"], NAMES).complete
    write("uv.lock", uv(("4.40.0", INDEX, "")))
    with pytest.raises(UserError, match=r"^uv\.lock lists all packages: give it alone$"):
        up_in("a.txt", "uv.lock")


def test_an_index_without_the_package_leaves_its_version_unknown(
    write: Write, served: type[Handler]
) -> None:
    write("a.txt", "up>=4\n")
    assert up_in("a.txt") == Unknown("the index has no package up")


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("uv.lock", "version = 2\npackage = {}", Inconclusive, "has version 2 of uv.lock; only 1"),
        (
            "poetry.lock",
            POETRY.replace("2.1", "3.0") % "",
            Inconclusive,
            "has version 3 of poetry.lock; only 1 and 2 can be read",
        ),
        (
            "pylock.toml",
            'lock-version = "2.0"\nwhat = 1',
            Inconclusive,
            "has version 2 of pylock; only 1",
        ),
        ("uv.lock", "version = ", UserError, "uv.lock is not valid TOML: "),
        ("a.toml", f"a = {'[' * 9999}", UserError, "a.toml is not valid TOML: "),
        ("uv.lock", "", UserError, "uv.lock is no lock file"),
        ("a.txt", f"up=={'1' * 3000}", UserError, "it contains a number of 300 digits or more"),
        ("a.txt", "up\x1b[2J", UserError, "it contains a control character"),
        ("a.txt", "--index-url file:///mine\nup", UserError, "an index is read over https://"),
        ("a.txt", "--index-url=-x\nup", UserError, "an index is read over https://"),
        ("a.txt", "-r https://host/b.txt", UserError, "curl -L ADDRESS | distributed-bugs check"),
        ("conda.yaml", f"dependencies: {'[' * 99}{']' * 99}", UserError, "more than 50 deep"),
        ("conda.json", f"{'[' * 99}{']' * 99}", UserError, "more than 50 deep"),
        ("setup.py", "import os", UserError, "setup.py is code, and is not run"),
        ("pyproject.toml", "[project]", UserError, "pyproject.toml names no dependencies"),
        ("pdm.lock", "[[package]]\nname = 'up'", UserError, "pdm.lock is no lock file"),
        ("poetry.lock", poetry(("1", "[package.source]\ntype='x'")), UserError, "none of git, url"),
        ("uv.lock", f"{UV}[[package]]", UserError, "is not a valid lock file: .*'name'"),
        ("uv.lock", uv(("1", "new = 1", "")), UserError, "is not a valid lock file"),
        ("uv.lock", uv(("1", INDEX, "'what'")), UserError, "is not a valid lock file"),
        ("pylock.toml", pylock(("1", "")), UserError, "is not a valid lock file"),
        ("pylock.toml", 'lock-version = "one"', UserError, "is not a valid lock file"),
        ("conda.json", "[{]", UserError, "conda.json is not valid JSON: "),
        ("conda.json", "[" * 99999, UserError, "conda.json is not valid JSON: "),
        ("conda.json", '{"error": "no environment"}', UserError, "use the output of pip freeze"),
        ("pip.json", '[{"name": "up", "version": "1"}]', UserError, "use the output of pip freeze"),
        ("a.txt", "up=1\n", UserError, r"a.txt, line 1: 'up=1' is refused"),
        ("-", " \n", UserError, "standard input is empty"),
        ("conda-lock.yml", f"{CONDA_LOCK} 5\n", UserError, "package is a number"),
        ("conda-lock.yml", f"{CONDA_LOCK} [5]\n", UserError, "package 1 is a number"),
        ("conda-lock.yml", f"{CONDA_LOCK}\n- name: 5\n", UserError, "name is a number, not text"),
        ("conda-lock.yml", f"{CONDA_LOCK} [\n", UserError, "is not valid YAML"),
        (
            "conda-lock.yml",
            f"{CONDA_LOCK} []\n".replace("1", "99"),
            Inconclusive,
            "has version 99 of conda-lock.yml; only ",
        ),
        ("pixi.lock", "version: 6\nenvironments: 5\n", UserError, "environments is a number"),
        (
            "pixi.lock",
            "version: 6\nenvironments: {a: {packages: {linux-64: [5]}}}\n",
            UserError,
            "an entry",
        ),
        ("pixi.lock", "- 5", UserError, "it is a list, not a table"),
        ("pixi.lock", "version: 99\npackages: []\n", Inconclusive, "99 of pixi.lock; only "),
    ],
)
def test_bad_input_is_reported_in_one_line(
    write: Write, name: str, text: str, error: type[Exception], message: str
) -> None:
    write(name, text)
    with pytest.raises(error, match=message) as caught:
        environment.of_files([name], NAMES)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^no file nowhere\.lock$"):
        environment.of_files(["nowhere.lock"], NAMES)
    with pytest.raises(UserError, match=r"has none of uv\.lock, .* that names dependencies"):
        environment.of_files([str(tmp_path)], NAMES)
    (tmp_path / "a.txt").write_bytes("# größer".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"cannot read .*a\.txt: 'utf-8' codec .*; save it as UTF-8"
    ):
        environment.of_files([str(tmp_path / "a.txt")], NAMES)
    with pytest.raises(UserError, match=r"cannot read .*null byte"):
        environment.of_files(["a\0b"], NAMES)


@pytest.mark.parametrize(
    ("marker", "names"),
    [("sys_platform == 'win32'", ["down"]), ("sys_platform == 'linux'", ["down", "other", "up"])],
)
def test_what_uv_lock_needs_only_elsewhere_is_not_there(
    tmp_path: Path, marker: str, names: list[str]
) -> None:
    def package(name: str, *lines: str, source: str = INDEX) -> str:
        head = f'[[package]]\nname = "{name}"\nversion = "1.0"\nsource = {{{source}}}\n'
        return head + "".join(f"{line}\n" for line in lines)

    needs = f'dependencies = [{{name = "up", marker = "{marker}"}}, {{name = "down"}}]'
    (tmp_path / "uv.lock").write_text(
        "version = 1\n"
        + package("mine", needs, source='virtual = "."')
        + package("up", 'dependencies = [{name = "other"}]')
        + package("other", 'dependencies = [{name = "up"}]')
        + package("down")
        + package("one", 'dependencies = [{name = "two"}]')
        + package("two", 'dependencies = [{name = "one"}]')
    )
    stack = environment.of_files([str(tmp_path / "uv.lock")], ["up", "down", "other", "one"])
    assert sorted(stack.packages) == sorted([*names, "one"]), "a circle that nothing needs is there"


@pytest.mark.parametrize("source", ['virtual = "."', 'editable = "."', 'directory = "."'])
def test_a_project_whose_extra_names_itself_is_still_what_uv_lock_is_for(
    tmp_path: Path, source: str
) -> None:
    (tmp_path / "uv.lock").write_text(
        f'version = 1\n[[package]]\nname = "mine"\nversion = "1.0"\nsource = {{{source}}}\n'
        'dependencies = [{name = "up"}]\n'
        '[package.optional-dependencies]\nall = [{name = "mine", extra = ["more"]}]\n'
        f'[[package]]\nname = "up"\nversion = "1.0"\nsource = {{{INDEX}}}\n'
        'dependencies = [{name = "mine"}]\n'
    )
    stack = environment.of_files([str(tmp_path / "uv.lock")], ["up"])
    assert sorted(stack.packages) == ["up"]
