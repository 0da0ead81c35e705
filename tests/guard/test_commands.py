"""The command guard: what it runs, what it reports, and its exit codes."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.guard.commands import PATH, TWO, guard, packages, printed
from tests.guard.trainer import summary_of
from tests.sandbox import ROOT, Sandbox

pytestmark = pytest.mark.slow

LATE = """\
import torch
from torch.nn.functional import cross_entropy

old = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1) for _ in range(20)]
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
from harness.console_script import guard

guard(checks="replicas, accumulation")
for step in range(8):
    for _ in range(3):
        cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 4, (4,))).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_keeps_its_code_and_output_and_no_training_was_seen(
    code: int, sandbox: Sandbox
) -> None:
    end = guard(sandbox, sys.executable, "-c", f"print('mine'); raise SystemExit({code})")
    assert (end.code, end.out) == (code, "mine\n")
    assert "guard: no training was seen" in end.err
    assert ("ended with code 7 before" in end.err) == (code == 7)


def test_with_fail_a_command_without_a_training_is_no_success(sandbox: Sandbox) -> None:
    for words in (("-c", "pass"), ("-I", "-c", "pass")):
        assert guard(sandbox, "--fail", sys.executable, *words).code == 3
    assert guard(sandbox, "--fail", sys.executable, "-c", "raise SystemExit(7)").code == 7


def test_the_report_of_a_training_that_failed_says_so(sandbox: Sandbox, tmp_path: Path) -> None:
    command = f"'{sys.executable}' train.py; exit 7"
    end = guard(sandbox, "--out", str(tmp_path), "bash", "-c", command)
    assert end.code == 7
    assert "guard: the command ended with code 7" in end.err
    assert summary_of(tmp_path)["exit_code"] == 7
    assert "the command ended with code 7" in sandbox.run("guard-report", str(tmp_path)).out


def test_arguments_of_the_command_are_not_ours(sandbox: Sandbox) -> None:
    code = "import sys; print(sys.argv[1:])"
    words = ["--debug", "--budget", "0", "--help"]
    assert guard(sandbox, sys.executable, "-c", code, *words).out == f"{words}\n"


