"""The command as a user types it: what it prints and writes, and its exit codes."""

from __future__ import annotations

import difflib
import json
import sys
import tempfile
import uuid
from itertools import product
from pathlib import Path

import psutil
import pytest
from unidiff import __version__

from harness.__main__ import main
from harness.cli import probe
from tests.made_up import set_gpus
from tests.probe.probing import SCRIPTS
from tests.sandbox import refused
from tests.venvs import environment

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("command")]

GIVEN = ["--batch-size", "{rows}", "--accum", "{k}"]
FILE = "a/src/unidiff/__version__.py"
DDP = str(SCRIPTS / "ddp.py")


@pytest.mark.slow
def test_a_broken_loop_is_reported_as_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file = tmp_path / "answers.json"
    ours = ["--layouts", "accumulation", "--json", str(json_file)]
    code = main(["probe", *ours, "torchrun", DDP, *GIVEN, "--bug", "never divided by k"])
    assert code == 1
    printed = capsys.readouterr().out
    assert "BROKEN at step 1: gradient" in printed
    assert "3 times (never divided by the accumulation steps) the reference's" in printed
    answers = json.loads(json_file.read_text())
    (layout,) = answers["layouts"]
    assert answers["exit_code"] == 1
    assert layout["status"] == "broken"
    assert layout["broken"][0]["ratio"] == pytest.approx(3, rel=1e-4)


