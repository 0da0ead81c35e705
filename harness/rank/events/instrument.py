"""Subscriptions to the events of a process, and the calls of their handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from .event import Event
from .patches import Patches

E = TypeVar("E", bound=Event)


@dataclass(eq=False)
class Subscription(Generic[E]):
    """Handlers of one kind of events."""

    instrument: Instrument
    kind: type[E]
    before: Callable[[E], None] | None
    after: Callable[[E], None] | None
    around: Callable[[E, Callable[[], Any]], Any] | None
    of: Any
    when: Callable[[], bool] | None

    def applies(self, owner: Any) -> bool:
        """Whether the handlers are called now at an event of this owner."""
        is_about = self.of is None or self.of is owner
        return is_about and (self.when is None or self.when())

    def end(self) -> None:
        """Call the handlers no more. The last subscription puts back what was replaced."""
        self.instrument.end(self)


class Instrument:
    """The subscriptions of a process."""

    def __init__(self) -> None:
        self._subscriptions: dict[type[Event], list[Subscription[Any]]] = {}
        self._patches: dict[type[Event], Patches] = {}

    def on(
        self,
        kind: type[E],
        *,
        before: Callable[[E], None] | None = None,
        after: Callable[[E], None] | None = None,
        around: Callable[[E, Callable[[], Any]], Any] | None = None,
        of: Any = None,
        when: Callable[[], bool] | None = None,
    ) -> Subscription[E]:
        """Call handlers at each event of a kind: before the call that it is about, after it if it
        raised nothing, or around it: ``around`` gets the event and the call, makes the call, and
        returns its value or another.

        ``of`` limits them to the calls of one object, and ``when`` to the times at which it returns
        true, such as some steps.
        """
        subscription = Subscription(self, kind, before, after, around, of, when)
        self._subscriptions.setdefault(kind, []).append(subscription)
        self._install(subscription)
        return subscription

    def refresh(self) -> None:
        """Replace also the methods of packages that were imported since."""
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                self._install(subscription)

    def _install(self, subscription: Subscription[Any]) -> None:
        kind = subscription.kind
        kind.install(self, self._patches.setdefault(kind.source(), Patches()), subscription.of)

    def end(self, subscription: Subscription[Any]) -> None:
        self._subscriptions[subscription.kind].remove(subscription)
        source = subscription.kind.source()
        if not any(of and kind.source() is source for kind, of in self._subscriptions.items()):
            self._patches.pop(source).undo()

    def listens(self, kind: type[Event], owner: Any) -> bool:
        """Whether an event of this owner would have handlers now: if it has none, nobody makes it,
        as most steps of a training have none."""
        for subscription in self._subscriptions.get(kind, ()):
            if subscription.applies(owner):
                return True
        return False

    def before(self, event: Event) -> None:
        """Call the handlers before an event whose call is made elsewhere."""
        for subscription in self._subscriptions.get(type(event), ()):
            if subscription.before is None or not subscription.applies(event.owner):
                continue
            if event.occurs():
                subscription.before(event)

    def after(self, event: Event) -> None:
        """Call the handlers after an event whose call was made elsewhere."""
        for subscription in self._subscriptions.get(type(event), ()):
            if subscription.after is not None and subscription.applies(event.owner):
                subscription.after(event)

    def run(self, event: Event, call: Callable[[], Any]) -> Any:
        """Make the call that an event is about, with the handlers. Returns its value, or what the
        handlers around it return instead."""
        subscriptions = self._subscriptions.get(type(event), ())
        applying = [one for one in subscriptions if one.applies(event.owner)]
        for subscription in applying:
            if subscription.around is not None:
                call = partial(subscription.around, event, call)
            if subscription.before is not None:
                subscription.before(event)
        event.value = call()
        for subscription in applying:
            if subscription.after is not None:
                subscription.after(event)
        return event.value


instrument = Instrument()
"""The one of this process."""
