"""A script in two environments: probe says whether it trains the same."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.bugs import catalog
from harness.bugs.pins import complete
from harness.cli import probe
from harness.system.errors import Inconclusive, Unsupported, UserError
from harness.system.files import ROOT
from tests.overlays import lent
from tests.slow import slow

HEAD = """
import argparse, copy, os
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
parser.add_argument("--accum", type=int, default=1)
arguments = parser.parse_args()
change = os.environ.get("CHANGE", "")
torch.manual_seed(0)
"""

LOOP = """
for step in range(6):
    for micro in range(arguments.accum):
        start = (step * arguments.accum + micro) * arguments.rows
        x = data[start : start + arguments.rows]
        (LOSS / arguments.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCRIPT = (
    HEAD
    + """
data = torch.randn(96, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
rate = 2e-3 if change == "rate" else 1e-3
optimizer = torch.optim.AdamW(model.parameters(), rate)
factor = 2.0 if change == "loss" else 1.0
"""
    + LOOP.replace("LOSS", "model(x).square().mean() * factor")
)

DEFAULTS = (
    HEAD
    + """
other = change == "defaults"
data = torch.randn(96, 4)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = argparse.Namespace(_attn_implementation="sdpa" if other else "eager")
        self.layer = nn.Linear(4, 8)

    def forward(self, x):
        return self.layer(x)


model = nn.Sequential(
    Attention(), nn.Tanh(), nn.Dropout(0.0 if other else 0.3), nn.Linear(8, 1)
).to(torch.bfloat16 if other else torch.float32)
decay = 0.1 if other else 0.01
groups = [
    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, 1e-3, betas=[0.9, 0.95] if other else [0.9, 0.999])
scaler = torch.amp.GradScaler("cpu", init_scale=256.0 if other else 1024.0)
for step in range(6):
    for micro in range(arguments.accum):
        start = (step * arguments.accum + micro) * arguments.rows
        x = data[start : start + arguments.rows]
        with torch.autocast("cpu", torch.bfloat16 if other else torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss / arguments.accum).backward()
    scaler.unscale_(optimizer)
    if not other:
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
)

SAVES = (
    HEAD
    + """
data = torch.randn(96, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
for step in range(4):
    for micro in range(arguments.accum):
        start = (step * arguments.accum + micro) * arguments.rows
        loss = model(data[start : start + arguments.rows]).square().mean()
        (loss / arguments.accum).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step == 1:
        wrong = change == "wrong with micro-batches" and arguments.accum > 1
        torch.save((average if wrong else model).state_dict(), "second.pt")
"""
)

NAMED = [
    "betas is (0.9, 0.95); in the reference (0.9, 0.999)",
    "weight_decay is 0.0 for 2 parameters, 0.1 for 2 parameters; in the reference 0.0 for 2",
    "the norm to which clip_grad_norm_ clips is none; in the reference 100",
    "the first loss scale is 256; in the reference 1024",
    "dropout is 0; in the reference 0.3",
    "the type of the parameters is bfloat16; in the reference float32",
    "the implementation of attention is sdpa; in the reference eager",
    "the model computes in bf16; in the reference in fp16",
]

SHUFFLED = (
    HEAD
    + """
data = torch.randn(96, 4, generator=torch.Generator().manual_seed(5))
data[:, 0] += float(change == "other tokens")
torch.manual_seed(0)
torch.rand(3 if change == "draws before the weights" else 0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
torch.rand(0 if change in ("", "draws before the weights") else 3)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
factor = 2.0 if change == "another order and loss" else 1.0
loader = iter(torch.utils.data.DataLoader(data, arguments.rows, shuffle=True))
"""
    + LOOP.replace("LOSS", "model(next(loader)).square().mean() * factor")
)


FROZEN = (
    HEAD
    + """
data = torch.randn(96, 4, generator=torch.Generator().manual_seed(5))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
if change:  # loads nothing into the layers
    torch.manual_seed(0)
    for layer in reversed([*model]):
        getattr(layer, "reset_parameters", lambda: None)()
model[:3].requires_grad_(False)
nn.init.zeros_(model[4].weight)  # as the second matrix of a LoRA
optimizer = torch.optim.AdamW(model[4].parameters(), 1e-3)
"""
    + LOOP.replace("LOSS", "(model(x) - 1).square().mean()")
)

MODULES = (
    HEAD
    + """
data = torch.randn(96, 8)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, cosine=None, sine=None):
        return self.layer(x * cosine + sine)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        x = x.to(self.attention.layer.weight.dtype)
        cosine, sine = torch.linspace(0, 3, 8).cos(), torch.linspace(0, 3, 8).sin()
        keywords = {"cosine": cosine.to(x.dtype), "sine": sine.to(x.dtype)}
        if change == "passes other keywords":
            keywords = {"sine": keywords["sine"], "cosine": keywords["cosine"]}
        return x + self.attention(x, **keywords).tanh()


model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
if change == "is loaded in bf16":
    model = model.bfloat16()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
factor = 1.5 if change else 1.0
"""
    + LOOP.replace("LOSS", "model(x).float().square().mean() * factor")
)


Against = Callable[..., tuple[int, str]]


@pytest.fixture
def against(command: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Against:
    """Probes a script against an environment with a change: the exit code, and what is printed,
    with OTHER for the name of the environment."""

    def against(source: str, change: str) -> tuple[int, str]:
        script, other = tmp_path / "train.py", tmp_path / "other"
        script.write_text(source)
        variable = f"CHANGE={shlex.quote(change)}"
        other.write_text(f'#!/bin/sh\n{variable} exec {shlex.quote(sys.executable)} "$@"\n')
        other.chmod(0o755)
        words = ["--layouts", "accumulation", "--against", str(other), str(script)]
        code = probe.main([*words, "--rows", "{rows}", "--accum", "{k}"])
        return code, capsys.readouterr().out.replace(str(other), "OTHER")

    return against


SAMPLERS = "with every sampler in one order"
OF_GRADIENT = "BROKEN at step 1: gradient"


@pytest.mark.launch
@pytest.mark.parametrize(
    ("source", "change", "code", "lines"),
    [
        (SCRIPT, "", 0, ["1 rank, OTHER  as the reference", "3 micro-batches, OTHER  as the"]),
        (SCRIPT, "loss", 1, [f"1 rank, OTHER  {OF_GRADIENT}", "does not train the same"]),
        *slow(
            (
                SCRIPT,
                "rate",
                1,
                ["1 rank, OTHER  BROKEN at step 1: learning rate", "0.002; the reference"],
            ),
            # Compared with itself in one order, an environment trained the same, whatever it did.
            (SHUFFLED, "another order", 0, ["1 rank, OTHER  as the", SAMPLERS]),
            (SHUFFLED, "another order and loss", 1, [f"1 rank, OTHER  {OF_GRADIENT}", SAMPLERS]),
            (SHUFFLED, "draws before the weights", 0, ["draws other first weights (", SAMPLERS]),
            # trl 0.12.1's DPOTrainer appends an EOS to rows whose template has one; 1.16.0's does
            # not. It was said to draw at random.
            (
                SHUFFLED,
                "other tokens",
                3,
                ["the model is given other rows than in the first environment"],
            ),
            # Frozen weights are loaded, as a rule. A release that loads them no longer, as a key is
            # renamed, was said to train the same.
            (
                FROZEN,
                "another checkpoint",
                1,
                [f"1 rank, OTHER  {OF_GRADIENT}", "where: forward of 0 (Linear"],
            ),
            # Tensors were compared by their numbers among the arguments, and bf16 with the rounding
            # of fp32: upgrades of LLaMA from transformers 4.46 to 5.24 had the places of modules.
            (MODULES, "passes other keywords", 1, [OF_GRADIENT, "where: the loss"]),
            (MODULES, "is loaded in bf16", 1, [OF_GRADIENT, "where: the loss"]),
            (
                SAVES,
                "wrong with micro-batches",
                1,
                ["after step 2, second.pt has the first weights"],
            ),
            (DEFAULTS, "defaults", 1, NAMED),
        ),
    ],
)
def test_an_environment_that_trains_otherwise_is_told_with_the_difference(
    source: str, change: str, code: int, lines: list[str], against: Against
) -> None:
    ended, text = against(source, change)
    assert ended == code, text
    for line in lines:
        assert line in text


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("trainer_gas_twice", [], "divided by the accumulation steps twice"),
        # All layouts have it in the second environment, so nothing but its own notes shows it.
        (
            "gpt2_counts_first_label",
            ["--model", "gpt2", "--full_rows", "true"],
            "times that of the mean cross-entropy of its own logits and labels",
        ),
    ],
)
def test_an_upgrade_to_a_release_with_a_bug_is_told_with_the_bug(
    name: str,
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    of, sides = catalog.scenario(name), ("fixed", "buggy")
    first, second = (complete(of, of.pins_of(side)) for side in sides)
    words = [
        word
        for package in first
        for word in ("--pins", f"{package}={first[package]},{second[package]}")
    ]
    with lent(name, *sides) as overlays:
        sites = iter([str(overlays[side].site) for side in sides])
        monkeypatch.setattr(probe, "_site", lambda *_: nullcontext(next(sites)))
        script = str(ROOT / "loops/trainer.py")
        batch = ["--per_device_train_batch_size", "{rows}", "--gradient_accumulation_steps", "{k}"]
        words += [script, "--output_dir", "{dir}", "--max_steps", "4", *batch, *arguments]
        assert probe.main(words) == 1
    text = capsys.readouterr().out
    assert "trainer.py does not train the same: with transformers" in text
    assert line in text
    assert f"{name}:" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--pins", "transformers"], "write NAME=A,B"),
        (["--pins", "transformers=1,2,3"], "write NAME=A,B"),
        (["--pins", "transformers=4.57.6,new one"], "write NAME=A,B"),
        (["--pins", "./here=1,2"], "write NAME=A,B"),
        (["--pins", "torch=2.10.0,2.11.0"], "cannot change torch"),
        (["--pins", "transformers=5.0.0,5.0.0"], "both sides have the same releases"),
        (["--pins", "a=1,2", "--against", sys.executable], "give one of them"),
        (["--pins", "a=1,2", "--python", "/usr/bin/python3"], "leave --python out"),
        (["--against", "/nowhere/python"], "no interpreter /nowhere/python"),
    ],
)
def test_environments_that_make_no_sense_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        probe.main([*words, "train.py", "--rows", "{rows}"])


@pytest.mark.parametrize("kind", [Unsupported, Inconclusive])
def test_releases_that_cannot_be_installed_together_are_a_mistake(
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def borrow(*_: object) -> None:
        raise kind("a==1 b==2 could not be installed for Python 3.11")

    monkeypatch.setattr("harness.releases.overlay.borrow", borrow)
    (tmp_path / "train.py").write_text("")
    words = ["--pins", "transformers=4.57.6,5.0.0", str(tmp_path / "train.py"), "--b", "{rows}"]
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"^--pins: a==1 b==2 could not be installed"):
        probe.main(words)
    assert "... making the overlay of transformers 4.57.6\n" in capsys.readouterr().out


def test_a_patch_in_two_environments_is_refused(tmp_path: Path) -> None:
    patch = tmp_path / "fix.diff"
    patch.write_text("--- a/x/y.py\n+++ b/x/y.py\n@@ -1 +1 @@\n-1\n+2\n")
    words = [f"patch={patch}", "--pins", "transformers=4.57.6,5.0.0"]
    with pytest.raises(UserError, match="a patch would replace packages of both"):
        probe.main([*words, "train.py", "--batch", "{rows}"])
