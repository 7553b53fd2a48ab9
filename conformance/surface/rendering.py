"""Listings as text: the table by technique, used and unused parameters, and what a version changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from conformance.surface.listing import Listing, Parameter, PublicCallable
from conformance.surface.scope import SurfaceScope
from conformance.surface.usage import reason, unused

HEADER = ("technique", "callables", "called", "parameters", "used", "reason", "unused")


def rows(listing: Listing, scope: SurfaceScope) -> list[tuple[str, ...]]:
    """A row for each technique in the order of the scope, and the sum."""
    counts = {technique: Counter[str]() for technique in scope.techniques}
    for name, entry in listing.callables.items():
        used, parameters = listing.used.get(name, {}), entry.parameters or {}
        kinds = Counter(
            "used" if used.get(key) else "reason" if reason(scope, name, entry, key) else "unused" for key in parameters
        )
        kinds.update(callables=1, called=int("" in used), parameters=len(parameters))
        counts.setdefault(entry.technique, Counter()).update(kinds)
    counts["all"] = sum(counts.values(), Counter())
    return [(technique, *(str(each[column]) for column in HEADER[1:])) for technique, each in counts.items()]


def unused_lines(listing: Listing, scope: SurfaceScope) -> Iterator[str]:
    """What no recording used, without a reason; a line for each callable."""
    for name, called, left in unused(listing, scope):
        entry = listing.callables[name]
        note = "" if called else " never called" + ("" if entry.parameters is not None else ", no signature")
        yield f"{name}:{note}{';' if note and left else ''}{' ' if left else ''}{', '.join(left)}"


def used_lines(listing: Listing) -> Iterator[str]:
    """The classes of values that recordings gave to each parameter."""
    for name, parameters in listing.used.items():
        for key, values in parameters.items():
            yield f"{name}({key}): {', '.join(values)}" if key else f"{name}: {', '.join(values)}"


def changes(old: Listing, new: Listing, scope: SurfaceScope) -> Iterator[str]:
    """What differs between two versions and no recording of the new one judges."""
    for name in sorted(old.callables.keys() | new.callables.keys()):
        before, after = old.callables.get(name), new.callables.get(name)
        if after is None:
            yield f"- {name}: removed"
        elif before is None:
            if not new.used.get(name) and not reason(scope, name, after):
                yield f"- {name}: new callable ({', '.join(after.parameters or ()) or 'no parameters'})"
        else:
            yield from (f"- {name}({key}): {text}" for key, text in _parameters(name, before, after, new, scope))


def _parameters(
    name: str, before: PublicCallable, after: PublicCallable, new: Listing, scope: SurfaceScope
) -> Iterator[tuple[str, str]]:
    old_ones, new_ones = before.parameters or {}, after.parameters or {}
    for key in [*old_ones, *(key for key in new_ones if key not in old_ones)]:
        if key not in new_ones:
            yield key, "removed"
        elif key not in old_ones:
            if not new.used.get(name, {}).get(key) and not reason(scope, name, after, key):
                yield key, f"new parameter, {_default(new_ones[key])}"
        elif (old_ones[key].default, old_ones[key].of) != (new_ones[key].default, new_ones[key].of):
            yield key, f"{_default(new_ones[key])}, was {old_ones[key].default or 'none'}"


def _default(parameter: Parameter) -> str:
    return "no default" if parameter.default is None else f"default {parameter.default}"
