"""The command guard: what it refuses, what it runs, what it reports, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.overlays import lent
from tests.sandbox import PATIENCE, ROOT, Ended, Sandbox, ended, refused

Capture = pytest.CaptureFixture[str]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One for all tests, as the file with the bugs of the catalogue is written once."""
    folder = tmp_path_factory.mktemp("guard")
    sandbox = Sandbox.under(folder, folder / "cache")
    (sandbox.cwd / "train.py").write_text(TRAIN)
    yield sandbox
    sandbox.end()


TRAIN = """\
import importlib.util, os, signal, sys, time
importlib.util.find_spec("torch")  # as transformers does
import torch
import torch.nn.functional as F

rank = int(os.environ.get("RANK", 0))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
wrapped = torch.nn.parallel.DistributedDataParallel(model) if "RANK" in os.environ else model
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torch.manual_seed(1 + rank)


stops = []
signal.signal(signal.SIGUSR1, lambda *_: print("got USR1", flush=True))
if "save" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
for step in range(1000 if "endless" in sys.argv else 8):
    F.cross_entropy(wrapped(torch.randn(4, 8)), torch.randint(0, 4, (4,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and rank == 1 and "fault" in sys.argv:
        with torch.no_grad():
            model.weight[0, 0] += 1
    if "endless" in sys.argv:
        time.sleep(0.2)
        print("step", step, flush=True)
    if "save" in sys.argv:  # all ranks stop in the same step: one may be in a collective
        total = torch.tensor(len(stops))
        torch.distributed.all_reduce(total)
        if total:
            print("saved by", rank, flush=True)
            break
print("trained", flush=True)
sys.exit(int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 0)
"""


def guard(sandbox: Sandbox, *words: str, **environment: str) -> Ended:
    """How a guarded command ends; nothing of it is left then."""
    end = sandbox.run("guard", *words, **environment)
    assert_nothing_left(sandbox)
    return end


def assert_nothing_left(sandbox: Sandbox) -> None:
    assert sandbox.living() == []
    assert list(sandbox.cache.glob("guard/.*")) == []


# -- mistakes --


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["the command of the training is missing", "torchrun --nproc-per-node 8 train.py"]),
        ("--quiet", ["the command of the training is missing"]),
        ("--", ["the command of the training is missing"]),
        ("no_such_command", ["no command 'no_such_command': write one like torchrun"]),
        ("train.py", ["no command 'train.py': write python train.py"]),
        ("--budgets 1 true", ["unrecognized arguments: --budgets", "--help"]),
        ("--budget 0 true", ["--budget: 0: write a number from 0.01 to 100"]),
        ("--budget much true", ["--budget: much: write a number from"]),
        ("--budget nan true", ["--budget: nan: write a number from"]),
        ("--every 0 true", ["--every: 0: write a whole number from 1"]),
        ("--checks replica true", ["no check 'replica': did you mean replicas?", "scaler."]),
        ("--on-alarm shout true", ["no action 'shout'", "warn, stop, signal:NAME, command:WORDS"]),
        ("--on-alarm command: true", ["no action 'command:'"]),
        ("--on-alarm signal:USR9 true", ["no signal 'USR9': did you mean USR", "TERM"]),
        ("--out file true", ["--out: file is not a folder"]),
        ("--out file/in true", ["cannot write ", "file/in"]),
        ("--keep-posts true", ["--keep-posts needs --out FOLDER"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_choices_and_leaves_nothing(
    words: str, parts: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "Popen", None)
    Path("file").write_text("")
    Path("train.py").write_text("")
    complaint = refused(capsys, ["guard", *words.split()])
    assert all(part in complaint for part in parts), complaint
    assert {path.name for path in tmp_path.iterdir()} == {"file", "train.py"}


# -- commands that train nothing --


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 7])
def test_a_command_keeps_its_code_and_output_and_no_training_was_seen(
    code: int, sandbox: Sandbox
) -> None:
    end = guard(sandbox, sys.executable, "-c", f"print('mine'); raise SystemExit({code})")
    assert (end.code, end.out) == (code, "mine\n")
    assert "guard: no training was seen" in end.err


