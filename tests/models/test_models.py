"""Relations of models: a right model is right, and each fault is found where it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import models as command
from harness.rank.models import architectures
from harness.rank.models.answer import Answer, AnswerStatus, Row
from harness.rank.models.asking import ask_alone
from harness.rank.models.heads import HEADS, parsed
from harness.rank.models.relations import QUESTIONS
from harness.rank.models.sizes import kinds
from harness.rank.models.subject import Subject
from harness.system.errors import UserError
from harness.system.files import ROOT
from harness.training.models import stack, table
from harness.training.models.answers import Asking, ask
from harness.training.models.stack import Releases
from tests import made_models
from tests.made_models import Decoder

FILE = Path(made_models.__file__)
OWN = (
    "loss",
    "accumulation",
    "checkpointing",
    "padding_right",
    "padding_left",
    "packing",
    "generation",
    "save_load",
    "fp32_kept",
)
"""The relations on one rank that need no other package."""


def answer_of(cls: type[Decoder], relation: str, folder: Path) -> Answer:
    return ask_alone(relation, Subject("own", lambda: made_models.model_and_batch(cls), folder))


@pytest.mark.parametrize(
    ("cls", "relation"),
    [*((Decoder, name) for name in OWN), (made_models.HasAnotherConfig, "save_load")],
)
def test_a_right_model_is_right(cls: type[Decoder], relation: str, tmp_path: Path) -> None:
    answer = answer_of(cls, relation, tmp_path)
    assert answer.status is AnswerStatus.RIGHT, answer.reason


HEADS_OWN: dict[str, Any] = {
    "token_classification": (made_models.Tagger, made_models.made_for_tokens),
    "sequence_classification": (made_models.Sorter, made_models.made_for_rows),
    "seq2seq_lm": (made_models.Translator, made_models.made_for_decoder),
}
"""By head: a right model, and a function that makes it with a batch."""


def answer_of_head(cls: type[Decoder] | None, head: str, relation: str, folder: Path) -> Answer:
    model, make = HEADS_OWN[head]
    return ask_alone(relation, Subject("own", lambda: make(cls or model), folder, head=HEADS[head]))


@pytest.mark.parametrize(
    ("head", "relation"),
    [
        *product(HEADS_OWN, ["loss", "accumulation", "padding_right", "save_load"]),
        ("seq2seq_lm", "generation"),
        ("sequence_classification", "padding_left"),
    ],
)
def test_a_right_model_with_another_head_is_right(head: str, relation: str, tmp_path: Path) -> None:
    answer = answer_of_head(None, head, relation, tmp_path)
    assert answer.status is AnswerStatus.RIGHT, answer.reason


@pytest.mark.parametrize(
    ("head", "relation", "cls", "reason"),
    [
        ("token_classification", "loss", made_models.ShiftsItsLabels, "labels are shifted"),
        ("token_classification", "accumulation", made_models.TagsWithItsOwnLabels, "off by"),
        ("sequence_classification", "accumulation", made_models.SortsWithItsOwnRows, "off by"),
        ("sequence_classification", "padding_right", made_models.TakesTheLastToken, "off by"),
        ("seq2seq_lm", "padding_right", made_models.ReadsThePadding, "from token 0 on (of 24)"),
        ("seq2seq_lm", "generation", made_models.ForgetsTheFirstToken, "from token 1 on"),
        ("seq2seq_lm", "accumulation", made_models.TranslatesWithItsOwnLabels, "off by"),
    ],
)
def test_a_fault_of_another_head_is_wrong(
    head: str, relation: str, cls: type[Decoder], reason: str, tmp_path: Path
) -> None:
    answer = answer_of_head(cls, head, relation, tmp_path)
    assert answer.status is AnswerStatus.WRONG, answer
    assert reason in answer.reason


def test_a_head_has_no_answer_to_what_has_no_meaning_for_it(tmp_path: Path) -> None:
    answer = answer_of_head(None, "sequence_classification", "generation", tmp_path)
    assert answer == Answer(AnswerStatus.NO_ANSWER, "the head does not generate")


def test_a_head_that_takes_the_first_token_cannot_be_padded_on_the_left(tmp_path: Path) -> None:
    head, cls = "sequence_classification", made_models.TakesTheFirstToken
    answer = answer_of_head(cls, head, "padding_left", tmp_path)
    assert answer.status is AnswerStatus.NO_ANSWER
    assert "takes the first token" in answer.reason


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("llama", ("llama", "", "causal_lm")),
        ("bert:masked_lm", ("bert", "", "masked_lm")),
        ("my/config.json:masked_lm", ("my/config.json", "", "masked_lm")),
        ("my.py:make", ("my.py", "make", "causal_lm")),
        ("my.py:make:masked_lm", ("my.py", "make", "masked_lm")),
    ],
)
def test_a_word_names_a_model_and_a_head(word: str, parts: tuple[str, str, str]) -> None:
    name = parsed(word)
    assert (name.model, name.function, name.head) == parts
    assert str(name) == word


def test_another_head_is_for_words_without_one() -> None:
    assert str(parsed("bert", "masked_lm")) == "bert:masked_lm"
    assert str(parsed("bert:token_classification", "masked_lm")) == "bert:token_classification"
    assert str(parsed("llama:causal_lm", "masked_lm")) == "llama"


FAULTS = [
    ("loss", made_models.DoesNotShift, "not shifted"),
    ("accumulation", made_models.DividesByItsOwnLabels, "times the right one|off by"),
    ("checkpointing", made_models.ChecksNothing, "nothing is recomputed"),
    ("padding_right", made_models.SeesThePadding, "padded on the right, from token 0"),
    ("padding_left", made_models.IgnoresMask, "padded on the left"),
    ("packing", made_models.IgnoresPositions, "from token 22 on"),
    ("generation", made_models.GeneratesTooFar, "generated with the cache"),
    ("save_load", made_models.LosesATie, "head.weight and tokens.weight are not tied"),
    ("fp32_kept", made_models.RoundsItsFrequencies, "inv_freq is bfloat16"),
]


@pytest.mark.parametrize(("relation", "cls", "reason"), FAULTS)
def test_a_fault_is_wrong(relation: str, cls: type[Decoder], reason: str, tmp_path: Path) -> None:
    answer = answer_of(cls, relation, tmp_path)
    assert answer.status is AnswerStatus.WRONG, answer
    assert any(part in answer.reason for part in reason.split("|")), answer.reason


def test_a_fault_shows_only_in_its_own_relation(tmp_path: Path) -> None:
    for relation in ("loss", "checkpointing", "padding_right", "packing", "save_load"):
        answer = answer_of(made_models.DividesByItsOwnLabels, relation, tmp_path)
        assert answer.status is AnswerStatus.RIGHT, (relation, answer)


class Declares(made_models.DividesByItsOwnLabels):
    accepts_loss_kwargs = False


class Bare(Decoder):
    def forward(self, input_ids: Any, labels: Any = None) -> Any:  # type: ignore[override]
        return super().forward(input_ids, labels=labels)


@pytest.mark.parametrize(
    ("cls", "relation", "status", "reason"),
    [
        (made_models.Refuses, "checkpointing", AnswerStatus.REFUSED, "ValueError: no checkpoints"),
        (Declares, "accumulation", AnswerStatus.REFUSED, "accepts_loss_kwargs = False"),
        (made_models.DrawsNumbers, "packing", AnswerStatus.NO_ANSWER, "random numbers"),
        (Bare, "packing", AnswerStatus.NO_ANSWER, "position_ids"),
        (Bare, "accumulation", AnswerStatus.REFUSED, "num_items_in_batch"),
    ],
)
def test_a_model_may_refuse_or_not_offer_a_relation(
    cls: type[Decoder], relation: str, status: AnswerStatus, reason: str, tmp_path: Path
) -> None:
    answer = answer_of(cls, relation, tmp_path)
    assert answer.status is status
    assert reason in answer.reason


def worker(
    folder: Path, *functions: str, relations: tuple[str, ...], limit: float = 120.0
) -> dict[Any, Row]:
    """A worker's rows for functions of made_models, without transformers."""
    names = [f"{FILE}:{function}" for function in functions]
    asking = Asking(Releases(folder, {}), names, relations, limit=limit, jobs=2)
    rows = ask(asking, lambda _: None)
    return {(row.model.rpartition(":")[2], row.relation): row for row in rows}


