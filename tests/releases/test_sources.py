"""Checkouts and patches as pins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs.pins import is_source
from harness.bugs.results import Status
from harness.releases import edits, patches, sources
from harness.run import branch, command_line
from harness.run.branch import Judged
from harness.system.errors import HarnessError, Inconclusive, UserError
from tests.made_up import cell_of
from tests.overlays import lent_release
from tests.sandbox import git

NAME = "accelerate"
YES, NO = Status.AFFECTED, Status.NOT_AFFECTED
PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1.2.0.dev0"
[tool.setuptools]
packages = ["{module}"]
"""


def commit(folder: Path, text: str, message: str, name: str = NAME) -> str:
    """Commit a package whose code is ``text``."""
    module = folder / name.replace("-", "_")
    module.mkdir(exist_ok=True)
    (module / "__init__.py").write_text(text)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, module=module.name))
    (folder / ".gitignore").write_text("ignored\n")
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with three commits, the first of which is tagged."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    commit(folder, "VALUE = 1\n", "First")
    git(folder, "tag", "v1.1.0")
    commit(folder, "VALUE = 2\n", "Second (#7)")
    commit(folder, "VALUE = 3\n", "Third")
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a checkout, git's own included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def code(source: sources.Source) -> str:
    """The code in a source's wheel."""
    import zipfile

    with zipfile.ZipFile(source.wheel) as wheel:
        return wheel.read(f"{NAME}/__init__.py").decode()


@pytest.mark.slow
@pytest.mark.launch
def test_a_checkout_is_pinned_as_it_is_and_stays_as_it_was(checkout: Path, cache: Path) -> None:
    (checkout / NAME / "__init__.py").write_text("VALUE = 'not committed'\n")
    (checkout / "ignored").write_text("no part of it")
    before = snapshot(checkout)
    version = sources.pinned(NAME, str(checkout), cache)
    assert snapshot(checkout) == before
    assert is_source(version)
    source = sources.of(NAME, version, cache)
    assert code(source) == "VALUE = 'not committed'\n"
    assert version.startswith(f"1.2.0.dev0+g{source.commit[:12]}.d")
    assert str(source) == (
        f"accelerate 1.2.0.dev0 at {source.commit[:12]} "
        "(2 commits after v1.1.0, with changed files)"
    )
    (checkout / NAME / "__init__.py").write_text("VALUE = 'again'\n")
    assert sources.pinned(NAME, str(checkout), cache) != version


@pytest.mark.slow
@pytest.mark.launch
def test_a_commit_is_pinned_without_what_came_later(checkout: Path, cache: Path) -> None:
    (checkout / NAME / "__init__.py").write_text("VALUE = 'not committed'\n")
    version = sources.pinned(NAME, f"{checkout}@v1.1.0", cache)
    source = sources.of(NAME, version, cache)
    assert (code(source), source.changed, source.title) == ("VALUE = 1\n", False, "First")
    wheel = Path(source.wheel)
    build_time = wheel.stat().st_mtime_ns
    assert sources.pinned(NAME, f"{checkout}@{source.commit}", cache) == version
    assert wheel.stat().st_mtime_ns == build_time, "it was built a second time"
    address = f"git+file://{checkout}@main~1"
    assert code(sources.of(NAME, sources.pinned(NAME, address, cache), cache)) == "VALUE = 2\n"


def test_a_history_has_the_commits_between_two_with_their_titles(
    checkout: Path, cache: Path
) -> None:
    history = sources.history(NAME, f"{checkout}@v1.1.0..main", cache)
    assert [history.title(each) for each in history.commits] == ["First", "Second (#7)", "Third"]
    assert history.changed(history.commits[1]) == [f"{NAME}/__init__.py"]
    with pytest.raises(UserError, match="name the older first"):
        sources.history(NAME, f"{checkout}@main..v1.1.0", cache)


