"""Relations for rows that are alone, padded, packed, or generated token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

from harness.rank.compare import SAFE, Array
from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.heads import Labels
from harness.rank.models.judging import off_by
from harness.rank.models.sizes import FIRST
from harness.rank.models.subject import DECODER, SEED, Subject, logits, logits_of, run, seed

POSITIONS = "position_ids"
MASK = "attention_mask"
COMPILED = "flex_attention"
"""Is compiled only on a GPU: if only this differs here, that proves nothing."""

IMPLEMENTATIONS = ("eager", "sdpa", COMPILED)

SEES_PADDING = {
    "blt": "its patches begin at the first token of the input, be it padding",
    "canine": "it joins neighbouring tokens into one, be they padding",
    "convbert": "its convolution joins each token with its neighbours, be they padding",
    "fnet": "its forward takes no attention_mask",
    "funnel": "it joins neighbouring tokens into one, and leaves out the last token of the input",
    "mobilebert": "its embedding joins each token with its neighbours, be they padding",
    "reformer": "its chunks begin and end with the input, be it padding",
    "xlnet": "its head takes the last token of the input: its tokenizer pads on the left",
}
"""Maps types of models that padding changes by design to the reason."""

APPENDS = {
    "xlm": "its generate appends a masked token, whose logits it takes",
    "xlnet": "its generate appends a token, whose logits it takes",
}
"""Maps types of models that generate differently by design to the reason."""


def padding_right(subject: Subject) -> str | None:
    """A row has the same logits alone and padded on the right, next to a longer row."""
    row, neighbour = _row(subject, 0), _row(subject, 1)
    short = _shorter(row)
    filled = _filled(subject, row.shape[1])
    cut = _cut(subject, row, short)
    filled[:, :short] = cut
    mask = torch.ones(2, row.shape[1], dtype=torch.long)
    mask[0, short:] = 0
    actual = _logits(subject, torch.cat([filled, neighbour]), {MASK: mask})
    actual = _logits_of_row(subject, actual, slice(short))
    _require_padded(subject, actual, _alone(subject, cut), "padded on the right")
    return None


def padding_left(subject: Subject) -> str | None:
    """A row has the same logits alone and padded on the left, next to a longer row."""
    row, neighbour = _row(subject, 0), _row(subject, 1)
    short = _shorter(row)
    begin = row.shape[1] - short
    cut = _cut(subject, row, short)
    expected = _alone(subject, cut)
    mask = torch.ones(2, row.shape[1], dtype=torch.long)
    mask[0, :begin] = 0
    extras = {MASK: mask}
    if subject.takes(POSITIONS):  # those that ``generate`` passes with this mask
        first = _first_position(subject)
        extras[POSITIONS] = (mask.cumsum(-1) - 1).clamp(min=0) + first

    def padded(filled: Any) -> Array:
        filled[:, begin:] = cut
        actual = _logits(subject, torch.cat([filled, neighbour]), extras)
        return _logits_of_row(subject, actual, slice(begin, None))

    actual = padded(_filled(subject, row.shape[1]))
    if _equal(subject, actual, expected):
        return None
    if not subject.takes(POSITIONS) and _equal(subject, padded(row.clone()), actual):
        raise NoAnswer(f"forward takes no {POSITIONS}: it cannot know where a row begins")
    if getattr(subject.config, "is_encoder_decoder", False) and DECODER not in subject.batch:
        raise NoAnswer("its decoder begins at the first token of the input, be it padding")
    if subject.head.labels is Labels.ROW and _reads_first(subject, row):
        raise NoAnswer("its head takes the first token of the input, be it padding")
    _require_padded(subject, actual, expected, "padded on the left")
    return None


def _require_padded(subject: Subject, actual: Array, expected: Array, case: str) -> None:
    why = SEES_PADDING.get(getattr(subject.config, "model_type", ""))
    if why and not _equal(subject, actual, expected):
        raise NoAnswer(why)
    _require(subject, actual, expected, case)


def _cut(subject: Subject, row: Any, length: int) -> Any:
    """The beginning of a row. Some heads for rows look for the end of the row, so the last token
    stays the last one."""
    cut = row[:, :length].clone()
    if subject.head.labels is Labels.ROW:
        cut[:, -1] = row[:, -1]
    return cut


def _logits_of_row(subject: Subject, actual: Array, tokens: slice) -> Array:
    """The logits of the first row; if logits belong to tokens, only those of ``tokens``."""
    return actual[:1, tokens] if subject.for_each_token else actual[:1]


def _reads_first(subject: Subject, row: Any) -> bool:
    """Whether a head for rows uses only the model's output for the first token."""
    outputs: list[Any] = []
    width = row.shape[1]

    def computed(_: Any, __: Any, output: Any) -> None:
        is_tensor = isinstance(output, torch.Tensor) and output.requires_grad
        if is_tensor and output.ndim == 3 and max(output.shape[1:]) >= width:
            outputs.append(output)

    hooks = [part.register_forward_hook(computed) for part in subject.module.modules()]
    try:
        total = logits_of(run(subject.module, {"input_ids": row})).sum()
    finally:
        for hook in hooks:
            hook.remove()
    slopes = (
        torch.autograd.grad(total, each, retain_graph=True, allow_unused=True)[0]
        for each in reversed(outputs)
    )
    gradient = next((slope for slope in slopes if slope is not None), None)
    if gradient is None:
        return False
    by_token = gradient if gradient.shape[1] >= width else gradient.transpose(1, 2)
    return bool(by_token[:, 0].any()) and not by_token[:, 1:].any()


