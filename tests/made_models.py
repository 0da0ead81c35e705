"""A small language model as a user would write it, and variants with one fault each.

``python -m harness models FILE.py:FUNCTION`` takes ``make`` and the other functions.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, LONGEST, CLASSES = 64, 16, 40, 4


class Layer(nn.Module):
    """Attention; ``mask`` says which tokens each token sees."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.parts(hidden).chunk(3, -1)
        scores = (query @ key.transpose(-1, -2)).masked_fill(~mask, -1e9)
        return hidden + torch.tanh(self.mlp(scores.softmax(-1) @ value))


class Decoder(nn.Module):
    """A correct model."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.layer = Layer()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("inv_freq", 1e4 ** -(torch.arange(8) / 8), persistent=False)
        self.checkpoints: dict[str, Any] | None = None

    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        """Which tokens each token sees: earlier ones of its own packed row, but no padding."""
        width = mask.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        rows = (positions == 0).cumsum(-1)
        row_mask = rows[:, :, None] == rows[:, None, :]
        diagonal = torch.eye(width, dtype=torch.bool)
        return causal & (row_mask & mask[:, None, :].bool() | diagonal)

    def loss(self, logits: Tensor, labels: Tensor, count: Tensor | None) -> Tensor:
        total = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        return total / ((labels[:, 1:] != -100).sum() if count is None else count)

    def head_input(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the head gets from the last layer."""
        return hidden

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> dict[str, Any]:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        usual = torch.arange(input_ids.shape[1])[None]
        positions = usual if position_ids is None else position_ids
        hidden = self.tokens(input_ids) + self.positions(positions)
        sight = self.sight(mask, positions)
        if self.checkpoints is not None and self.training:
            hidden = checkpoint(self.layer, hidden, sight, **self.checkpoints)
        else:
            hidden = self.layer(hidden, sight)
        output: dict[str, Any] = {"logits": self.head(self.head_input(hidden, mask))}
        if labels is not None:
            output["loss"] = self.loss(output["logits"], labels, num_items_in_batch)
        return output

    def gradient_checkpointing_enable(self, settings: dict[str, Any]) -> None:
        self.checkpoints = settings

    def gradient_checkpointing_disable(self) -> None:
        self.checkpoints = None

    def generate(self, prompt: Tensor, max_new_tokens: int, **_: Any) -> SimpleNamespace:
        logits = []
        for _step in range(max_new_tokens):
            logits.append(self.scores(prompt))
            prompt = torch.cat([prompt, logits[-1].argmax(-1, keepdim=True)], 1)
        return SimpleNamespace(sequences=prompt, logits=tuple(logits))

    def scores(self, prompt: Tensor) -> Tensor:
        """The logits of the next token."""
        return self(prompt)["logits"][:, -1]

    def save_pretrained(self, folder: Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(folder) / "weights.pt")

    @classmethod
    def from_pretrained(cls, folder: Path, dtype: torch.dtype) -> Decoder:
        model = cls()
        model.load_state_dict(torch.load(Path(folder) / "weights.pt"))
        frequencies = model.inv_freq
        model.to(dtype)
        model.inv_freq = frequencies
        return model


