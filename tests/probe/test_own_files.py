"""Runs do not see what other runs wrote, and the user's files stay as they are."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.rank.probe import own_files
from harness.rank.probe.own_files import Written
from harness.system.files import ROOT
from harness.training.probe.layouts import Settings
from harness.training.probe.runner import folders
from harness.training.probe.target import Target

pytestmark = pytest.mark.launch

SAVES = """
import os, pathlib, shutil, sqlite3, sys, tempfile
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from beside import ROWS

rows, k = map(int, sys.argv[1:3])
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 1))
model = DDP(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
here, begun = pathlib.Path(__file__).resolve().parent, 0
found = [f for f in (here / "out/snapshot.pt", pathlib.Path(tempfile.gettempdir(), "state.pt"))
         if f.exists()]
if found:
    saved = torch.load(found[0])
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begun = saved["step"]
batches = list(DataLoader(data, rows, sampler=DistributedSampler(data, shuffle=False)))
for step in range(begun, len(batches) // k):
    for x, y in batches[step * k : (step + 1) * k]:
        ((model(x) - y) ** 2).mean().div(k).backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step + 1}, str(here / "out/snapshot.pt"))
        torch.save({**state, "step": step + 1}, tempfile.gettempdir() + "/state.pt")
        with open("log.txt", "a") as log:
            log.write("a step\\n")
        base = sqlite3.connect("runs.db")
        base.execute("create table if not exists steps (n)")
        base.commit()
        pathlib.Path("linked/w.txt").write_text("new")
        shutil.rmtree("old", ignore_errors=True)
        if os.path.exists("a.txt"):
            os.rename("a.txt", "b.txt")
"""


def fingerprint(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")))
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in files
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    user = tmp_path / "my, folder: one"
    (user / "old").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (user / "linked").symlink_to(tmp_path / "elsewhere")
    (user / "old" / "result").write_text("of last year")
    (user / "a.txt").write_text("mine")
    (user / "log.txt").write_text("mine\n")
    (user / "train.py").write_text(SAVES)
    (user / "beside.py").write_text("ROWS = 96\n")
    monkeypatch.chdir(user)
    return user


@pytest.mark.slow
@pytest.mark.usefixtures("command")
def test_a_script_that_loads_its_own_snapshot_is_right_each_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fingerprint(folder.parent)
    for _ in range(2):
        assert main(["probe", "train.py", "{rows}", "{k}"]) == 0
        assert fingerprint(folder.parent) == before
    printed = capsys.readouterr().out
    assert "files written" in printed
    assert "b.txt, log.txt" in printed
    assert "removed: a.txt, old" in printed
    # A script that always saves and loads resumes without any argument.
    ours = ["--layouts", "resume", "--save", "", "--resume", ""]
    assert main(["probe", *ours, "train.py", "{rows}", "{k}"]) == 0
    assert fingerprint(folder.parent) == before


@pytest.mark.slow
@pytest.mark.usefixtures("command")
def test_a_checkpoint_of_the_user_is_read_and_never_changed(folder: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py", "48", "1"]
    variables = {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder.parent)}
    subprocess.run(launch, check=True, env={**os.environ, **variables})
    saved = folder / "out" / "snapshot.pt"
    import torch

    content = torch.load(saved)
    torch.save({**content, "step": 1}, saved)
    before = fingerprint(folder.parent)
    assert main(["probe", "--steps", "3", "train.py", "{rows}", "{k}"]) == 0
    assert fingerprint(folder.parent) == before


def test_nothing_is_left_by_what_a_forked_process_writes(tmp_path: Path) -> None:
    """Without root as well: the test may run as any user."""
    user, store = tmp_path / "user", tmp_path / "own"
    user.mkdir()
    (user / "kept").write_text("mine")
    child = os.fork()
    if not child:
        own_files.cover([str(user)], store, None, [], str(user))
        (user / "kept").write_text("other")
        (user / "new").write_text("new")
        os._exit(0)
    os.waitpid(child, 0)
    changes = own_files.written(store, str(user))
    if changes.refusal:
        pytest.skip(f"no mounts here: {changes.refusal}")
    assert changes == Written({"kept", "new"})
    assert fingerprint(user).keys() == {"kept"}
    assert (user / "kept").read_text() == "mine"
    own_files.remove(store)
    assert not store.exists()


def test_folders_that_links_and_arguments_lead_to_are_covered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home := folder.parent / "home").mkdir()  # a new one: no cache is in it yet
    monkeypatch.setenv("HOME", str(home))
    elsewhere, target = folder.parent / "elsewhere", folder.parent / "other"
    target.mkdir()
    words = [f"--out={target}/run/1", "0.1", "{dir}/x", str(folder / "out")]
    paths = own_files.folders_of(words, folder / "train.py")
    probe = folder.parent / "probe"
    assert set(own_files.beside(paths, probe)) == {str(folder), str(elsewhere), str(target)}
    none = ["/missing/x", "/", "/dev/null", "a" * 5000, "~/.cache/x"]
    paths += own_files.folders_of(none, None)
    assert set(own_files.beside(paths, probe)) == {str(folder), str(elsewhere), str(target)}
    assert set(own_files.beside(paths, folder / "probe")) == {str(elsewhere), str(target)}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs setpriv and root"
)
def test_without_mounts_of_its_own_each_run_has_a_copy_of_the_working_folder(folder: Path) -> None:
    """As in most containers."""
    (folder / "linked").unlink()  # what a link leads to is shared then
    (folder / "linked").mkdir()
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "harness"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in ([], ["--layouts", "resume", "--save", "", "--resume", ""]):
        before = fingerprint(folder.parent)
        command = [*drop, "probe", *words, str(folder / "train.py"), "{rows}", "{k}"]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert not ended.returncode, ended.stdout + ended.stderr
        assert "removed: a.txt, old/result" in ended.stdout
        assert fingerprint(folder.parent) == before


def test_a_large_working_folder_is_not_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "MOST_BYTES", 10)
    assert not own_files._copied(folder, folder.parent / "copy", None)
    assert not (folder.parent / "copy").exists()


def test_a_path_in_the_text_of_a_script_is_covered_too(folder: Path) -> None:
    target = folder.parent / "other"
    target.mkdir()
    (folder / "train.py").write_text(f"torch.save(x, '{target}/new/x.pt'); y = '/'; z = '/n/a'\n")
    assert target in folders(Target("train.py", ()), Settings())
