"""Events of loaders: epochs, iterators, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .event import Event, Handlers, Place
from .patches import Patches


@dataclass
class Epoch(Event):
    """An iterator of a DataLoader is requested; the owner is the loader."""

    places = (Place("torch.utils.data", "DataLoader", "__iter__"),)


ITERATOR = Place("torch.utils.data.dataloader", "_BaseDataLoaderIter", "")


@dataclass
class NewIterator(Event):
    """An iterator of a DataLoader is constructed; the owner is the iterator."""

    places = (ITERATOR._replace(name="__init__"),)

    loader: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[1] if len(arguments) > 1 else keywords["loader"])


@dataclass
class MixedStream(Event):
    """A stream of datasets' begins to choose the next of its sources at random; the owner has the
    generator."""

    places = (
        Place(
            "datasets.iterable_dataset",
            "RandomlyCyclingMultiSourcesExamplesIterable",
            "_get_indices_iterator",
        ),
    )

    @property
    def generator(self) -> Any:
        """The generator of the stream."""
        return getattr(self.owner, "generator", None)


FETCH = "torch.utils.data._utils.fetch"


@dataclass
class NewFetcher(Event):
    """What reads a dataset is constructed: in a worker of a loader, or in a process without one."""

    places = (Place(FETCH, "_BaseDatasetFetcher", "__init__"),)

    dataset: Any

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        return cls(arguments[0], arguments[1] if len(arguments) > 1 else keywords["dataset"])


@dataclass
class Fetch(Event):
    """A batch is read from a dataset."""

    places = (
        Place(FETCH, "_MapDatasetFetcher", "fetch"),
        Place(FETCH, "_IterableDatasetFetcher", "fetch"),
    )


@dataclass
class Batch(Event):
    """An iterator of a DataLoader is asked for a batch, or has none left."""

    ended: bool = False

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        def around(original: Any, /, iterator: Any) -> Any:
            try:
                return handlers.run(cls(iterator), lambda: original(iterator))
            except StopIteration:
                handlers.after(cls(iterator, ended=True))
                raise

        patches.wrap(ITERATOR.owner(), "__next__", around)


@dataclass
class DrawnIndex(Event):
    """An iterator of a DataLoader draws the indices of a batch that it will return later."""

    places = (ITERATOR._replace(name="_next_index"),)