def _no_git(folder: Path) -> str:
    (folder / "plain").mkdir()
    return str(folder / "plain")


def _other_package(folder: Path) -> str:
    (folder / "other").mkdir()
    commit(folder / "other", "", "Other", name="peft")
    return str(folder / "other")


def _broken(folder: Path) -> str:
    (folder / "broken").mkdir()
    commit(folder / "broken", "", "Broken")
    (folder / "broken" / "pyproject.toml").write_text("[project]\nname = 'accelerate'\n")
    return str(folder / "broken")


@pytest.mark.launch
@pytest.mark.parametrize(
    ("value", "message", "code"),
    [
        (lambda folder: f"{folder}/nowhere", "there is no folder", 2),
        (_no_git, "is no git repository; name a checkout of accelerate", 2),
        (lambda folder: f"{folder}/checkout@v9", "no commit 'v9' in .* such as v1.1.0", 2),
        (_other_package, "this is the source of peft, not of accelerate", 2),
        (_broken, "could not be installed", 3),
    ],
)
def test_a_mistake_is_one_line(
    checkout: Path, cache: Path, value: Callable[[Path], str], message: str, code: int
) -> None:
    with pytest.raises(HarnessError, match=message) as raised:
        sources.pinned(NAME, value(checkout.parent), cache)
    assert raised.value.exit_code == code
    assert "\n" not in str(raised.value)
    assert {path.suffix for path in (cache / "sources").glob("*")} <= {".lock"}


