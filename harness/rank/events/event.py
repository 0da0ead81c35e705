"""What an event is: a call of a method or function, and the handlers around it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from .patches import Patches


class Place(NamedTuple):
    """A method of a class, or a function of a module."""

    module: str
    kind: str
    """The class; empty for a function."""
    name: str

    def owner(self) -> Any:
        """The class or module; None if it is not imported."""
        module = sys.modules.get(self.module)
        return getattr(module, self.kind, None) if self.kind else module


@dataclass
class Event:
    """A call that torch, or a package that trains with it, makes or gets."""

    places: ClassVar[Sequence[Place]] = ()
    """What is called. What a package has is replaced only if the package is imported."""
    eager: ClassVar[bool] = False
    """Whether calls that torch.compile traces are no events."""
    everywhere: ClassVar[bool] = False
    """Whether functions are replaced also in modules that have imported them by name."""

    owner: Any
    """The object whose method is called; None for a function."""
    value: Any = field(default=None, init=False)
    """What the call returned, for handlers after it."""

    def occurs(self) -> bool:
        """Whether there is such an event. It is asked only if somebody listens: the answer may need
        the device."""
        return True

    @classmethod
    def source(cls) -> type[Event]:
        """The kind of events that has the same patches; usually this one."""
        return cls

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        """The event of a call with these arguments."""
        return cls(arguments[0] if place.kind else None)

    def bound(
        self, original: Any, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """The call itself."""
        return partial(original, *arguments, **keywords)

    @classmethod
    def install(cls, handlers: Handlers, patches: Patches, of: Any) -> None:
        """Make the handlers run at the calls of ``places``. ``of`` is the one object that somebody
        subscribes to, if it is one."""
        import torch  # noqa: F401

        for place in cls.places:
            owner = place.owner()
            if owner is None or not hasattr(owner, place.name):
                continue
            around = _running(cls, place, handlers)
            if cls.everywhere and not place.kind:
                patches.wrap_everywhere(getattr(owner, place.name), around, cls.eager)
            else:
                patches.wrap(owner, place.name, around, cls.eager)


class Handlers(Protocol):
    """Calls the handlers of events, as ``Instrument`` does."""

    def listens(self, kind: type[Event], owner: Any) -> bool: ...

    def before(self, event: Event) -> None: ...

    def after(self, event: Event) -> None: ...

    def run(self, event: Event, call: Callable[[], Any]) -> Any: ...


def _running(kind: type[Event], place: Place, handlers: Handlers) -> Any:
    def around(original: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if not handlers.listens(kind, arguments[0] if place.kind else None):
            return original(*arguments, **keywords)
        event = kind.of_call(place, arguments, keywords)
        return handlers.run(event, event.bound(original, place, arguments, keywords))

    return around


@dataclass
class Call(Event):
    """A call with its arguments. A handler around it may replace them before it makes the call."""

    arguments: Sequence[Any]
    """Without the owner."""
    keywords: Mapping[str, Any]

    @property
    def values(self) -> list[Any]:
        """All arguments."""
        return [*self.arguments, *self.keywords.values()]

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        owner, others = (arguments[0], arguments[1:]) if place.kind else (None, arguments)
        return cls(owner, others, keywords)

    def bound(
        self, original: Any, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[[], Any]:
        owner = arguments[:1] if place.kind else ()
        return lambda: original(*owner, *self.arguments, **self.keywords)
