"""Skills: directories with instructions for a task, in a format shared by several agents.

A skill is a directory with a file SKILL.md, whose front matter has `name` and `description`, and optional
files in `scripts`, `references` and `assets`. Finds, reads, writes and deletes skills. Skills of a project
are written by others and untrusted; only those in the user's own directory can be changed. Knows no tools.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolfold.config import Config
from toolfold.config.atomic import make_private_directory, replace_file
from toolfold.core.errors import CallError, closest_names, did_you_mean, shorten

__all__ = ["SKILL_FILE", "Skill", "SkillDirectory", "SkillLibrary", "open_skill_library"]

SKILL_FILE = "SKILL.md"
PROJECT_DIRECTORIES = (".toolfold/skills", ".agents/skills", ".claude/skills")
"""Directories in a project that may contain skills."""
MAX_SKILLS = 500
MAX_FILES = 200
MAX_FILE_BYTES = 200_000
MAX_FRONT_MATTER_CHARS = 20_000
MAX_DESCRIPTION_CHARS = 1_024
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_FILE_PATH = re.compile(r"(?:scripts|references|assets)(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){1,4}")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SkillDirectory:
    """A directory with skills as subdirectories."""

    path: Path
    origin: str
    """`user` or `project`."""
    root: Path | None = None
    """Directory that contains all files of the skills, also after symbolic links; None for no limit."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: its purpose and its directory."""

    name: str
    description: str
    directory: Path
    origin: str
    problem: str = ""
    """Why the skill cannot be used; empty if it can."""

    @property
    def is_trusted(self) -> bool:
        return self.origin == "user"


class SkillLibrary:
    """All skills of the user and a project; skills of the user override project skills of the same name."""

    def __init__(self, own: Path, project: Path, further: Sequence[Path] = ()) -> None:
        """Create a library. `own` and `further` are directories of the user; only `own` is writable."""
        self.own = own
        self._directories = (
            *(SkillDirectory(path, "user") for path in (own, *further)),
            *(SkillDirectory(project / path, "project", project) for path in PROJECT_DIRECTORIES),
        )

    def list_skills(self) -> list[Skill]:
        """Return all skills, sorted by name; unreadable skills include the problem."""
        found: dict[str, Skill] = {}
        for directory in self._directories:
            for skill in _read_directory(directory):
                if len(found) < MAX_SKILLS:
                    found.setdefault(skill.name, skill)
        return sorted(found.values(), key=lambda skill: skill.name)

    def find_skill(self, name: str) -> Skill:
        """Return a skill by its name. Raises CallError if it does not exist or cannot be read."""
        skills = {skill.name: skill for skill in self.list_skills()}
        skill = skills.get(name)
        if skill is None:
            hint = did_you_mean(closest_names(name, skills)) or " Use skills_list to see all."
            raise CallError(f"There is no skill {shorten(name, 80)!r}.{hint}")
        if skill.problem:
            raise CallError(f"The skill {name!r} cannot be used: {skill.problem}.")
        return skill

    def find_own_skill(self, name: str) -> Skill:
        """Return a writable skill from the user's own directory. Raises CallError if there is none."""
        directory = self.require_own_directory(name)
        skill = self.find_skill(name)
        if skill.directory != directory:  # the file's front matter has another name than its directory
            raise CallError(
                f"The skill {name!r} cannot be changed: it is in {str(skill.directory)!r}, and the front"
                f" matter of {str(directory / SKILL_FILE)!r} contains the name of another skill."
            )
        return skill

    def read_instructions(self, skill: Skill) -> str:
        """Return the text of SKILL.md after its front matter."""
        text = _read_text(skill.directory, SKILL_FILE)
        return _FRONT_MATTER.sub("", text, count=1).strip()

    def list_files(self, skill: Skill) -> list[str]:
        """Return the relative paths of a skill's files except SKILL.md, sorted, without symbolic links."""
        found = []
        for path in _walk(skill.directory):
            if path.name != SKILL_FILE or path.parent != skill.directory:
                found.append(path.relative_to(skill.directory).as_posix())
            if len(found) >= MAX_FILES:
                break
        return sorted(found)

    def read_file(self, skill: Skill, path: str) -> str:
        """Return the text of a skill's file. Raises CallError if it is binary or outside the directory."""
        return _read_text(skill.directory, path)

    def write_skill(self, name: str, description: str, instructions: str, *, replace: bool) -> Skill:
        """Create a skill, or replace its instructions, in the user's own directory."""
        if not _NAME.fullmatch(name):
            raise CallError(f"{shorten(name, 80)!r} is not a valid skill name: use a-z, 0-9 and hyphens.")
        directory = self.require_own_directory(name, must_exist=replace)
        line = " ".join(description.split())
        if not line or len(line) > MAX_DESCRIPTION_CHARS:
            raise CallError(f"The description must have 1 to {MAX_DESCRIPTION_CHARS:,} characters.")
        text = f"---\nname: {name}\ndescription: {_quote_yaml(line)}\n---\n\n{instructions.strip()}\n"
        self._write(directory / SKILL_FILE, text)
        return Skill(name, line, directory, "user")

    def write_file(self, name: str, path: str, text: str) -> None:
        """Create or replace a file in the directory `scripts`, `references` or `assets` of a user's skill."""
        target = self._own_file(name, path)
        self._write(target, text)

    def delete_file(self, name: str, path: str) -> None:
        """Delete a file of a skill in the user's own directory."""
        target = self._own_file(name, path)
        if not target.is_file():
            raise CallError(f"The skill {name!r} has no file {path!r}.")
        target.unlink()

    def delete_skill(self, name: str) -> None:
        """Delete a skill in the user's own directory, with all its files."""
        shutil.rmtree(self.require_own_directory(name))

    def require_own_directory(self, name: str, *, must_exist: bool = True) -> Path:
        """Return the directory of a user's skill. Raises CallError if it is missing or, if new, taken."""
        directory = self.own / name
        exists = directory.is_dir() and not directory.is_symlink() and (directory / SKILL_FILE).is_file()
        if must_exist and not (_NAME.fullmatch(name) and exists):
            others = ", ".join(
                skill.name for skill in self.list_skills() if skill.directory.parent == self.own
            )
            raise CallError(
                f"There is no skill {shorten(name, 80)!r} that can be changed."
                f" Skills that can be changed: {others or 'none'}."
            )
        if not must_exist and (directory.exists() or directory.is_symlink()):
            raise CallError(f"There is already a skill {name!r}. Use the action `edit` to change it.")
        return directory

    def _own_file(self, name: str, path: str) -> Path:
        if not _FILE_PATH.fullmatch(path):
            raise CallError(
                f"{shorten(path, 100)!r} cannot be used: give a path such as scripts/build.py, in scripts,"
                " references or assets."
            )
        directory = self.require_own_directory(name)
        target = directory / path
        if not target.parent.resolve().is_relative_to(directory.resolve()) or target.is_symlink():
            raise CallError(f"{path!r} leads outside the skill through a symbolic link.")
        return target

    def _write(self, target: Path, text: str) -> None:
        data = text.encode(errors="replace")
        if len(data) > MAX_FILE_BYTES:
            raise CallError(f"The text has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are accepted.")
        make_private_directory(target.parent)
        replace_file(target, data, mode=0o600)