CHANGE = """\
--- a/src/accelerate/loader.py
+++ b/src/accelerate/loader.py
@@ -1,3 +1,3 @@
 first
-second
+changed
 third
--- a/tests/test_loader.py
+++ b/tests/test_loader.py
@@ -1 +1 @@
-old
+new
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    (folder / NAME).mkdir(parents=True)
    (folder / NAME / "loader.py").write_text("first\nsecond\nthird\n")
    return folder


def test_a_patch_changes_the_installed_files_and_keeps_other_links(site: Path) -> None:
    os.link(site / NAME / "loader.py", site.parent / "another overlay's")
    compiled = site / NAME / "__pycache__" / "loader.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"of the original")
    assert patches.paths(CHANGE, {NAME: "1.0"}) == {f"{NAME}/loader.py"}
    diff = edits.apply_patch(CHANGE, site, {NAME: "1.0"})
    assert not compiled.exists(), "compiling would write through its link to another overlay"
    assert (site / NAME / "loader.py").read_text() == "first\nchanged\nthird\n"
    assert (site.parent / "another overlay's").read_text() == "first\nsecond\nthird\n"
    assert "+changed" in diff


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            CHANGE.replace("-second", "-unknown"),
            Inconclusive,
            "the hunk at line 1 of accelerate/loader.py does not apply to accelerate 1.0",
        ),
        (CHANGE.replace("loader.py", "lost.py"), Inconclusive, "has no accelerate/lost.py"),
        (CHANGE.replace("src/accelerate", "src/peft"), UserError, "does not contain"),
    ],
)
def test_a_patch_that_does_not_fit_says_where(
    site: Path, change: str, error: type[HarnessError], message: str
) -> None:
    ask = patches.paths if error is UserError else partial(edits.apply_patch, site=site)
    with pytest.raises(error, match=message):
        ask(change, pins={NAME: "1.0"})


@pytest.mark.parametrize("text", ["", "no diff\n", "--- a/x.py\n+++ b/x.py\n@@ -1,5 +1 @@\n-a\n"])
def test_a_file_that_is_no_diff_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "fix.diff").write_text(text)
    with pytest.raises(UserError, match=r"patch=.*fix\.diff"):
        patches.read(str(tmp_path / "fix.diff"))


def test_a_patch_of_torch_is_tried_on_the_bugs_whose_release_is_pinned() -> None:
    """device_math runs what is installed, and ended each patch of torch with a message on pins."""
    config = command_line.compose(["scenario=sequential_lr_resume", "variant=released"])
    siblings = branch.siblings(config)
    assert "ddp_converted" in siblings
    assert "device_math" not in siblings
    for name in siblings:
        assert branch.is_covered(branch.sibling(config, name, ["variant=released"]))


@pytest.mark.parametrize(
    ("status", "newest_status", "text", "code"),
    [
        (YES, NO, "AFFECTED, and accelerate 1.15.0 is not", 1),
        (YES, YES, "affected, like accelerate 1.15.0", 0),
        (NO, YES, "not affected, and accelerate 1.15.0 is: fixed", 0),
        (NO, NO, "not affected, like accelerate 1.15.0", 0),
        (NO, None, "not affected", 0),
        (Status.INCONCLUSIVE, NO, "inconclusive", 3),
    ],
)
def test_a_bug_that_the_newest_release_does_not_have_must_be_absent(
    status: Status, newest_status: Status | None, text: str, code: int
) -> None:
    cell = cell_of("sampler_shards", {}, status, "why")
    judged = Judged(cell, "accelerate 1.15.0", newest_status)
    assert (str(judged), judged.exit_code) == (text, code)


@pytest.fixture
def upstream_checkout(tmp_path: Path) -> Path:
    """A repository with the code of accelerate 0.29.3 and, after an unrelated commit, of 0.30.0."""
    folder = tmp_path / "accelerate"
    folder.mkdir()
    for release in ("0.29.3", "0.30.0"):
        shutil.rmtree(folder / NAME, ignore_errors=True)
        with lent_release("sampler_shards", release) as overlay:
            unlike = shutil.ignore_patterns("__pycache__")
            shutil.copytree(overlay.site / NAME, folder / NAME, ignore=unlike)
        text = PYPROJECT.format(name=NAME, module=NAME).replace("1.2.0.dev0", release)
        needs = 'dependencies = ["numpy<2", "packaging", "psutil", "pyyaml", "huggingface_hub", '
        (folder / "pyproject.toml").write_text(
            text.replace("[tool", f'{needs}"safetensors"]\n[tool').replace(
                f'packages = ["{NAME}"]', "[tool.setuptools.packages.find]\ninclude = ['acc*']"
            )
        )
        if not (folder / ".git").exists():
            git(folder, "init", "--quiet", "--initial-branch=main")
        for message in (f"Release {release}", "Unrelated"):
            (folder / "NOTES").write_text(f"{release} {message}")
            git(folder, "add", "--all")
            git(folder, "commit", "--quiet", "--message", message)
            git(folder, "tag", f"v{release}") if message.startswith("R") else None
    return folder


@pytest.mark.launch
@pytest.mark.slow
def test_upstream_s_checkout_is_tested_mended_and_bisected(
    upstream_checkout: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["scenario=sampler_shards", f"runs={tmp_path / 'runs'}"]
    pin = f"pins.accelerate={upstream_checkout}"
    before = snapshot(upstream_checkout)
    assert main(["run", *words, pin]) == 0
    assert "sampler_shards: not affected, like accelerate" in capsys.readouterr().out
    assert main(["run", *words, f"{pin}@v0.29.3"]) == 1
    assert "AFFECTED, and accelerate" in capsys.readouterr().out
    assert main(["bisect", *words, f"{pin}@v0.29.3..main"]) == 0
    assert "fixed it: Release 0.30.0" in capsys.readouterr().out
    assert snapshot(upstream_checkout) == before
    change = git(upstream_checkout, "diff", "v0.29.3", "v0.30.0", "--", f"{NAME}/data_loader.py")
    (tmp_path / "fix.diff").write_text(f"{change}\n")
    # The fix of one bug brought another: seed_ignored begins with 0.30.0.
    assert main(["run", *words, f"patch={tmp_path / 'fix.diff'}"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "sampler_shards: the patch fixes it, and breaks seed_ignored" in text
