"""After a stop and resume, averages of the weights are those of a run without a stop."""

from __future__ import annotations

from itertools import product

import pytest
from torch import nn

from harness.rank.probe.findings.averages import Averages
from harness.rank.probe.recording.parameters import NamedParameters
from harness.training.probe.layouts import RANKS, RANKS_RESUME, RESUME, Settings
from harness.training.probe.probe_report import headline
from tests.probe.probing import BEGIN, RESUMED, SAVE, Probing, first_broken, refused

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
import argparse
from torch.optim.swa_utils import AveragedModel

parser = argparse.ArgumentParser()
for name in ("--batch-size", "--save-at"):
    parser.add_argument(name, type=int)
for name in ("--save", "--resume", "--kind", "--lost"):
    parser.add_argument(name, default="")
options = parser.parse_args()
rows = options.batch_size
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
run = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
begin, best, updates, start = copy.deepcopy(model), None, 0, 0  # neither is an average
skeleton = copy.deepcopy(model).to("meta")
kind = options.kind
average = {
    "module": copy.deepcopy(model),
    "AveragedModel": AveragedModel(model),
    "dictionary": {f"net.{n}": p.detach().clone() for n, p in model.named_parameters()},
    "list": [p.detach().clone() for p in model.parameters()],
}.get(kind)


def tensors():
    if kind in ("dictionary", "list"):
        return list(average.values() if kind == "dictionary" else average)
    return list(average.parameters()) if average is not None else []


if options.resume:
    state = torch.load(f"{options.resume}/last.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start, updates = state["step"], 0 if options.lost == "count" else state["updates"]
    if options.lost != "average":
        for mine, saved in zip(tensors(), state["average"]):
            mine.data.copy_(saved)
    if kind == "AveragedModel" and options.lost != "count":
        average.n_averaged.fill_(updates)
for step in range(start, 6):
    first = (step * world + rank) * rows
    x, y = data[first : first + rows], labels[first : first + rows]
    optimizer.zero_grad()
    nn.functional.mse_loss(run(x), y).backward()
    optimizer.step()
    updates += 1
    if kind == "AveragedModel":
        average.update_parameters(model)
    elif kind:
        decay = 0.9 * (1 - 2.0**-updates)  # of a warmup
        for mean, p in zip(tensors(), model.parameters()):
            mean.data.lerp_(p.detach(), 1 - decay)
    best = copy.deepcopy(model) if step == 1 or best is None else best
    if options.save and step + 1 == options.save_at and rank == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        states |= {"average": [p.detach() for p in tensors()], "step": step + 1, "updates": updates}
        torch.save(states, f"{options.save}/last.pt")
"""
)

GIVEN = "--batch-size {rows}"


KINDS, LOST = ("module", "AveragedModel", "dictionary", "list"), ("nothing", "average", "count")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "kind", "lost"),
    [*product([RESUME], KINDS, LOST), *product([RANKS_RESUME], ["module"], ["nothing", "count"])],
)
def test_an_average_that_a_resume_loses_is_found(
    probing: Probing, where: str, kind: str, lost: str
) -> None:
    settings = Settings(save=SAVE, resume=RESUMED, layouts=(where,))
    answers = probing(SCRIPT, f"{GIVEN} --kind {kind} --lost {lost}", settings)
    assert not refused(answers)
    assert first_broken(answers) == ({} if lost == "nothing" else {where: ("average", "")})
    assert not [line for line in answers.not_tested if line.startswith("averages")]
    assert lost == "nothing" or "an average of the weights is another one" in headline(answers)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "names"), [("module", ["Sequential"]), ("''", [])])
def test_an_average_is_not_tested_without_a_resume(
    probing: Probing, kind: str, names: list[str]
) -> None:
    words = [*GIVEN.split(), "--kind", kind.strip("'")]
    answers = probing(SCRIPT, words, Settings(layouts=(RANKS,)))
    lines = [f"averages of the weights ({name}): needs a stop and resume" for name in names]
    assert [line for line in answers.not_tested if line.startswith("averages")] == lines


def test_views_of_memory_that_fsdp_has_freed_are_no_copies() -> None:
    names = NamedParameters()
    averages = Averages(names)
    views = [parameter.detach().bfloat16() for _, parameter in names.learn(nn.Linear(7, 5))]
    assert len(averages.record()) == 1
    for view in views:
        view.untyped_storage().resize_(0)
    assert averages.record() == []