def test_a_command_that_a_signal_ends_has_the_code_of_a_shell(sandbox: Sandbox) -> None:
    assert guard(sandbox, "bash", "-c", "kill -9 $$").code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--nproc-per-node", "2", "train.py"),
        (sys.executable, "train.py"),
        (*TWO, "train.py"),
        ("bash", "-c", f"{shlex.quote(sys.executable)} train.py && true"),
    ],
    ids=["torchrun", "python", "module", "shell"],
)
def test_a_right_training_is_watched_without_an_alarm(
    words: tuple[str, ...], sandbox: Sandbox, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    end = guard(sandbox, "--fail", "--out", str(out), *words, PATH=PATH)
    assert end.code == 0, end.err
    assert end.out.count("trained") == (1 if "train.py" in words[1:2] or "bash" in words else 2)
    assert "8 steps, " in end.err
    assert "no alarm" in end.err
    assert summary_of(out)["steps"] == 8
    assert not (out / "alarms.jsonl").exists()


def test_an_alarm_changes_the_code_only_with_fail_and_only_code_0(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    alarm = "guard: ALARM: step 3, rank 1: replicas: "
    end = guard(sandbox, *TWO, "train.py", "fault")
    assert (end.code, end.err.count(alarm)) == (0, 1), end.err
    out = tmp_path / "new" / "out"
    words = ("--fail", "--out", str(out))
    end = guard(sandbox, *words, *TWO, "train.py", "fault")
    assert (end.code, end.err.count(alarm)) == (1, 1), end.err
    (line,) = (out / "alarms.jsonl").read_text().splitlines()
    assert json.loads(line)["parameters"] == ["weight"]
    end = sandbox.run("guard-report", str(out))
    assert end.code == 0, end.err
    assert alarm.removeprefix("guard: ") in end.out
    end = guard(sandbox, *words, *TWO, "train.py")  # into the same folder, without an alarm
    assert end.code == 0


def test_ranks_that_train_alone_are_said_to_be_unseen(sandbox: Sandbox) -> None:
    """They may train a model of their own each."""
    loop = [str(ROOT / "loops" / "ddp.py"), "--batch-size", "4", "--accum", "3"]
    end = guard(sandbox, *TWO, *loop, "--bug", "no all-reduce", PYTHONPATH=str(ROOT))
    assert "guard: ALARM" not in end.err
    for check in ("gradients", "replicas"):
        assert f"not seen: {check} are not compared: perhaps each rank trains a model" in end.err


def test_the_line_in_the_script_may_come_after_the_optimizer(sandbox: Sandbox) -> None:
    """And after the loss was imported by its name."""
    (sandbox.cwd / "late.py").write_text(LATE)
    errors = printed(sandbox, sys.executable, "late.py")
    assert "not seen: the step counts the loss 3 times instead of once" in errors
    assert "not seen: the first step after guard(): " in errors


FIRST = """\
import sys, torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model, rows = torch.nn.Linear(4, 2), torch.randn(8, 4) + dist.get_rank()
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
from harness.console_script import guard

guard()
for step in range(int(sys.argv[1])):
    targets = torch.zeros(8, dtype=torch.long)
    scaler.scale(torch.nn.functional.cross_entropy(model(rows), targets)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("steps", [1, 12])
def test_the_first_step_is_seen_if_the_line_comes_after_the_optimizer(
    sandbox: Sandbox, steps: int
) -> None:
    (sandbox.cwd / "first.py").write_text(FIRST)
    errors = printed(sandbox, *TWO, "first.py", str(steps))
    assert f"{steps} step" in errors
    assert "no alarm" in errors
    assert "the first step" not in errors


TWO_OPTIMIZERS = """\
import gc, torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
gc.disable()
try:
    torch.optim.SGD(torch.nn.Linear(1, 1).weight, 0.1)  # its constructor fails
except TypeError as error:
    kept = error
models, rows = [torch.nn.Linear(4, 2) for _ in range(3)], torch.randn(8, 4) + dist.get_rank()
optimizers = [torch.optim.SGD(models[0].parameters(), 0.1)]
if dist.get_rank():
    gc.collect(1)  # the collector then lists it behind the next one, on this rank alone
optimizers += [torch.optim.SGD(model.parameters(), 0.1) for model in models[1:]]
from harness.console_script import guard

guard()
for step in range(8):
    for model, optimizer in zip(models[:2], optimizers):  # the third one is not trained
        torch.nn.functional.cross_entropy(model(rows), torch.zeros(8, dtype=torch.long)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_optimizers_that_were_made_before_the_line_are_the_same_on_all_ranks(
    sandbox: Sandbox,
) -> None:
    (sandbox.cwd / "two.py").write_text(TWO_OPTIMIZERS)
    errors = printed(sandbox, *TWO, "two.py")
    assert "guard: watches torch " in errors
    assert "2 ranks" in errors
    assert "no two ranks have copies" not in errors
    assert "guard: ALARM: " not in errors


@pytest.mark.launch
def test_a_known_bug_that_the_run_sets_off_is_named_after_one_step(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with packages("trainer_gas_twice") as path:
        loop = [str(ROOT / "loops" / "trainer.py"), "--model", "llama", "--use_cpu"]
        loop += ["--output_dir", str(tmp_path), "--gradient_accumulation_steps"]
        words = ("--check-only", "--fail", *TWO, *loop)
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


def test_an_alarm_does_what_the_option_says(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--on-alarm", "command:echo $GUARD_ALARM", *TWO, "train.py", "fault")
    assert end.code == 0, end.err
    assert '"check": "replicas"' in end.out


def test_check_only_ends_after_one_step(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--check-only", *TWO, "train.py", "endless")
    assert end.code == 0, end.err
    assert "step 1\n" not in end.out
    assert "guard: watches torch" in end.err
