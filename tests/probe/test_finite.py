"""Numbers that are not finite: probe names the first module with one, and the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.rank.probe.recording.record import Finite
from harness.system.errors import Inconclusive
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import BEGIN, Probing, first_broken, require_right

FIRST = Settings(layouts=(RANKS,))


def test_a_gradient_that_the_loss_gives_is_told_from_one_of_a_module() -> None:
    layer, finite = nn.Linear(4, 1), Finite()
    output = layer(torch.randn(3, 4))
    finite.look(layer, layer, output)
    (output * float("inf")).sum().backward()
    assert finite.place == "the gradient of the output of Linear, as the loss gives it"


def test_what_has_no_numbers_is_left_out() -> None:
    layer, finite = nn.Linear(4, 1), Finite()
    for output in (None, "text", torch.ones(2, dtype=torch.long), {"loss": None}, (1, 2)):
        finite.look(layer, layer, output)
    finite.look(layer, layer, torch.empty(2, device="meta"))
    assert finite.place == ""


SCRIPT = (
    BEGIN
    + """

class Large(nn.Module):
    def forward(self, x):
        return (x + 1) * 1e6


class Root(nn.Module):
    def forward(self, x):
        return (x * 0).sqrt()


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
SETUP
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = int(sys.argv[1])
for step in range(8):
    x = data[(step * world + rank) * rows :][:rows]
    optimizer.zero_grad()
    LOSS
    loss.backward()
    optimizer.step()
"""
)

LOSS = "loss = model(x).square().mean()"
FP16 = "with torch.autocast('cpu', torch.float16): loss = model(x).float().mean()"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("setup", "loss", "text"),
    [
        ("nn.init.constant_(model[2].weight, 1e38)", LOSS, "weights 2.weight are .* initialised"),
        ("nn.init.constant_(model[2].weight, float('nan'))", LOSS, "weights 2.weight are .* init"),
        ("", "loss = (model(x) - 1e9).sqrt().mean()", "its loss is nan, and the outputs of"),
        ("model.append(Large())", FP16, r"is the output of 3 \(Large\) in fp16"),
        ("model.append(Root())", LOSS, r"output of 2 \(Linear\), while that of 3 \(Root\) is"),
    ],
)
def test_the_reason_is_not_always_the_weights(
    probing: Probing, setup: str, loss: str, text: str
) -> None:
    with pytest.raises(Inconclusive, match=text) as caught:
        probing(SCRIPT.replace("SETUP", setup).replace("LOSS", loss), "{rows}", FIRST)
    assert ("initialised" in str(caught.value)) is ("initialised" in text or "init" in text)


LATER = """
    loss = model(x).square().mean()
    loss = loss * (float("inf") if step == 2 and CONDITION else 1.0)"""


@pytest.mark.slow
@pytest.mark.launch
def test_a_loop_that_diverges_in_every_layout_is_compared_until_then(
    probing: Probing, capfd: pytest.CaptureFixture[str]
) -> None:
    text = SCRIPT.replace("SETUP", "").replace("\n    LOSS", LATER)
    answers = probing(text.replace("CONDITION", "True"), "{rows}", FIRST)
    assert first_broken(answers) == {}
    assert "step 3 of the reference is not finite" in answers.layouts[0].notes[0]
    answers = probing(text.replace("CONDITION", "world > 1"), "{rows}", FIRST)
    assert "not finite, unlike the reference's" in answers.layouts[0].broken[0].text
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.launch
def test_updates_that_were_compared_are_not_called_untested(probing: Probing) -> None:
    """From the third step on all gradients are 0: no later update can be compared."""
    loss = "\n    loss = model(x).square().mean() * (0.0 if step else 1.0)"
    text = SCRIPT.replace("SETUP", "").replace("\n    LOSS", loss)
    text = text.replace("lr=0.1", "lr=0.1 * world")
    text = text.replace("optimizer.step()", "optimizer.step()\n    lr = 0.1")
    answers = probing(text, "{rows}", FIRST)
    assert first_broken(answers)
    assert not [what for what in answers.not_tested if what.startswith("updates of 1")]


AMP = "--batch-size {rows} --accum {k} --amp float16"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    "options",
    [
        "--fused",
        "--fused --overflow --clip 0.1",
        "--fused --optimizer sgd --clip 0.1",
        "--overflow --optimizer sgd",
    ],
)
def test_a_right_loop_with_a_scaler_and_a_fused_optimizer_is_right(
    probing: Probing, options: str
) -> None:
    answers = probing("ddp.py", f"{AMP} {options}", Settings())
    require_right(answers)
    assert answers.notes == []


@pytest.mark.launch
def test_what_a_skipped_first_step_leaves_in_the_optimizer_is_blamed(probing: Probing) -> None:
    """torch 2.13.0: the momentum is uninitialised memory if the first fused step is skipped."""
    with pytest.raises(Inconclusive, match="1 skipped steps leave in the state of SGD"):
        probing("ddp.py", f"{AMP} --fused --overflow --optimizer sgd", FIRST)


@pytest.mark.launch
@pytest.mark.slow
def test_a_scaler_that_skips_all_steps_is_named(probing: Probing) -> None:
    text = SCRIPT.replace("SETUP", "scaler = torch.amp.GradScaler('cpu')")
    text = text.replace("LOSS", "loss = scaler.scale((model(x) / 0).mean())")
    text = text.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    with pytest.raises(Inconclusive, match=r"scaler of the loss skipped all of its 8 steps; the f"):
        probing(text, "{rows}", FIRST)
