"""The releases of an environment are read from an interpreter."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

from harness.check import environment, interpreter
from harness.check.installed import Exact, Installed, Unknown
from harness.system.errors import Inconclusive, UserError
from tests.sandbox import PATIENCE, lives, within

NAMES = ["Up", "second_one"]
GIT = {"url": "https://host/up", "vcs_info": {"vcs": "git", "commit_id": "a5"}}
EDITABLE = {"url": "file:///home/me/up", "dir_info": {"editable": True}}
CONDA = "file:///home/conda/feedstock_root/build_artifacts/up_17/work"


def distribution(site: Path, name: str, version: str, direct_url: object = None) -> Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct_url is not None:
        (folder / "direct_url.json").write_text(json.dumps(direct_url))
    return folder


# The environment of this process


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with packages that this process finds."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def up_here() -> Installed | None:
    return environment.of_this_interpreter(NAMES).packages.get("up")


def test_this_interpreter_has_the_packages_asked_for_and_torch(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # no process is started
    distribution(site, "second_one", "0.1")
    (site / "second_one.py").write_text("raise RuntimeError('imported')")
    stack = environment.of_this_interpreter(NAMES)
    assert list(stack.packages) == ["second-one", "torch"]
    assert stack.packages["second-one"] == Exact("0.1")
    assert stack.packages["torch"].public.startswith("2.")
    assert stack.complete
    assert stack.interpreter is not None
    assert stack.interpreter.executable == sys.executable
    assert stack.interpreter.packages["second-one"].folder == str(site)
    assert stack.where.endswith(f"python (Python {platform.python_version()})")


@pytest.mark.parametrize(
    ("version", "direct_url", "expected"),
    [
        ("1.2.3", None, Exact("1.2.3")),
        ("1.2.3", GIT, Unknown("installed from git", "1.2.3")),
        ("1.2.3", EDITABLE, Unknown("an editable install", "1.2.3")),
        ("1.2.3", {"url": "file:///up", "dir_info": {}}, Unknown("a local folder", "1.2.3")),
        (
            "1.2.3",
            {"url": "file:///up-1.2.3.whl", "archive_info": {}},
            Unknown("a local file", "1.2.3"),
        ),
        (
            "1.2.3",
            {"url": "https://host/up-1.2.3.whl", "archive_info": {}},
            Unknown("a file from the web", "1.2.3"),
        ),
        ("1.2.3", {"url": CONDA, "dir_info": {}}, Exact("1.2.3")),
        ("1.2.3", [], Unknown("its direct_url.json cannot be read", "1.2.3")),
        ("1.3.0.dev0", None, Exact("1.3.0.dev0")),
        ("1.3.0+cu121", None, Exact("1.3.0")),
        ("1.2.3+a5b6", None, Unknown("a build with the label +a5b6", "1.2.3+a5b6")),
        ("weird", None, Unknown("'weird' is not a version")),
    ],
)
def test_what_is_no_release_of_an_index_has_an_origin(
    site: Path, version: str, direct_url: object, expected: Installed
) -> None:
    distribution(site, "up", version, direct_url)
    assert up_here() == expected


def test_a_checkout_after_setup_py_develop_is_an_editable_install(site: Path) -> None:
    checkout = site.parent / "checkout"
    for folder in (checkout, site):
        egg = folder / "up.egg-info"
        egg.mkdir(parents=True)
        (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: up\nVersion: 1.2.3\n")
        sys.path.insert(0, str(folder))  # the fixture restores it
        editable, release = Unknown("an editable install", "1.2.3"), Exact("1.2.3")
        assert up_here() == (editable if folder == checkout else release)


def test_damaged_metadata_give_no_version(site: Path) -> None:
    distribution(site, "up", "1.0")
    second = distribution(site, "up", "2.0")
    assert up_here() == Unknown("its folder has the metadata of 1.0 and 2.0")
    for folder in site.iterdir():
        (folder / "METADATA").unlink()
    assert up_here() == Unknown("its version is not recorded")
    assert second.is_dir()


# Another interpreter


@pytest.fixture
def venv_folder(tmp_path: Path) -> Path:
    """The folder of a virtual environment with ``up`` 1.2.3."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    distribution(packages(folder), "up", "1.2.3")
    return folder


def packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))


def customize(folder: Path, code: str) -> None:
    """Have an interpreter run code at its start. Debian's has a ``sitecustomize`` that precedes any
    other."""
    (packages(folder) / "customize.pth").write_text("import _customized\n")
    (packages(folder) / "_customized.py").write_text(textwrap.dedent(code))


