"""Which of a server's tools may be used: those that are what somebody accepted.

Adding a server is the first approval, so its first listing is pinned as it is, except for what the scanner
flags. From then on a tool that is new or has changed in a way that matters is held until a person accepts it
(`pin`), told of (`warn`) or let through (`off`); a harmless change is recorded. Asked again at every call,
because a list may be older than the lock. Knows no connection and asks nobody.
"""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from toolfold.config.record import SettingsRecord
from toolfold.config.settings import Config
from toolfold.config.trust import PROJECT_FILE
from toolfold.errors import ConfigError, shorten
from toolfold.sources.mcp.changes import cautious_annotations, find_meaningful_changes
from toolfold.sources.mcp.lock import Lock, Pins, lock_file
from toolfold.sources.mcp.offers import Offer
from toolfold.sources.mcp.scan import Finding, legible, scan_offer, scan_offers

Policy = Literal["pin", "warn", "off"]
Why = Literal["new", "changed", "flagged"]
_Findings = Mapping[str, tuple[Finding, ...]]

MOST_COMPARED = 400  # lines; beyond them a comparison by place would take too long

_SENTENCES = re.compile(r"(?<=[.!?:;。！？])[^\S\n]+|\n")
_PLAIN_KEY = re.compile(r"[$\w-]{1,200}", re.ASCII)
_ORDER = ("name", "title", "description", "annotations", "inputSchema", "outputSchema")
_SAID = {"new": "is new", "changed": "has changed", "flagged": "is suspicious"}


@dataclass(frozen=True, slots=True)
class Held:
    """A tool that waits for a person."""

    offer: Offer
    before: Offer | None
    """As it was accepted, where that is known."""
    why: Why
    findings: tuple[Finding, ...] = ()
    changes: tuple[str, ...] = ()
    """What has changed about it that a person must decide about."""

    def __str__(self) -> str:
        reasons = "".join(f"; {shorten(str(each), 300)}" for each in (*self.findings[:3], *self.changes[:3]))
        return f"{shorten(legible(self.offer.name), 80)!r} {_SAID[self.why]}{reasons}"


@dataclass(frozen=True, slots=True)
class Sifted:
    """A server's tools, parted."""

    accepted: tuple[Offer, ...] = ()
    held: tuple[Held, ...] = ()
    warnings: tuple[str, ...] = ()
    updated: tuple[Offer, ...] = ()
    """Those of the accepted ones whose harmless changes were recorded now."""