@pytest.mark.slow
def test_arguments_of_the_command_are_not_ours(sandbox: Sandbox) -> None:
    code = "import sys; print(sys.argv[1:])"
    words = ["--debug", "--budget", "0", "--help"]
    assert guard(sandbox, sys.executable, "-c", code, *words).out == f"{words}\n"


@pytest.mark.slow
def test_a_command_that_a_signal_ends_has_the_code_of_a_shell(sandbox: Sandbox) -> None:
    assert guard(sandbox, "bash", "-c", "kill -9 $$").code == 128 + signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_ignores_the_path_is_told_with_the_line_for_the_script(
    flag: str, sandbox: Sandbox
) -> None:
    end = guard(sandbox, sys.executable, flag, "-c", "raise SystemExit(4)")
    assert end.code == 4
    assert "guard: no Python of this command was reached: python -I, -S" in end.err
    assert "import distributed_bugs; distributed_bugs.guard()" in end.err


@pytest.mark.slow
def test_an_interpreter_without_torch_is_not_disturbed(sandbox: Sandbox) -> None:
    code = (
        "import importlib.util as u; print(u.find_spec('torch'), len(__import__('json').dumps(1)))"
    )
    python = sys.base_prefix + "/bin/python3"
    end = guard(sandbox, python, "-c", code)
    assert end.code == 0
    assert end.out == "None 1\n"
    assert end.err.count("\n") == 1 or "once" in end.err