def test_another_interpreter_is_asked_by_its_folder_or_its_program(
    venv_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(packages(venv_folder), "torch", "2.13.0+cu130")
    distribution(packages(venv_folder), "second_one", "1.0", GIT)
    monkeypatch.chdir(venv_folder.parent)
    for path in (Path("env"), Path("env/bin/python"), venv_folder):
        stack = environment.of_interpreter(path, NAMES)
        assert stack.packages == {
            "up": Exact("1.2.3"),
            "second-one": Unknown("installed from git", "1.0"),
            "torch": Exact("2.13.0"),
        }
        assert stack.where == f"env/bin/python (Python {platform.python_version()})"
        assert stack.complete
        assert stack.interpreter is not None
        assert stack.interpreter.executable == str(venv_folder / "bin" / "python")
        assert stack.interpreter.site == str(packages(venv_folder))


def test_our_environment_does_not_change_what_another_interpreter_finds(
    venv_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path / "ours", "second_one", "1.0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    (tmp_path / "json.py").write_text("raise RuntimeError('the working directory is on the path')")
    monkeypatch.chdir(tmp_path)
    assert list(environment.of_interpreter(venv_folder, NAMES).packages) == ["up"]


@pytest.mark.parametrize(
    "code",
    [
        "print('hello'); print('no line end', end='')",
        "import sys; print('warning: hello', file=sys.stderr)",
        "import atexit, sys; atexit.register(print, 'bye'); sys.stdout.write('distributions: {')",
        "import os; os.write(1, b'no line end')",
        'print(\'not its answer {"python": "1", "packages": {}}\', flush=True)',
        "import sys; sys.stdout = sys.stderr = None",
        "raise RuntimeError('it is only reported')",
        "import atexit, os; atexit.register(os._exit, 3)",
    ],
)
def test_a_noisy_interpreter_is_understood(venv_folder: Path, code: str) -> None:
    customize(venv_folder, code)
    assert environment.of_interpreter(venv_folder, NAMES).packages == {"up": Exact("1.2.3")}


OTHER_ANSWERS = (
    *("5", '{"python": "3"}', '{"python": 3, "site": 4, "packages": [], "owners": 6}'),
    '{"python": "3", "site": "", "owners": {}, "packages": {"up": {"versions": [],'
    ' "direct_url": "", "source": 0, "folder": ""}}}',
    '{"python": "3", "site": "", "owners": {}, "packages": {"up": {"wheels": 1}}}',
)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os, sys; print('no licence', file=sys.stderr, flush=True); os._exit(3)",
         "gives no answer: exit code 3, no licence"),
        ("import os; os.abort()", f"gives no answer: signal {signal.SIGABRT:d}, no message"),
        ("import os; os._exit(0)", "gives no answer: exit code 0, no message"),
        ("print('distributions: nonsense'); import os, sys; sys.stdout.flush(); os._exit(0)",
         "gives no answer"),
        *((f"print('distributions: {answer}'); import os, sys; sys.stdout.flush(); os._exit(0)",
           "gives an answer in another form") for answer in OTHER_ANSWERS),
    ],
)  # fmt: skip
def test_an_interpreter_that_crashes_is_inconclusive(
    venv_folder: Path, code: str, message: str
) -> None:
    customize(venv_folder, code)
    with pytest.raises(Inconclusive, match=message) as caught:
        environment.of_interpreter(venv_folder, NAMES)
    assert "\n" not in str(caught.value)


STARTS = """
    import os, subprocess, sys, time
    for alone in (False, True):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=alone)
        with open({pids!r}, "a") as file:
            print(child.pid, file=file)
    time.sleep({seconds})
"""


def test_an_interpreter_that_hangs_is_ended_with_all_that_it_started(
    venv_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end after 20 s by itself; its children would not."""
    pids = tmp_path / "pids"
    customize(venv_folder, STARTS.format(pids=str(pids), seconds=20))
    monkeypatch.setattr(interpreter, "LIMIT", 2.0)
    with pytest.raises(Inconclusive, match="does not answer within 2 s: see its sitecustomize"):
        environment.of_interpreter(venv_folder, NAMES)
    assert len(pids.read_text().split()) == 2
    check_end(pids)


def test_a_training_library_of_an_interpreter_that_the_catalogue_does_not_have_is_named(
    venv_folder: Path,
) -> None:
    (site,) = venv_folder.glob("lib/python*/site-packages")
    for name in ("rl_games", "verl"):
        (site / f"{name}-1.0.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (site / f"{name}-1.0.dist-info" / "METADATA").write_text(text)
    stack = environment.of_interpreter(venv_folder, NAMES)
    assert stack.packages == {"up": Exact("1.2.3")}
    assert stack.notes == (
        "no bug of rl-games and verl is recorded here, which does not mean that they have none",
    )


def test_what_an_interpreter_leaves_behind_is_ended(venv_folder: Path, tmp_path: Path) -> None:
    """It keeps the streams open, which must not count as a hang."""
    pids = tmp_path / "pids"
    customize(venv_folder, STARTS.format(pids=str(pids), seconds=0))
    assert "up" in environment.of_interpreter(venv_folder, NAMES).packages
    assert pids.read_text()
    check_end(pids)


def check_end(pids: Path) -> None:
    """Zombies have ended."""
    within(
        PATIENCE, lambda: not any(lives(int(pid)) for pid in pids.read_text().split()), "their end"
    )


def test_what_is_no_interpreter_is_a_mistake(venv_folder: Path, tmp_path: Path) -> None:
    def check(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            environment.of_interpreter(path, NAMES)

    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "program").write_text("hello")
    (tmp_path / "program").chmod(0o755)
    check(tmp_path / "nowhere", "no interpreter .*nowhere")
    check(tmp_path / "empty", "empty is no environment: it has no bin/python")
    check(tmp_path / "text", "cannot start .*text: Permission denied")
    check(tmp_path / "program", "cannot start .*program: Exec format error")
    (venv_folder / "bin" / "python").unlink()
    (venv_folder / "bin" / "python").symlink_to("gone")
    check(venv_folder, "it has no bin/python")