def packing(subject: Subject) -> str | None:
    """Two rows have the same logits alone and packed in one row with restarted positions."""
    if not subject.takes(POSITIONS):
        raise NoAnswer(f"forward takes no {POSITIONS}: packing is not offered")
    reasons = {name: _packed(subject) for name in _implementations(subject)}
    failures = {name: reason for name, reason in reasons.items() if reason}
    passing = _listed(set(reasons) - set(failures))
    if failures.keys() - {COMPILED}:
        others = f"; right with {passing}" if passing else ""
        raise Wrong(f"{next(iter(failures.values()))} with {_listed(failures)}{others}")
    return f"with {passing}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _implementations(subject: Subject) -> Iterator[str]:
    """Switch the model to each implementation of attention that runs here, then back."""
    module = subject.module
    original = getattr(subject.config, "_attn_implementation", None)
    if not hasattr(module, "set_attn_implementation") or original is None:
        yield "its own attention"
        return
    try:
        for name in IMPLEMENTATIONS:
            if name == original or _runs(subject, name):
                module.set_attn_implementation(name)
                yield name
    finally:
        module.set_attn_implementation(original)


def _runs(subject: Subject, name: str) -> bool:
    """Whether the model offers an implementation and can run with it.

    A model that ignores the choice would only be tested twice.
    """
    try:
        subject.module.set_attn_implementation(name)
        if subject.config._attn_implementation != name:
            return False
        _alone(subject, _row(subject, 0))
    except Exception:
        return False
    return True


def _packed(subject: Subject) -> str:
    """How packed rows differ from single rows; empty if they do not."""
    rows = [_row(subject, 0), _row(subject, 1)]
    width = rows[0].shape[1]
    lengths = [_shorter(rows[0]), width - _shorter(rows[0])]
    cut = [row[:, :size] for row, size in zip(rows, lengths, strict=True)]
    expected = numpy.concatenate([_alone(subject, row) for row in cut], 1)
    begin = _first_position(subject)
    positions = torch.cat([torch.arange(size) for size in lengths])[None] + begin
    packed = torch.cat(cut, 1)
    actual = _logits(subject, packed, {POSITIONS: positions})
    if _equal(subject, actual, expected):
        return ""
    if _right_with_lengths(subject, packed, positions, lengths, expected):
        return ""
    return _how(subject, actual, expected, "in two packed rows")


def _right_with_lengths(
    subject: Subject, packed: Any, positions: Any, lengths: list[int], expected: Array
) -> bool:
    """Whether the logits are right if we pass all that a flash-attention collator can pass."""
    ends = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    longest = max(lengths)
    numbers = torch.cat([torch.full((size,), at) for at, size in enumerate(lengths)])
    extras = {
        POSITIONS: positions,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": numbers[None].int(),
    }
    try:
        return _equal(subject, _logits(subject, packed, extras), expected)
    except TypeError:  # its forward does not take them
        return False