@pytest.mark.slow
def test_a_crash_and_a_hang_cost_one_cell_each(cache: Path, tmp_path: Path) -> None:
    relations = ("packing", "generation", "save_load")
    functions = ("make_crashing", "make_hanging", "make_nothing")
    rows = worker(tmp_path, *functions, relations=relations, limit=10.0)
    by_cell = {key: row.answer.status for key, row in rows.items()}
    for function in ("make_crashing", "make_hanging"):
        assert by_cell[function, "packing"] is by_cell[function, "save_load"] is AnswerStatus.RIGHT
        assert by_cell[function, "generation"] is AnswerStatus.NO_ANSWER
    assert "SIGSEGV" in rows["make_crashing", "generation"].answer.reason
    assert "within 10 s" in rows["make_hanging", "generation"].answer.reason
    assert "no such model" in rows["make_nothing", "packing"].answer.reason


@pytest.mark.slow
def test_a_function_can_have_a_head(cache: Path, tmp_path: Path) -> None:
    word = "make_sorter:sequence_classification"
    rows = worker(tmp_path, word, relations=("accumulation", "ddp"))
    for relation in ("accumulation", "ddp"):
        answer = rows["sequence_classification", relation].answer
        assert answer.status is AnswerStatus.RIGHT, answer


@pytest.mark.slow
def test_two_ranks_are_compared_with_the_mean_of_both(cache: Path, tmp_path: Path) -> None:
    rows = worker(tmp_path, "make", "make_skipping", relations=("ddp", "fsdp2"))
    assert rows["make", "ddp"].answer.status is AnswerStatus.RIGHT
    assert rows["make", "fsdp2"].answer.status is AnswerStatus.RIGHT
    assert rows["make_skipping", "ddp"].answer.status is AnswerStatus.WRONG
    assert "positions.weight" in rows["make_skipping", "ddp"].answer.reason


