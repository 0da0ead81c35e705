"""The parameters that an optimizer trains, and what is known of them from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...training.parameters import Modules, Watched, count_foreign, is_complete, watched
from ..posting.posts import Post
from ..process import world
from ..sampling.gradient_samples import Leftovers
from ..sampling.optimizers import kind_of
from ..sampling.samples import chosen
from ..sampling.weight_sums import FinalSums, WeightSums


class TrainedModel:
    """The parameters of one optimizer, and those with gradients that no optimizer has."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self.modules: Modules | None = None
        self.sums: WeightSums | None = None
        self.leftovers = Leftovers()
        self.is_complete = True
        """Whether this rank has all that is trained: the others have copies of it."""
        self.is_in_modules = True
        """Whether modules have parameters of the optimizer: others are copies of them."""
        self.has_no_wrapper = False
        """Whether nothing says which ranks have copies of some weights."""
        self.foreign = 0
        """Tensors of the optimizer that belong to no module, and had no gradient in the last
        check."""
        self.was_alone = False
        """Whether nothing reduced the gradients of the last checked step."""
        self.is_described = False
        """Whether rank 0 knows the parameters."""
        self._ids: frozenset[int] = frozenset()
        self.trained: tuple[tuple[int, bool], ...] = ()
        """The ids of the parameters, and whether they train; empty if weights may be others now."""
        self.final = FinalSums()

    def find(self, optimizer: Any, parameter_ids: set[int], modules: Callable[[], Modules]) -> bool:
        """Find the parameters, if they are others than before; returns whether that was so.

        ``parameter_ids`` are those of the parameters of all optimizers.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = tuple((id(p), p.requires_grad) for p in parameters)
        # A loop unfreezes some, or a package has replaced them.
        if trained == self.trained and self.modules is not None:
            return False
        self.modules = modules()
        self.watched = watched(optimizer, self.modules, parameter_ids)
        self.trained, self._ids = trained, frozenset(map(id, parameters))
        self.is_described, self.leftovers = False, Leftovers()
        self.is_complete = is_complete([one.described for one in self.watched])
        self.is_in_modules = not self.modules.names.keys().isdisjoint(self._ids)
        self.has_no_wrapper = any(not one.described.ranks for one in self.watched)
        self.sums = WeightSums(self.watched)
        return True

    def numbers(self, check: int) -> list[int]:
        """The numbers of the parameters that a check looks at."""
        return chosen(tuple([one.described.name for one in self.watched]), check)

    @property
    def has_engine(self) -> bool:
        """Whether a package reduces gradients after the backward."""
        return self.modules is not None and self.modules.has_engine

    def holds(self, parameters: set[int]) -> bool:
        """Whether the optimizer has one of these parameters."""
        return not parameters.isdisjoint(self._ids)

    def note_end(self) -> None:
        """Note the sums of the last step: it may be the last one of the training."""
        if world() > 1 and self.sums is not None:
            self.final.note(self.watched, self.sums)

    def describe(self, post: Post, optimizer: Any, is_wrapped: bool) -> None:
        """Say in a post what is trained. A wrapper's own copies are not foreign."""
        modules = self.modules
        post.parameters.kind = kind_of(optimizer)
        if not self.is_described and self.sums is not None:
            post.parameters.described = [one.described for one in self.watched]
            post.tensors["first_bits"] = self.sums.first
            self.is_described = True
        if not is_wrapped:
            self.foreign = post.gradients.foreign = count_foreign(optimizer, modules)
        post.loop.averages = modules.averages if modules else ""
        post.gradients.unheld = [
            one.described.name
            for one in self.watched
            if not one.described.optimized and one.parameter.grad is not None
        ]
