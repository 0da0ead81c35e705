"""The hook of .pre-commit-hooks.yaml, with the real pre-commit in a repository of a user."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.releases import uv
from harness.system.files import ROOT

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("requirements.txt", True),
        ("more/dev-requirements.in", True),
        ("uv.lock", True),
        ("pylock.gpu.toml", True),
        ("environment_gpu.yaml", True),
        ("constraints.in", True),
        ("dev-constraints.txt", True),
        ("conda-lock.yml", True),
        ("pixi.lock", True),
        ("env.yml", True),
        ("conda/conda.yaml", True),
        ("backend/uv.lock", True),
        ("train.py", False),
        ("envelope.yml", False),
        ("requirements.md", False),
        ("Cargo.lock", False),
    ],
)
def test_the_hook_runs_if_a_file_that_names_releases_changes(name: str, expected: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) == expected


def test_the_hook_of_docs_for_a_subfolder_runs_for_its_files_alone() -> None:
    text = (ROOT / "docs" / "check_ci.md").read_text()
    block = text.partition("in a subfolder")[2].partition("```yaml")[2].partition("```")[0]
    (hook,) = yaml.safe_load(block)
    assert hook["args"][:2] == ["-r", "backend"]
    assert re.search(hook["files"], "backend/uv.lock")
    assert not re.search(hook["files"], "frontend/uv.lock")


def run(folder: Path, *words: str) -> tuple[int, str]:
    identity = {
        f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **identity, "PRE_COMMIT_HOME": str(folder.parent / "hooks")}
    process = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return process.returncode, process.stdout + process.stderr


@pytest.mark.slow
def test_a_commit_with_a_bug_is_refused_and_others_pass(tmp_path: Path) -> None:
    """Installs pre-commit, and this checkout as its hook, from the index."""
    source, folder = tmp_path / "source", tmp_path / "repository"
    subprocess.run(["git", "clone", "--quiet", ROOT, source], check=True)
    for name in (".pre-commit-hooks.yaml", "pyproject.toml"):
        (source / name).write_text((ROOT / name).read_text())
    run(source, "git", "add", "--all")
    run(source, "git", "commit", "--quiet", "--allow-empty", "--message", "this checkout")
    _, revision = run(source, "git", "rev-parse", "HEAD")
    folder.mkdir()
    run(folder, "git", "init", "--quiet")
    words = {"id": "distributed-bugs", "args": ["--fail-on", "any"]}
    hook = {"repo": str(source), "rev": revision.strip(), "hooks": [words]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [hook]}))
    code, printed = run(folder, uv.binary(), "tool", "run", "pre-commit", "install")
    assert code == 0, printed
    for name, text, expected in (
        ("train.py", "import torch\n", 0),
        ("requirements.txt", "deepspeed==0.13.2\n", 1),
    ):
        (folder / name).write_text(text)
        run(folder, "git", "add", "--all")
        code, printed = run(folder, "git", "commit", "--message", name)
        assert code == expected, printed
        assert ("clip_max_for_min" in printed) == bool(expected), printed