@pytest.mark.slow
def test_the_rank_that_failed_has_the_answer_not_the_one_that_waits_for_it(
    cache: Path, tmp_path: Path
) -> None:
    answer = worker(tmp_path, "make_leaving", relations=("ddp",))["make_leaving", "ddp"].answer
    assert (answer.status, answer.reason) == (AnswerStatus.REFUSED, "ValueError: not offered")


@pytest.mark.slow
def test_ranks_on_a_cpu_see_no_gpu(cache: Path, tmp_path: Path) -> None:
    script = tmp_path / "gpus.py"
    script.write_text(
        "import os\ndef make():\n    raise RuntimeError(repr(os.environ['CUDA_VISIBLE_DEVICES']))\n"
    )
    asking = Asking(Releases(tmp_path, {}), [f"{script}:make"], ["ddp"], limit=20.0)
    [row] = ask(asking, lambda _: None)
    assert row.answer.reason.endswith("RuntimeError: ''")


@pytest.mark.slow
def test_a_pass_on_gpus_leaves_nothing_in_the_process_that_forks_the_ranks() -> None:
    assert apart("Decoder") == ""
    assert "it fails" in apart("Fails")
    assert "signal 9" in apart("Ends")


def apart(cls: str) -> str:
    """Why a model cannot be asked, as said by a process that has run no pass itself. It is a new
    one, as torch's threads cannot be forked."""
    code = f"from tests.models.passes import {cls}, apart; print(apart({cls}))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_layers_show_each_kind_once() -> None:
    lists: dict[str, Sequence[Any]] = {"layer_types": "sssfsf", "moe": [0, 1, 1, 1, 1, 1]}
    assert kinds(lists) == [0, 1, 3]
    assert kinds({"layer_types": ["f"] * 5}) == [0, 1]