class Tagger(Decoder):
    """Gives each token a class. Each token sees the whole row."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        width = mask.shape[1]
        return mask[:, None, :].bool().expand(-1, width, -1)

    def loss(self, logits: Tensor, labels: Tensor, count: Tensor | None) -> Tensor:
        total = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
        return total / ((labels != -100).sum() if count is None else count)


class Sorter(Tagger):
    """Gives each row a class."""

    def head_input(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


class Translator(Tagger):
    """A decoder that also gets the mean of an encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> dict[str, Any]:
        assert decoder_input_ids is not None
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        encoded = self.layer(self.tokens(input_ids), self.sight(mask, mask))
        read = (encoded * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        width = decoder_input_ids.shape[1]
        hidden = self.tokens(decoder_input_ids) + self.positions(torch.arange(width))
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        output = {"logits": self.head(self.layer(hidden + read[:, None], causal))}
        if labels is not None:
            output["loss"] = self.loss(output["logits"], labels, num_items_in_batch)
        return output

    def generate(self, prompt: Tensor, max_new_tokens: int, **settings: Any) -> SimpleNamespace:
        sequence, logits = torch.tensor([[settings["decoder_start_token_id"]]]), []
        for _step in range(max_new_tokens):
            logits.append(self.following(prompt, sequence))
            sequence = torch.cat([sequence, logits[-1].argmax(-1, keepdim=True)], 1)
        return SimpleNamespace(sequences=sequence, logits=tuple(logits))

    def following(self, prompt: Tensor, sequence: Tensor) -> Tensor:
        """The logits of the token after ``sequence``."""
        return self(prompt, decoder_input_ids=sequence)["logits"][:, -1]


class DividesByItsOwnLabels(Decoder):
    """Divides by the labels of its micro-batch instead of those of all micro-batches."""

    def loss(self, logits: Tensor, labels: Tensor, count: Tensor | None) -> Tensor:
        return super().loss(logits, labels, None)


class ShiftsItsLabels(Tagger):
    def loss(self, logits: Tensor, labels: Tensor, count: Tensor | None) -> Tensor:
        return super().loss(logits[:, :-1], labels[:, 1:], count)


class TagsWithItsOwnLabels(DividesByItsOwnLabels, Tagger):
    pass


class SortsWithItsOwnRows(DividesByItsOwnLabels, Sorter):
    pass


class TakesTheLastToken(Sorter):
    """Takes it even if it is padding."""

    def head_input(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, -1]


class TakesTheFirstToken(Sorter):
    def head_input(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, 0]


class ReadsThePadding(Translator):
    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        return super().sight(torch.ones_like(mask), positions)


class ForgetsTheFirstToken(Translator):
    """Its cache lacks one token."""

    def following(self, prompt: Tensor, sequence: Tensor) -> Tensor:
        return super().following(prompt, sequence[:, 1:] if sequence.shape[1] > 1 else sequence)


class TranslatesWithItsOwnLabels(DividesByItsOwnLabels, Translator):
    pass


class IgnoresPositions(Decoder):
    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        return super().sight(mask, torch.arange(positions.shape[1])[None])


class IgnoresMask(Decoder):
    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        return super().sight(torch.ones_like(mask), torch.arange(positions.shape[1])[None])


class SeesThePadding(Decoder):
    """Each token also sees later tokens and padding."""

    def sight(self, mask: Tensor, positions: Tensor) -> Tensor:
        return torch.ones_like(super().sight(mask, positions))


class DoesNotShift(Decoder):
    def loss(self, logits: Tensor, labels: Tensor, count: Tensor | None) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class ChecksNothing(Decoder):
    def gradient_checkpointing_enable(self, settings: dict[str, Any]) -> None:
        pass


class GeneratesTooFar(Decoder):
    """Its positions are off by one, as with a cache that is one token too long."""

    def scores(self, prompt: Tensor) -> Tensor:
        positions = torch.arange(1, prompt.shape[1] + 1).clamp(max=LONGEST - 1)
        return self(prompt, position_ids=positions[None])["logits"][:, -1]


class LosesATie(Decoder):
    @classmethod
    def from_pretrained(cls, folder: Path, dtype: torch.dtype) -> Decoder:
        model = super().from_pretrained(folder, dtype)
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return model


class RoundsItsFrequencies(Decoder):
    @classmethod
    def from_pretrained(cls, folder: Path, dtype: torch.dtype) -> Decoder:
        return super().from_pretrained(folder, dtype).to(dtype)


class Config(SimpleNamespace):
    """A config for a class whose ``config_class`` is another one."""

    @classmethod
    def from_pretrained(cls, folder: Path) -> Config:
        return cls(pad_token_id=0)


class HasAnotherConfig(Decoder):
    """Loads weights only with its own config: otherwise it is a new model."""

    config_class = SimpleNamespace

    def __init__(self) -> None:
        super().__init__()
        self.config = Config(pad_token_id=0)

    @classmethod
    def from_pretrained(
        cls, folder: Path, dtype: torch.dtype, config: Config | None = None
    ) -> Decoder:
        return super().from_pretrained(folder, dtype) if config else cls()


class SkipsASynchronization(Decoder):
    """Hides a weight from its wrapper: data parallelism cannot average it."""

    def __init__(self) -> None:
        super().__init__()
        self._ddp_params_and_buffers_to_ignore = ["positions.weight"]


class Crashes(Decoder):
    def generate(self, prompt: Tensor, max_new_tokens: int, **_: Any) -> SimpleNamespace:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


class Hangs(Decoder):
    def generate(self, prompt: Tensor, max_new_tokens: int, **_: Any) -> SimpleNamespace:
        time.sleep(600)
        raise AssertionError


class LeavesARankAlone(Decoder):
    """Fails on the first of two ranks, while the other one waits, as it does over NCCL."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        if "RANK" in os.environ:
            if os.environ["RANK"] == "0":
                raise ValueError("not offered")
            time.sleep(1000)
        return super().forward(*args, **kwargs)


class Refuses(Decoder):
    def gradient_checkpointing_enable(self, settings: dict[str, Any]) -> None:
        raise ValueError("no checkpoints here")


class DrawsNumbers(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda _, __, output: {**output, "logits": _noisy(output)})


def _noisy(output: dict[str, Tensor]) -> Tensor:
    return output["logits"] + torch.randn(()) * 0.1


def model_and_batch(cls: type[Decoder]) -> tuple[Decoder, dict[str, Tensor]]:
    """A model, and a batch of 4 rows."""
    module = cls()
    tokens = torch.randint(1, VOCABULARY, (4, LONGEST))
    return module, {"input_ids": tokens, "labels": tokens.clone()}


def made_for_rows(cls: type[Decoder]) -> tuple[Decoder, dict[str, Tensor]]:
    """The same with a label for each row."""
    module, batch = model_and_batch(cls)
    return module, {**batch, "labels": torch.arange(4) % CLASSES}


def made_for_tokens(cls: type[Decoder]) -> tuple[Decoder, dict[str, Tensor]]:
    """The same with the class of each token."""
    module, batch = model_and_batch(cls)
    return module, {**batch, "labels": batch["labels"] % CLASSES}


def made_for_decoder(cls: type[Decoder]) -> tuple[Decoder, dict[str, Tensor]]:
    """The same with inputs of a decoder; the labels are the tokens that follow."""
    module, batch = model_and_batch(cls)
    targets = torch.randint(1, VOCABULARY, (4, 24))
    begin = torch.ones(4, 1, dtype=torch.long)
    return module, {
        "input_ids": batch["input_ids"],
        "decoder_input_ids": torch.cat([begin, targets[:, :-1]], 1),
        "labels": targets,
    }


make = partial(model_and_batch, Decoder)
make_sorter = partial(made_for_rows, Sorter)
make_crashing = partial(model_and_batch, Crashes)
make_hanging = partial(model_and_batch, Hangs)
make_skipping = partial(model_and_batch, SkipsASynchronization)
make_leaving = partial(model_and_batch, LeavesARankAlone)


def make_nothing() -> tuple[Decoder, dict[str, Tensor]]:
    raise ValueError("no such model")
