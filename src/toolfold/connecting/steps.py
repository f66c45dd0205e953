"""What was done to other programs' files: each step with its backup, so that it can be undone to the byte.

A step is written down before the file is replaced, so that no end of the power leaves a change nobody knows
of. A file that somebody has changed since is theirs: undoing refuses, and gives both texts for a person to
compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.config.atomic import lock_directory, replace_file
from toolfold.config.authority import require_user
from toolfold.connecting.originals import Original, changed, looked_at, opened, opened_again
from toolfold.errors import ConfigError, ToolfoldError
from toolfold.model import Json, read_json
from toolfold.sources.mcp.importing.types import ClientName

_ENDING = ".before-toolfold"
_LARGEST = 10_000_000
_MOST_BACKUPS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of one file."""

    client: ClientName
    file: str
    name: str
    """What the gateway is called there."""
    entry: Json
    moved: tuple[str, ...] = ()
    """The servers that were taken out of the file, to stand behind the gateway."""
    imported: tuple[str, ...] = ()
    """The names of the moved servers in Toolfold's own settings."""
    backup: str = ""
    """The file as it was; nothing where there was none."""
    before: str = ""
    """The hash of what was there; nothing where there was no file."""
    after: str = ""
    made: tuple[str, ...] = ()
    """Folders that were made for the file, outermost first."""


class ChangedSince(ToolfoldError):
    """The file is no longer what we left. Holds what we left, as far as it is known, and what is there."""

    def __init__(self, step: Step, left: str, original: Original) -> None:
        backup = f"  {step.backup} is how it was.\n" if step.backup else ""
        super().__init__(
            f"{step.file} was changed since it was connected, so that it is not put back as it was\n{backup}"
            "  --keep-changes takes out what was put in, and leaves the rest as it is now."
        )
        self.left, self.original = left, original