TRAINS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), RATE)
for step in range(9):
    optimizer.zero_grad()
    model(torch.randn(12, 4)).square().sum().backward()
    THEN
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("raise ValueError('no data')", "ValueError: no data"),
        (TRAINS.replace("RATE", "0.0").replace("THEN", ""), "its learning rate is 0 in all steps"),
        (
            TRAINS.replace("RATE", "0.1").replace(
                "THEN", "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.0)"
            ),
            "nothing is left of its gradients after clipping",
        ),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("print('done')", "took no step"),
        (
            "import torch; m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.1)\n"
            "for n in range(9):\n  m(torch.ones(2, 4)).softmax(-1).sum().backward(); o.step()",
            "gradients are all 0",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        (  # runs of a probe are no runs of the user's trackers
            "import os; e = os.environ; "
            "raise ValueError(e['WANDB_MODE'] + ' ' + e['DISABLE_MLFLOW_INTEGRATION'])",
            "ValueError: disabled TRUE",
        ),
        (
            "import subprocess, time; subprocess.Popen(['sleep', '{seconds}']); time.sleep(4321)",
            "did not end within 15 s, and was ended; rank 0 was in <module> (train.py, line 1)",
        ),
    ],
)
def test_a_script_without_an_answer_never_ends_with_0(
    script: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = f"4321.{uuid.uuid4().int % 10**9}"  # other tests look for theirs at the same time
    (tmp_path / "train.py").write_text(script.replace("{seconds}", seconds))
    limit = "15" if "Popen" in script else "45"  # that script does nothing before it waits
    code = main(["probe", "--timeout", limit, str(tmp_path / "train.py"), "{rows}"])
    assert code == 3
    assert message in capsys.readouterr().err
    assert not [p for p in psutil.process_iter(["cmdline"]) if seconds in (p.info["cmdline"] or ())]


@pytest.mark.slow
def test_a_patch_changes_what_the_script_imports_and_not_what_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = Path(__version__.__file__)
    before = installed.read_text()
    lines = before.splitlines(keepends=True)
    patched = [*lines, "BUG = ['--bug', 'never divided by k']\n"]
    diff = difflib.unified_diff(lines, patched, FILE, FILE)
    (tmp_path / "fix.diff").write_text("".join(diff))
    asks = "import sys; from unidiff import __version__ as v; sys.argv += getattr(v, 'BUG', [])\n"
    text = Path(DDP).read_text().replace("import argparse\n", f"import argparse\n{asks}", 1)
    (tmp_path / "train.py").write_text(text)
    words = ["--layouts", "accumulation", str(tmp_path / "train.py"), *GIVEN]
    assert main(["probe", *words]) == 0
    assert main(["probe", f"patch={tmp_path / 'fix.diff'}", *words]) == 1
    assert "3 times (never divided by the accumulation steps)" in capsys.readouterr().out
    assert installed.read_text() == before


def test_a_layout_without_an_answer_is_not_as_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "assert dist.get_world_size() == 1, 'only one rank is supported'\n"
    text = Path(DDP).read_text().replace("torch.manual_seed", line + "torch.manual_seed", 1)
    (tmp_path / "train.py").write_text(text)
    code = main(["probe", "--layouts", "ranks", str(tmp_path / "train.py"), *GIVEN])
    assert code == 3
    assert "NO ANSWER: rank" in capsys.readouterr().out


def test_a_script_that_is_not_given_its_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "{rows}" in refused(capsys, ["probe", DDP, "--batch-size", "4"], 2)


def test_arguments_of_the_script_may_begin_with_a_dash() -> None:
    ours = ["--rows", "12", "--save", "--every={at}", "--epoch", "--resume", "--from {dir}"]
    parser = probe._parser()
    ours, script = probe._parted([*ours, "train.py", "--save", "--x"], parser)
    options = parser.parse_args([*ours, *script])
    assert (options.save, options.resume) == ("--every={at}", "--from {dir}")
    assert options.script == ["train.py", "--save", "--x"]


def test_a_machine_without_gpus_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpus(monkeypatch, 0)
    line = refused(capsys, ["probe", "--launch", "gpu", DDP, *GIVEN], 2)
    assert "needs 1 GPU, and this machine has 0" in line


COUNTS = ("--rows", "--ranks", "--reference-ranks", "-k", "--steps")
NO_COUNTS = ("0", "-12", "nan", "inf", "1.5", "", "9" * 40, "9" * 5000)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *product(COUNTS, NO_COUNTS),
        *(("--at", value) for value in ("-1", "nan", "inf", "1e400", "x", "0")),
        *(("--timeout", value) for value in ("-1", "nan", "0", "x")),
    ],
)
def test_a_number_that_no_layout_can_have_is_a_mistake_of_the_command(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(refused(capsys, ["probe", option, value, DDP, *GIVEN], 2)) < 500


@pytest.mark.parametrize("name", ["missing/answers", "."])
def test_files_that_cannot_be_written_are_refused_before_anything_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_answers", None)
    refused(capsys, ["probe", "--json", str(tmp_path / name), DDP, *GIVEN], 2)


@pytest.mark.parametrize("python", ["missing/python", "no-such-python", "."])
def test_an_interpreter_that_is_not_there_is_a_mistake_of_the_command(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert python in refused(capsys, ["probe", "--python", python, DDP, *GIVEN], 2)


@pytest.mark.slow
def test_an_interpreter_needs_torch_and_numpy_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a job has it that installs only these: ranks imported psutil once."""
    python = environment(tmp_path / "venv", "torch", "numpy")
    ours = ["--python", str(python), "--layouts", "ranks"]
    assert main(["probe", *ours, DDP, "--batch-size", "{rows}"]) == 0
    assert "trains the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("packages", "missing"),
    [((), "torch and numpy"), (("torch",), "numpy"), (("numpy",), "torch")],
    ids=["nothing", "torch", "numpy"],
)
@pytest.mark.parametrize("option", ["--python", "--against"])
def test_an_interpreter_without_torch_or_numpy_is_refused(
    option: str,
    packages: tuple[str, ...],
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = environment(tmp_path / "venv", *packages)
    assert main(["probe", option, str(python), DDP, *GIVEN]) == 2
    expected = f"{python} has no {missing}, which probe needs there\n"
    assert capsys.readouterr().err.endswith(expected)


SPAWNS = """
import sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Rows(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, number):
        return torch.full((4,), float(number), device="cuda:0")

if __name__ == "__main__":
    assert torch.cuda.is_available()
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    data = Rows()
    for x in DataLoader(data, int(sys.argv[1]), sampler=DistributedSampler(data), num_workers=1,
                        multiprocessing_context="spawn"):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_spawned_workers_of_a_relative_script_and_interpreter_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What replaces CUDA is there in new interpreters as well."""
    user, temporary = tmp_path / "user", tmp_path / "tmp"
    user.mkdir()
    temporary.mkdir()
    (user / "train.py").write_text(SPAWNS)
    (user / "venv").symlink_to(Path(sys.prefix))
    monkeypatch.chdir(user)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    ours = ["--python", "venv/bin/python", "--layouts", "ranks"]
    assert main(["probe", *ours, "train.py", "{rows}"]) == 0
    assert [path.name for path in temporary.iterdir() if "inductor" not in path.name] == []


@pytest.mark.parametrize(("words", "where"), [([], True), (["--no-where"], False)])
def test_the_place_of_a_fault_is_named_unless_it_is_left_out(words: list[str], where: bool) -> None:
    """The option once got into the field of another one, and no place was named."""
    options = probe._parser().parse_args([*words, "train.py"])
    settings = probe._settings(options)
    assert (settings.where, settings.bugs, settings.against) == (where, "", "")