class Trust:
    """What was accepted of every server. Safe for several threads."""

    def __init__(
        self,
        lock_of: Callable[[str], Path],
        *,
        own: Path | None = None,
        record: SettingsRecord | None = None,
        strict: bool = False,
    ) -> None:
        """`own` keeps what was accepted here of servers whose lock comes with a project, from wherever.

        `record` tells Toolfold's own changes of the user's lock files from others. `strict` holds tools also
        for doubtful findings.
        """
        self._lock_of, self._record, self._strict = lock_of, record, strict
        self._own = None if own is None else Lock(own, record)
        self._guard = threading.Lock()
        self._locks: dict[Path, Lock] = {}
        self._offered: dict[str, tuple[Offer, ...]] = {}
        self._looked_at: dict[tuple[str, str], bool] = {}
        """Whether a tool is suspicious in itself, by server and fingerprint."""
        self._harmless: set[tuple[str, str, str]] = set()
        """Changes found harmless: server, accepted fingerprint, fingerprint."""

    @classmethod
    def of(cls, config: Config) -> Trust:
        """With the lock files where the servers are declared."""
        own = config.paths.state_dir / "mcp" / "accepted.lock"
        record = SettingsRecord(config.paths.state_dir)
        strict = config.mcp.scan == "strict"
        return cls(lambda server: lock_file(config, server), own=own, record=record, strict=strict)

    def sift(self, server: str, policy: Policy, offers: Iterable[Offer]) -> Sifted:
        """Part what may be used from what is held. Pins a server that is listed for the first time.

        Raises ConfigError where the lock file cannot be used: then nothing of the server may be.
        """
        offers = tuple(offers)
        if policy == "off":
            return self._remembered(server, Sifted(offers))
        lock, pins = self._lock(server), self._pins(server, offers)
        unknown = offers if pins is None else [each for each in offers if _differs(each, pins)]
        others = self._beside_others(server, offers)
        found = _scan(unknown, server, others)
        if pins is None:
            pins = lock.begin(server, [each for each in offers if not self._holds(found[each.name])])
        changes = {each.name: _weigh(each, pins, found, server, others) for each in unknown}
        updated = [each for each in unknown if changes[each.name] == ()]
        self._record_updates(server, lock, updated, pins)
        sifted = _parted(server, policy, offers, pins, found, changes)
        return self._remembered(server, replace(sifted, updated=tuple(updated)))

    def allows(self, server: str, policy: Policy, offer: Offer) -> Held | None:
        """None if the tool may be called as it is now; otherwise why it may not. Raises ConfigError.

        Looks at pins alone: to scan what is held anyway would let a server take up time with every call.
        """
        if policy != "pin":
            return None
        pins = self._pins(server, [offer]) or {}
        if not _differs(offer, pins) or self._was_harmless(server, offer, pins):
            return None
        return _held(offer, pins, ())

    def as_believed(self, server: str, offer: Offer) -> Offer:
        """Return a tool without the hints that make it look safer than the version a person accepted."""
        try:
            pin = (self._lock(server).pins(server) or {}).get(offer.name)
        except ConfigError:
            return offer
        if pin is None or pin.offer is None or pin.fingerprint == offer.fingerprint:
            return offer
        return replace(offer, annotations=cautious_annotations(pin.offer, offer))

    def accept(self, server: str, offers: Iterable[Offer]) -> None:
        """A person has looked at these and wants them."""
        offers, lock = tuple(offers), self._lock(server)
        lock.accept(server, offers)
        if self._own is not None and _is_a_projects(lock):
            self._own.accept(_key(server, lock), offers)

    def forget(self, server: str) -> bool:
        """The server is gone; added again, it is a new one. False if it was not known."""
        with self._guard:
            self._offered.pop(server, None)
        lock = self._lock(server)
        if self._own is not None:
            self._own.forget(_key(server, lock))
        return lock.forget(server)

    def _pins(self, server: str, offers: Iterable[Offer]) -> Pins | None:
        """What was accepted, as far as it counts here.

        A project's lock may be the work of whoever made the tools: what is suspicious must have been accepted
        here as well.
        """
        lock = self._lock(server)
        pins = lock.pins(server)
        if pins is None or self._own is None or not _is_a_projects(lock):
            return pins
        own = self._own.pins(_key(server, lock)) or {}
        doubtful = {
            each.name
            for each in offers
            if not _differs(each, pins) and _differs(each, own) and self._is_suspicious(server, each)
        }
        return {name: pin for name, pin in pins.items() if name not in doubtful}

    def _record_updates(self, server: str, lock: Lock, updated: Sequence[Offer], pins: Pins) -> None:
        if not updated:
            return
        self._harmless |= {(server, pins[each.name].fingerprint, each.fingerprint) for each in updated}
        lock.record_updates(server, updated, pins)
        if self._own is not None and _is_a_projects(lock):
            self._own.record_updates(_key(server, lock), updated, pins)

    def _was_harmless(self, server: str, offer: Offer, pins: Pins) -> bool:
        """Whether its change was found harmless here, though another version was recorded since."""
        pin = pins.get(offer.name)
        return pin is not None and (server, pin.fingerprint, offer.fingerprint) in self._harmless

    def suspicions(self, server: str, offers: Sequence[Offer]) -> list[tuple[Offer, Finding]]:
        """Scan tools that are in use anyway, and list what was not reason enough to hold them."""
        with self._guard:
            others = dict(self._offered)
        findings = scan_offers(offers, server, others)
        return [
            (each, one) for each, found in zip(offers, findings, strict=True) for one in found if one.grave
        ]

    def _holds(self, findings: Iterable[Finding]) -> bool:
        return any(finding.holds(strict=self._strict) for finding in findings)

    def _is_suspicious(self, server: str, offer: Offer) -> bool:
        key = server, offer.fingerprint
        if key not in self._looked_at:
            self._looked_at[key] = self._holds(scan_offer(offer, server, {}))
        return self._looked_at[key]

    def _lock(self, server: str) -> Lock:
        file = self._lock_of(server)
        with self._guard:
            if file not in self._locks:
                lock = Lock(file)
                self._locks[file] = lock if _is_a_projects(lock) else Lock(file, self._record)
            return self._locks[file]

    def _beside_others(self, server: str, offers: tuple[Offer, ...]) -> Mapping[str, tuple[Offer, ...]]:
        """What every server offers, and these from now on: of two that come at once, one sees the other."""
        with self._guard:
            self._offered[server] = offers
            return dict(self._offered)

    def _remembered(self, server: str, sifted: Sifted) -> Sifted:
        with self._guard:
            self._offered[server] = sifted.accepted
        return sifted


def _is_a_projects(lock: Lock) -> bool:
    """Whether it lies beside a project's settings, and so may come from somebody else."""
    return (lock.file.parent / PROJECT_FILE).exists()


def _key(server: str, lock: Lock) -> str:
    return f"{server} {lock.file}"