@pytest.mark.slow
def test_a_sitecustomize_and_a_pythonpath_of_the_user_stay(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'custom'\n")
    (tmp_path / "my_module.py").write_text("import sys; print(sys.mine)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    end = guard(sandbox, sys.executable, "-c", "import my_module", PYTHONPATH=path)
    assert (end.code, end.out) == (0, "custom\n")


# -- trainings --


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--nproc-per-node", "2", "train.py"),
        (sys.executable, "train.py"),
        (*TORCHRUN, "train.py"),
        ("bash", "-c", f"{sys.executable} train.py && true"),
    ],
    ids=["torchrun", "python", "module", "shell"],
)
def test_a_right_training_is_watched_without_an_alarm(
    words: tuple[str, ...], sandbox: Sandbox, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    end = guard(sandbox, "--fail", "--out", str(out), *words, PATH=path)
    assert end.code == 0, end.err
    assert end.out.count("trained") == (1 if "train.py" in words[1:2] or "bash" in words else 2)
    assert "8 steps, " in end.err
    assert "no alarm" in end.err
    assert json.loads((out / "summary.json").read_text())["steps"] == 8
    assert not (out / "alarms.jsonl").exists()


@pytest.mark.slow
def test_an_alarm_changes_the_code_only_with_fail_and_only_code_0(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    alarm = "guard: ALARM: step 3, rank 1: replicas: "
    end = guard(sandbox, *TORCHRUN, "train.py", "fault")
    assert (end.code, end.err.count(alarm)) == (0, 1), end.err
    out = tmp_path / "new" / "out"
    words = ("--fail", "--out", str(out), "--keep-posts")
    end = guard(sandbox, *words, *TORCHRUN, "train.py", "fault")
    assert (end.code, end.err.count(alarm)) == (1, 1), end.err
    (line,) = (out / "alarms.jsonl").read_text().splitlines()
    assert json.loads(line)["parameters"] == ["weight"]
    end = sandbox.run("guard-report", str(out), "--judge", "--html", str(tmp_path / "a.html"))
    assert end.code == 0, end.err
    assert alarm.removeprefix("guard: ") in end.out
    assert "checks again: the same 1 faults" in end.out
    assert "<svg" in (tmp_path / "a.html").read_text()
    end = guard(sandbox, *words, *TORCHRUN, "train.py")  # into the same folder, without an alarm
    assert end.code == 0


@pytest.mark.slow
def test_stop_ends_all_ranks_by_sigterm_so_that_each_can_save(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--on-alarm", "stop", *TORCHRUN, "train.py", "fault", "endless", "save")
    assert end.code == 1
    assert {line for line in end.out.splitlines() if "saved" in line} == {
        "saved by 0",
        "saved by 1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("through", [(), ("guard", "--out", "GIVEN")], ids=["alone", "command"])
def test_a_line_in_the_script_does_the_same(
    through: tuple[str, ...], sandbox: Sandbox, tmp_path: Path
) -> None:
    """Under the command, in an interpreter that leaves its files out, its options hold."""
    out, given = tmp_path / "out", tmp_path / "given"
    call = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from harness.console_script import guard"
    script = tmp_path / "train.py"
    script.write_text(f"{call}; guard(out={str(out)!r})\n{TRAIN}")
    words = [sys.executable, "-I", str(script)]
    if through:
        end = guard(
            sandbox, *[str(given) if word == "GIVEN" else word for word in through[1:]], *words
        )
        assert "no Python" not in end.err
    else:
        end = ended(subprocess.Popen(words, stdout=-1, stderr=-1, text=True))
    assert end.code == 0, end.err
    assert "guard: 8 steps, " in end.err
    summary = json.loads(((given if through else out) / "summary.json").read_text())
    assert summary["steps"] == 8


@pytest.mark.slow
@pytest.mark.launch
def test_a_known_bug_that_the_run_sets_off_is_named_after_one_step(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with lent("trainer_gas_twice", "buggy") as overlays:
        path = os.pathsep.join([str(ROOT), str(overlays["buggy"].folder / "site-packages")])
        loop = [str(ROOT / "loops" / "trainer.py"), "--model", "llama", "--use_cpu"]
        loop += ["--output_dir", str(tmp_path), "--gradient_accumulation_steps"]
        words = ("--check-only", "--fail", *TORCHRUN, *loop)
        end = guard(sandbox, *words, "2", PYTHONPATH=path)
        assert end.code == 1, end.err
        assert end.err.count("guard: KNOWN BUG trainer_gas_twice: ") == 1
        end = guard(sandbox, *words, "1", PYTHONPATH=path)
        assert "KNOWN BUG trainer_gas_twice" not in end.err
        # The release also has trainer_counts_first_label, which the loss shows.
        assert end.code == 1, end.err
        assert end.err.count("guard: ALARM") == 1
        assert "it is divided by another number of tokens than it has" in end.err
        accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
        accelerate += ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
        words = (*accelerate, "--dynamo_backend", "no", "train.py")
        end = guard(sandbox, *words, PYTHONPATH=path)
        assert end.code == 0, end.err
        assert "guard: 8 steps, " in end.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "code", "part"),
    [("command:echo $GUARD_ALARM", 0, '"check": "replicas"'), ("signal:USR1", 0, "got USR1")],
    ids=["command", "signal"],
)
def test_an_alarm_does_what_the_option_says(
    action: str, code: int, part: str, sandbox: Sandbox
) -> None:
    end = guard(sandbox, "--on-alarm", action, *TORCHRUN, "train.py", "fault")
    assert end.code == code, end.err
    assert part in end.out


@pytest.mark.slow
def test_check_only_ends_after_one_step(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--check-only", *TORCHRUN, "train.py", "endless")
    assert end.code == 0, end.err
    assert "step 1\n" not in end.out
    assert "guard: watches torch" in end.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "words",
    [(*TORCHRUN, "train.py", "endless"), ("bash", "-c", "python train.py endless; true")],
    ids=["torchrun", "shell"],
)
def test_a_signal_ends_the_training_and_all_its_processes(
    number: signal.Signals, words: tuple[str, ...], sandbox: Sandbox
) -> None:
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    process = sandbox.start("guard", *words, PATH=path)
    wait_for_step(process)
    process.send_signal(number)
    assert ended(process).code != 0
    assert_nothing_left(sandbox)


@pytest.mark.slow
def test_another_signal_is_passed_on(sandbox: Sandbox) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); "
        "print('step', flush=True); signal.pause()"
    )
    process = sandbox.start("guard", sys.executable, "-c", code)
    wait_for_step(process)
    process.send_signal(signal.SIGUSR1)
    assert ended(process).code == 9


def wait_for_step(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE
    for line in process.stdout:
        if "step" in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError(process.stderr.read() if process.stderr else "it has ended")
