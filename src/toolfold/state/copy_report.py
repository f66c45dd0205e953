"""Record what was copied from the files of this machine into the shared database."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class CopyReport:
    """What became of each object of one kind: copied, in the database already, or in conflict with it."""

    kind: str
    """The kind in the plural, such as "users"."""
    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    """Names of objects that were not copied, and why; the database was not changed."""

    def note_known(self, name: str, *, is_same: bool) -> None:
        """Record that the database has an object of this name, with the same or another content."""
        if is_same:
            self.present.append(name)
        else:
            self.conflicts[name] = "is different in the database"
