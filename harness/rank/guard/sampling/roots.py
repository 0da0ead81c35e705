"""What the graph of a loss says of it before its backward: which numbers multiply its terms.

Only numbers of the host are read, so nothing waits for a device.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...training.callers import numbers_of_losses

DEPTH = 64
"""Operations between a loss and what it is made of: a limit of time."""

SINK = "_DDPSink"
"""What DDP makes of all outputs of a model, if some of its parameters may have no gradient."""

SAME = ("Neg", "ToCopy", "Clone", "Alias", "Squeeze", "Unsqueeze", "View", "ReshapeAlias", SINK)
"""Operations that change no size of a loss."""
OF_CLASSES = ("NllLoss", "NllLoss2D")

MULTIPLIER = "transformers.trainer"
"""A module that multiplies losses by the number of ranks."""

Edge = tuple[Any, int]
"""An operation, and the number of its output."""


@dataclass
class Term:
    """A part of a loss that is added to others."""

    node: Any
    """The operation that made it, below the numbers."""
    divisors: list[Tensor] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return _kind(self.node)


@dataclass
class Chain:
    """The numbers by which a loss is multiplied, down to the first operation that does more."""

    node: Any = None
    """That operation; None of a leaf."""
    place: int = 0
    """The number of its output."""
    numbers: list[tuple[float, bool]] = field(default_factory=list)
    """Those of the host, the last one first, each with whether it divides."""
    counts: set[float] = field(default_factory=set)
    """Those of them that may be counts: a loss is divided by integers, not by floats. Packages
    multiply by the number of ranks, too."""
    is_whole: bool = True
    """Whether there is no other number between, such as one on a device."""
    follows: bool = False
    """Whether the first of these numbers is the last operation of the loss."""

    @property
    def factors(self) -> list[float]:
        """What multiplies: the number, or its reciprocal."""
        return [1 / number if divides else number for number, divides in self.numbers]

    @property
    def factor(self) -> float:
        """By which number the loss multiplies what is below."""
        return math.prod(self.factors)

    @property
    def is_mean(self) -> bool:
        """Whether the loss is a mean, times numbers of the host and plus a constant."""
        return self.is_whole and _kind(self.node) == "Mean"

    def weight(self, files: Iterable[str]) -> float:
        """Which part of the factor may be a weight that the code of some files chose: all but
        counts, such as those of ranks, of micro-batches, or of tokens. A count is a whole number by
        which no line of the code multiplies or divides a loss: ``loss / 2`` has a weight."""
        counts = self.counts - (numbers_of_losses(files) if self.counts else frozenset())
        pairs = zip(self.numbers, self.factors)
        return math.prod(factor for (number, _), factor in pairs if number not in counts)


def chain_of(root: Any) -> Chain:
    """The numbers at the end of a loss."""
    chain = Chain(root.grad_fn, root.output_nr)
    chain.follows = root.grad_fn is not None and _number(root.grad_fn) is not None
    for _ in range(DEPTH):
        node, operand = chain.node, _operand(chain.node)
        if operand is not None:
            number, divides = _number(node), _kind(node) == "Div"
            chain.is_whole = chain.is_whole and number is not None
            chain.numbers += [] if number is None else [(number, divides)]
            if number is not None and (divides or MULTIPLIER in sys.modules):
                is_count = number >= 2 and not operand.is_floating_point()
                chain.counts |= {number} if is_count else set()
        elif _kind(node) == "Add":  # of what has no gradient, as in loss = 0; loss += mean
            has_one_side = sum(one is not None for one, _ in node.next_functions) == 1
            if not has_one_side or getattr(node, "_saved_alpha", 1) != 1:
                break
        elif _kind(node) not in SAME:
            break
        chain.node, chain.place = _next((node, chain.place))
    return chain


def factor_of_terms(chain: Chain) -> float:
    """The number that multiplies a loss of classes together with its other terms, if only the
    former is divided by a number before, as by that of all tokens; 1 if there is no such number."""
    terms = _terms((chain.node, chain.place)) if chain.is_whole else []
    of_classes = [term for term in terms if term.kind in OF_CLASSES]
    others = [term for term in terms if term.kind not in OF_CLASSES]
    if len(of_classes) != 1 or not others or not of_classes[0].divisors:
        return 1.0
    divisors = of_classes[0].divisors
    is_shared = any(_is_same(a, b) for term in others for a in term.divisors for b in divisors)
    return 1.0 if is_shared else chain.factor


def at_arrival(root: Any, handler: Callable[[Tensor], None], node: Any = None) -> None:
    """Call a handler with the gradient that arrives at the operation that made ``root``, after all
    hooks of it, or at another operation."""
    place = 0 if node is not None else root.output_nr
    node = root.grad_fn if node is None else node

    def hook(gradients: Any) -> None:
        with contextlib.suppress(Exception):  # it is called within the training's backward
            handler(gradients[place].detach())

    if node is not None:
        node.register_prehook(hook)


def _terms(edge: Edge) -> list[Term]:
    terms: list[Term] = []
    edges = [(edge, list[Tensor]())]
    for _ in range(DEPTH):
        if not edges:
            break
        edge, divisors = edges.pop()
        node, _ = edge
        kind = _kind(node)
        if kind == "Add":
            edges += [(summand, divisors) for summand in node.next_functions]
        elif kind in SAME:
            edges.append((_next(edge), divisors))
        elif (operand := _operand(node)) is not None:
            edges.append((_next(edge), [*divisors, operand] if kind == "Div" else divisors))
        elif node is not None:
            terms.append(Term(node, divisors))
    return terms


def _kind(node: Any) -> str:
    """The name of an operation of torch: ``Mean`` of ``MeanBackward0``."""
    name, _, number = node.name().partition("Backward") if node is not None else ("", "", "")
    return name if number or name == SINK else ""  # those of users have no number


def _next(edge: Edge) -> Edge:
    node, place = edge
    if _kind(node) == SINK:
        return node.next_functions[place] if place < len(node.next_functions) else (None, 0)
    return next((one for one in node.next_functions if one[0] is not None), (None, 0))


def _number(node: Any) -> float | None:
    """The number of the host by which an operation multiplies or divides; None if it does anything
    else."""
    operand = _operand(node)
    if operand is None or operand.device.type != "cpu" or operand.numel() != 1:
        return None
    return float(operand) if _kind(node) == "Mul" or operand else None


def _operand(node: Any) -> Tensor | None:
    """What a loss is multiplied or divided by, if that has no gradient."""
    if _kind(node) not in ("Mul", "Div"):
        return None
    sides = [one is not None for one, _ in node.next_functions]
    if sides.count(True) != 1 or len(sides) > 2 or (_kind(node) == "Div" and not sides[0]):
        return None
    try:
        operand = node._saved_other if sides[0] else node._saved_self
    except (AttributeError, RuntimeError):  # it was written in place, or freed, or is a user's
        return None
    if len(sides) == 1 and isinstance(operand, (int, float)):  # torch's own losses divide so
        return torch.tensor(operand, dtype=torch.float64)
    is_number = isinstance(operand, Tensor) and operand.numel() == 1
    return operand if is_number and not hasattr(operand, "placements") else None


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.device.type == other.device.type == "cpu":
        return float(one) == float(other)
    return one.data_ptr() == other.data_ptr()