def _first_position(subject: Subject) -> int:
    """The position of a row's first token: 0, or the padding token plus 1 as in RoBERTa.

    Raises NoAnswer if the model counts in another way.
    """
    row = _row(subject, 0)
    expected = _alone(subject, row)
    positions = torch.arange(row.shape[1])[None]
    padding = getattr(subject.config, "pad_token_id", None)
    for begin in (0, *((padding + 1,) if isinstance(padding, int) else ())):
        if _equal(subject, _logits(subject, row, {POSITIONS: positions + begin}), expected):
            return begin
    raise NoAnswer("positions that count from 0 change the logits of a single row")


def generation(subject: Subject) -> str | None:
    """Tokens generated one by one with the cache have the same logits as in a single pass."""
    module = subject.module
    if not hasattr(module, "generate"):
        raise NoAnswer("the model has no generate")
    if why := APPENDS.get(getattr(subject.config, "model_type", "")):
        raise NoAnswer(why)
    row = _row(subject, 0)
    prompt = row[:, : row.shape[1] // 4]
    settings = {
        "do_sample": False,
        "use_cache": True,
        "max_new_tokens": row.shape[1] - prompt.shape[1],
        "return_dict_in_generate": True,
        "output_logits": True,
        "eos_token_id": None,
        "pad_token_id": 0,
        **_decoder_settings(subject),
    }
    with torch.no_grad():
        seed(SEED)
        output = module.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    actual = torch.stack(output.logits, 1).float().cpu().numpy()
    if DECODER in subject.batch:
        expected = _logits(subject, prompt, {DECODER: output.sequences})[:, :-1]
    else:
        expected = _alone(subject, output.sequences)[:, prompt.shape[1] - 1 : -1]
    _require(subject, actual, expected, "generated with the cache")
    return None


def _decoder_settings(subject: Subject) -> dict[str, Any]:
    """Settings of ``generate`` for a model with an encoder. They suppress special tokens: some
    models count positions differently where padding is."""
    if DECODER not in subject.batch:
        return {}
    return {
        "decoder_start_token_id": int(subject.batch[DECODER][0, 0]),
        "num_beams": 1,
        "suppress_tokens": list(range(FIRST)),
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _alone(subject: Subject, row: Any) -> Array:
    return _logits(subject, row, {})


def _logits(subject: Subject, tokens: Any, extras: Mapping[str, Any]) -> Array:
    inputs = {**subject.beside(len(tokens)), **extras}
    on_device = {n: v.to(tokens.device) if hasattr(v, "to") else v for n, v in inputs.items()}
    return logits(subject.module, {"input_ids": tokens, **on_device})


def _row(subject: Subject, number: int) -> Any:
    tokens = subject.tokens
    if len(tokens) < 2:
        raise NoAnswer("the batch has one row; this needs two")
    return tokens[number : number + 1]


def _shorter(row: Any) -> int:
    """The length of a cut row: a little more than half, and more than a window."""
    return int(row.shape[1]) * 11 // 20


def _filled(subject: Subject, width: int) -> Any:
    """A row of padding."""
    padding = getattr(subject.config, "pad_token_id", None)
    filled = torch.full((1, width), padding if isinstance(padding, int) else 0)
    return filled.to(subject.tokens.device)


def _equal(subject: Subject, actual: Array, expected: Array) -> bool:
    if actual.shape != expected.shape:
        raise NoAnswer(f"logits have the shapes {actual.shape} and {expected.shape}")
    return subject.equal(actual, expected)


def _require(subject: Subject, actual: Array, expected: Array, case: str) -> None:
    if not _equal(subject, actual, expected):
        raise Wrong(_how(subject, actual, expected, case))


def _how(subject: Subject, actual: Array, expected: Array, case: str) -> str:
    """How far logits are off, and from which token on."""
    how = f"{off_by(actual, expected)} {case}"
    if subject.head.labels is Labels.ROW:
        return how
    away = numpy.linalg.norm(actual - expected, axis=-1)[0]
    sizes = numpy.linalg.norm(expected, axis=-1)[0]
    token = int(numpy.argmax(away > SAFE * subject.allowed * sizes))
    return f"{how}, from token {token} on (of {len(away)})"