def transformers(folder: Path) -> Path:
    """A folder with the list of models of a transformers."""
    file = folder / "transformers" / "models" / "auto" / "modeling_auto.py"
    file.parent.mkdir(parents=True)
    lists = {"causal_lm": ("llama", "gpt2"), "masked_lm": ("bert",), "seq2seq_lm": ("t5",)}
    lines = [
        f"{HEADS[head].mapping}_NAMES = OrderedDict({[(name, 'Class') for name in names]})\n"
        for head, names in lists.items()
    ]
    file.write_text("".join(lines))
    return folder


def test_models_are_listed_without_importing_transformers(tmp_path: Path) -> None:
    site = transformers(tmp_path)
    assert architectures.names(site) == ["gpt2", "llama"]
    assert architectures.names(site, "masked_lm") == ["bert"]
    assert architectures.names(site, "token_classification") == []


CONFIG, CONFIG_16 = " in config.json", " in config.json in UTF-16"


def _written(word: str, folder: Path) -> str:
    """The word, or the name of a new config.json with the type that is before CONFIG."""
    model, config, encoding = word.partition(CONFIG)
    if not config:
        return word
    file = folder / "{}.config.json".format(re.sub(r"\W", "", model))
    file.write_text(json.dumps({"model_type": model}), encoding="utf-16" if encoding else "utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--relations", "pack"], "no relation 'pack': did you mean packing"),
        (["--pins", "numpy=2.0"], "no pin of models 'numpy'"),
        (["--pins", "transformers"], "is no pin"),
        (["--pins", "transformers=5.1:5.2"], "one release"),
        (["lama"], "no model 'lama': did you mean llama"),
        (["t5"], "t5 has no head causal_lm: name t5:seq2seq_lm"),
        (["bert:masked"], "no head 'masked': did you mean masked_lm"),
        (["missing.json"], "no file missing.json"),
        ([f"lama{CONFIG}"], "no model 'lama': did you mean llama"),
        ([f"t5{CONFIG}"], "t5 has no head causal_lm: name .*t5.config.json:seq2seq_lm"),
        ([f"../llama{CONFIG}"], "no model '../llama': did you mean llama"),
        ([f"a\n::error::b{CONFIG}"], "no model 'a'"),
        ([f"llama{CONFIG_16}"], "must be in UTF-8, without a byte order mark"),
        ([str(FILE)], "name the function"),
        (["--json", "no/folder/x.json"], "no folder no/folder"),
    ],
)
def test_a_mistake_is_one_line_with_the_choices(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = transformers(tmp_path)
    words = [_written(word, tmp_path) for word in words]
    if "--pins" not in words:
        spec = SimpleNamespace(origin=str(site / "transformers" / "__init__.py"))
        monkeypatch.setattr(stack, "find_spec", lambda _: spec)
    with pytest.raises(UserError, match=message) as raised:
        command.main(words)
    assert "\n" not in str(raised.value)


def test_a_model_of_no_recorded_release_is_refused_before_the_index_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the index was read")

    monkeypatch.setattr(stack, "find_spec", lambda _: None)
    monkeypatch.setattr(stack, "borrow", read)
    with pytest.raises(UserError, match=r"no model 'lama': did you mean llama.* write --newest"):
        command.main(["lama"])
    with pytest.raises(AssertionError, match="was read"):
        command.main(["llama"])


ROWS = [
    Row("a", "loss", Answer(AnswerStatus.RIGHT)),
    Row("a", "packing", Answer(AnswerStatus.WRONG, "logits are off by 9 %")),
    Row("b", "loss", Answer(AnswerStatus.REFUSED, "ValueError: no")),
    Row("b", "packing", Answer(AnswerStatus.NO_ANSWER, "not offered")),
]


def test_json_has_a_header_and_a_row_for_each_cell(tmp_path: Path) -> None:
    content = json.loads(
        json.dumps(table.as_json(ROWS, Releases(tmp_path, {"transformers": "5.23.0"}), 1.23))
    )
    assert content["releases"] == {"transformers": "5.23.0"}
    assert content["counts"]["loss"] == {"right": 1, "wrong": 0, "refused": 1, "no answer": 0}
    assert content["rows"][1] == {
        "model": "a",
        "relation": "packing",
        "status": "wrong",
        "reason": "logits are off by 9 %",
    }


def test_the_text_lists_what_is_wrong_by_relation() -> None:
    assert list(table.wrong_by_relation(ROWS)) == [
        "packing: wrong in 1 of 2 models",
        "  a: logits are off by 9 %",
    ]
    expected = "2 models, 4 cells: 1 right, 1 wrong, 1 refused, 1 no answer [3 s]"
    assert table.counted(ROWS, 3.2) == expected


@pytest.mark.parametrize(("rows", "code"), [(ROWS, 1), (ROWS[:1], 0), (ROWS[2:], 0), (ROWS[3:], 3)])
def test_exit_codes(rows: list[Row], code: int) -> None:
    assert table.exit_code(rows) == code


@pytest.mark.slow
@pytest.mark.launch
def test_a_release_of_transformers_has_the_faults_that_are_known() -> None:
    relations = ("packing", "zero_init", "zero3", "lora", "tensor_parallel", "expert_parallel")
    with stack.borrow({"transformers": "5.23.0"}) as releases:
        asking = Asking(releases, ["llama", "gpt_oss", "apertus"], relations)
        rows = ask(asking, lambda _: None)
    by_cell = {(row.model, row.relation): row.answer for row in rows}
    wrong_cells = {key for key, answer in by_cell.items() if answer.status is AnswerStatus.WRONG}
    assert {("gpt_oss", "packing"), ("apertus", "tensor_parallel")} <= wrong_cells
    assert "act_fn.alpha" in by_cell["apertus", "tensor_parallel"].reason
    assert ("llama", "zero_init") in wrong_cells
    for relation in ("packing", "zero3", "lora", "tensor_parallel"):
        assert by_cell["llama", relation].status is AnswerStatus.RIGHT
    assert by_cell["gpt_oss", "expert_parallel"].status is AnswerStatus.RIGHT


@pytest.mark.slow
@pytest.mark.launch
def test_each_head_has_the_faults_that_are_known() -> None:
    models = {
        "bert:masked_lm": AnswerStatus.WRONG,
        "t5:seq2seq_lm": AnswerStatus.WRONG,
        "llama:sequence_classification": AnswerStatus.WRONG,
        "distilbert:token_classification": AnswerStatus.WRONG,
        "vit:image_classification": AnswerStatus.RIGHT,
    }
    with stack.borrow({"transformers": "5.23.0"}) as releases:
        rows = ask(Asking(releases, list(models), ("loss", "accumulation")), lambda _: None)
    by_cell = {(row.model, row.relation): row.answer for row in rows}
    for model, status in models.items():
        assert by_cell[model, "loss"].status is AnswerStatus.RIGHT, by_cell[model, "loss"]
        assert by_cell[model, "accumulation"].status is status, by_cell[model, "accumulation"]


def test_every_head_and_relation_has_a_line_in_the_documentation() -> None:
    page = Path("docs/models.md").read_text(encoding="utf-8")
    assert [name for name in (*HEADS, *QUESTIONS) if f"`{name}`" not in page] == []