class Steps:
    """All steps that were not undone, oldest first, in one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def all(self) -> list[Step]:
        """Every step. Raises ConfigError where they cannot be read."""
        try:
            if self._file.stat().st_size > _LARGEST:
                raise ValueError("it is too large")
            return [_step(each) for each in read_json(self._file.read_text("utf-8"))["steps"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"what was connected cannot be read: {error}",
                file=str(self._file),
                hint="mend it, or delete it and take the gateway out of your programs by hand",
            ) from None

    def last(self, client: ClientName, file: Path | None = None) -> Step | None:
        """The last step with this program, or with this file of it."""
        mine = (each for each in reversed(self.all()) if each.client == client)
        return next((each for each in mine if file is None or each.file == str(file)), None)

    def take(
        self,
        original: Original,
        content: bytes,
        *,
        name: str,
        entry: Json,
        moved: tuple[str, ...] = (),
        imported: tuple[str, ...] = (),
    ) -> Step:
        """Replace the file. What was there lies beside it, until the step is undone."""
        step = Step(
            client=original.client,
            file=str(original.file),
            name=name,
            entry=entry,
            moved=moved,
            imported=imported,
            before=_hash(original.data),
            after=_hash(content),
        )
        require_user(f"changing {original.target}")
        with lock_directory(self._file.parent):
            _require_same(original)
            known, last = self.all(), self.last(original.client, original.file)
            if last is not None and last.after == step.before:
                step = _joined(last, step)
                self._store([*(each for each in known if each != last), step])
                replace_file(original.target, content)
                return step
            step = _prepared(step, original)
            self._store([*known, step])
            try:
                replace_file(original.target, content)
            except ConfigError:
                self._store(known)
                _tidy(step)
                raise
        return step

    def undone(self, step: Step) -> tuple[Original, bytes | None]:
        """The file as it is, and what it would be again: None for no file. Raises ChangedSince."""
        now = looked_at(step.client, Path(step.file))
        if _hash(now.data) not in (step.before, step.after):
            raise ChangedSince(step, _left(step), now)
        return now, _kept(step)

    def without(self, step: Step, before: Original | None = None) -> tuple[Original, bytes]:
        """The file as it is, and as it would be without what the step put in, with what it took out.

        `before` is the file as it was when somebody was asked about it.
        """
        now = opened_again(before) if before else opened(step.client, Path(step.file))
        kept: Json = {}
        try:
            kept = _before(step).servers
        except ConfigError:
            if step.moved:
                raise
        back = {each: kept[each] for each in step.moved if each in kept and each not in now.servers}
        return now, changed(now, step.name, kept.get(step.name), back)

    def undo(self, step: Step, now: Original, content: bytes | None) -> None:
        """Make it so, and forget the step. The backup of a file that was put back is no longer needed."""
        require_user(f"changing {now.target}")
        with lock_directory(self._file.parent):
            _require_same(now)
            if content is None:
                now.target.unlink(missing_ok=True)
            elif content != now.data:
                replace_file(now.target, content)
            self._store([each for each in self.all() if each != step])
        if _hash(content) == step.before:
            _tidy(step)

    def _store(self, steps: list[Step]) -> None:
        said = {"steps": [dataclasses.asdict(each) for each in steps]}
        replace_file(self._file, (json.dumps(said, indent=1, ensure_ascii=False) + "\n").encode(), mode=0o600)


def _step(said: Any) -> Step:
    lists = {key: tuple(said.get(key, ())) for key in ("moved", "imported", "made")}
    step = Step(**{**said, **lists})
    if not all(isinstance(each, str) for each in (step.client, step.file, step.name, step.backup)):
        raise ValueError("a step is not described as it should be")
    return step


def _joined(last: Step, step: Step) -> Step:
    """Two steps between which nobody changed the file are one."""
    return dataclasses.replace(
        step,
        before=last.before,
        backup=last.backup,
        made=last.made,
        moved=tuple(dict.fromkeys((*last.moved, *step.moved))),
        imported=tuple(dict.fromkeys((*last.imported, *step.imported))),
    )


def _require_same(original: Original) -> None:
    """Between the look and the change there was a question, and people take their time."""
    try:
        data = original.target.read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(original.file)) from None
    if data != original.data:
        raise ConfigError(
            "the file was changed a moment ago; nothing was written",
            file=str(original.file),
            hint="try again",
        )


def _back_up(original: Original) -> Path:
    """A copy beside the file, as private as the file is."""
    file = original.file
    named = [_ENDING, *(f"{_ENDING}-{number}" for number in range(2, _MOST_BACKUPS))]
    free = next(place for each in named if not os.path.lexists(place := file.with_name(file.name + each)))
    replace_file(free, original.data or b"", mode=original.target.stat().st_mode & 0o777)
    return free


def _prepared(step: Step, original: Original) -> Step:
    """With a backup of what is there, and with a folder where there is none."""
    folder = original.target.parent
    missing = [str(each) for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder cannot be made: {error.strerror}", file=str(folder)) from None
    backup = "" if original.data is None else str(_back_up(original))
    return dataclasses.replace(step, backup=backup, made=tuple(reversed(missing)))


def _tidy(step: Step) -> None:
    """Take away what was made for the step beside the file itself."""
    if step.backup:
        Path(step.backup).unlink(missing_ok=True)
    for folder in reversed(step.made):
        with contextlib.suppress(OSError):  # somebody has put something there, or it is gone
            Path(folder).rmdir()


def _kept(step: Step) -> bytes | None:
    """What was there before."""
    if not step.before:
        return None
    try:
        data = Path(step.backup).read_bytes()
    except OSError:
        data = b""
    if _hash(data) != step.before:
        raise ConfigError(
            "the backup is gone or was changed, so that nothing can be put back as it was",
            file=step.backup,
            hint="--keep-changes takes the gateway out of the file as it is now",
        )
    return data


def _before(step: Step) -> Original:
    """The backup, read as the program would read it."""
    file = Path(step.file)
    return Original(step.client, file, file, _kept(step))


def _left(step: Step) -> str:
    """What we left there, made once more; what was there before, where that cannot be."""
    try:
        before = _before(step)
        content = changed(before, step.name, step.entry, dict.fromkeys(step.moved))
    except ConfigError:
        return ""
    return (content if _hash(content) == step.after else before.data or b"").decode("utf-8-sig")


def _hash(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