def open_skill_library(config: Config) -> SkillLibrary:
    """Return the skills of the user and of the project, as the settings locate them."""
    return SkillLibrary(
        config.paths.config_dir / "skills", config.paths.project_dir, config.skills.directories
    )


def _read_directory(directory: SkillDirectory) -> Iterator[Skill]:
    with contextlib.suppress(OSError):  # it does not exist, or cannot be read
        for path in sorted(directory.path.iterdir())[: 2 * MAX_SKILLS]:
            if (path / SKILL_FILE).is_file() and not path.name.startswith("."):
                yield _read_skill(path, directory)


def _read_skill(path: Path, directory: SkillDirectory) -> Skill:
    try:
        if directory.root and not path.resolve().is_relative_to(directory.root.resolve()):
            raise ValueError("it is outside of the project")
        fields = _parse_front_matter(_read_text(path, SKILL_FILE))
        name, description = fields.get("name", path.name), fields.get("description")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError("the name in SKILL.md may contain only a-z, 0-9 and hyphens")
        if not isinstance(description, str) or not description.strip():
            raise ValueError("the front matter of SKILL.md has no description")
    except (ValueError, OSError, CallError) as error:
        return Skill(path.name, "", path, directory.origin, shorten(str(error)).rstrip("."))
    line = shorten(" ".join(description.split()), MAX_DESCRIPTION_CHARS)
    return Skill(name, line, path, directory.origin)


def _parse_front_matter(text: str) -> dict[str, Any]:
    """Return the front matter of a SKILL.md file. Raises ValueError if it is missing."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    match = _FRONT_MATTER.match(text.removeprefix("\ufeff"))
    if match is None or len(match.group(1)) > MAX_FRONT_MATTER_CHARS:
        raise ValueError("SKILL.md must begin with front matter between lines of ---")
    try:
        fields = YAML(typ="safe", pure=True).load(match.group(1))
    except (YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the front matter of SKILL.md is not valid YAML: {shorten(str(error), 100)}"
        ) from None
    if not isinstance(fields, dict):
        raise ValueError("the front matter of SKILL.md is not a mapping of keys to values")
    return fields


def _read_text(directory: Path, path: str) -> str:
    """Return the text of a file below a directory. Raises CallError if it cannot be read."""
    target = directory / path
    try:
        if not target.resolve().is_relative_to(directory.resolve()) or not target.is_file():
            raise CallError(f"The skill has no file {shorten(path, 100)!r}.")
        with target.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise CallError(f"{shorten(path, 100)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise CallError(f"{shorten(path, 100)!r} is not a text file.") from None
    if len(data) > MAX_FILE_BYTES:
        raise CallError(f"{shorten(path, 100)!r} is larger than {MAX_FILE_BYTES:,} bytes.")
    return text


def _walk(directory: Path, depth: int = 0) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            if path.is_symlink() or path.name.startswith("."):
                continue
            if path.is_dir() and depth < 5:
                yield from _walk(path, depth + 1)
            elif path.is_file():
                yield path


def _quote_yaml(text: str) -> str:
    """Return a text as a single-line YAML string."""
    return json.dumps(text, ensure_ascii=False)