def _scan(offers: Sequence[Offer], server: str, others: Mapping[str, tuple[Offer, ...]]) -> _Findings:
    findings = scan_offers(offers, server, others)
    return {each.name: found for each, found in zip(offers, findings, strict=True)}


def _weigh(
    offer: Offer, pins: Pins, found: _Findings, server: str, others: Mapping[str, tuple[Offer, ...]]
) -> tuple[str, ...] | None:
    """List what has changed in a way that matters; None where there is nothing to compare with."""
    pin = pins.get(offer.name)
    if pin is None or pin.offer is None or pin.fingerprint == offer.fingerprint:
        return None
    changes = find_meaningful_changes(pin.offer, offer)
    if changes or not found[offer.name]:
        return changes
    known = scan_offers([pin.offer], server, others)[0]
    return tuple(str(finding) for finding in found[offer.name] if finding not in known)


def _parted(
    server: str,
    policy: Policy,
    offers: Sequence[Offer],
    pins: Pins,
    found: _Findings,
    changes: Mapping[str, tuple[str, ...] | None],
) -> Sifted:
    held = [
        _held(each, pins, found.get(each.name, ()), changes.get(each.name) or ())
        for each in offers
        if _differs(each, pins) and changes.get(each.name) != ()
    ]
    waiting = {each.offer.name for each in held}
    accepted = [each for each in offers if each.name not in waiting]
    warnings = [_told(server, each.name, note) for each in accepted for note in found.get(each.name, ())]
    if policy == "warn":
        return Sifted(tuple(offers), (), (*(f"{server}: {each}" for each in held), *warnings))
    return Sifted(tuple(accepted), tuple(held), tuple(warnings))


def _told(server: str, name: str, finding: Finding) -> str:
    return f"{server}: {shorten(legible(name), 80)!r}: {finding}"


def _differs(offer: Offer, pins: Pins) -> bool:
    pin = pins.get(offer.name)
    return pin is None or not pin.accepts(offer.fingerprint)


def _held(offer: Offer, pins: Pins, findings: tuple[Finding, ...], changes: tuple[str, ...] = ()) -> Held:
    pin = pins.get(offer.name)
    if pin is not None:
        return Held(offer, pin.offer, "changed", findings, changes)
    return Held(offer, None, "flagged" if any(each.grave for each in findings) else "new", findings)


def difference(before: Offer | None, after: Offer) -> tuple[str, ...]:
    """What a person must see to decide, one line each: `- ` was, `+ ` is now, the rest says where.

    Nothing is left out, and nothing in it can move a terminal's cursor or hide.
    """
    old = dict(_leaves(before)) if before else {}
    new = dict(_leaves(after))
    lines: list[str] = []
    for path in sorted({*old, *new}, key=_place):
        if old.get(path) != new.get(path):
            lines += _changes(path, old.get(path), new.get(path))
    return tuple(lines)


def _place(path: str) -> tuple[int, str]:
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    return (_ORDER.index(first) if first in _ORDER else len(_ORDER)), path


def _leaves(offer: Offer) -> Iterator[tuple[str, str]]:
    """Each value that holds no other, as text under its path."""
    waiting: list[tuple[str, Any]] = [(key, value) for key, value in offer.plain().items()]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            waiting += [(f"{path}{_step(key)}", each) for key, each in value.items()]
        elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
            waiting += [(f"{path}[{place}]", each) for place, each in enumerate(value)]
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _step(key: str) -> str:
    """One key of a path; quoted where it could be taken for several."""
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def _changes(path: str, old: str | None, new: str | None) -> list[str]:
    said = legible(path)
    was, now = _sentences(old), _sentences(new)
    if was == now:
        return [f"  {said}: only its blanks and line breaks have changed"]
    if len(was) <= 1 and len(now) <= 1:
        return [f"- {said}: {each}" for each in was] + [f"+ {said}: {each}" for each in now]
    return [f"  {said}:", *_compared(was, now)]


def _sentences(text: str | None) -> list[str]:
    """Text is compared by sentences: one that was slipped into a long paragraph stands out."""
    if text is None:
        return []
    return [part for line in _SENTENCES.split(legible(text)) if (part := line.strip())] or ["(empty)"]


def _compared(was: list[str], now: list[str]) -> Iterator[str]:
    if len(was) + len(now) <= MOST_COMPARED:
        yield from (line for line in difflib.ndiff(was, now) if not line.startswith("?"))
        return
    gone, come = Counter(was) - Counter(now), Counter(now) - Counter(was)
    if not gone and not come:
        yield "  (the same sentences in another order)"
    yield from chain((f"- {line}" for line in gone), (f"+ {line}" for line in come))
