"""Project directories that the user trusts, and whether they have changed since they were trusted.

A cloned repository must not be able to grant itself permissions, so trust is stored outside of it, with a
fingerprint of all its files that could grant or run something. Knows nothing of what the settings mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from toolfold.config.atomic import lock_directory
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.config.settings import Config, Paths
from toolfold.config.yaml_document import MAX_CONFIG_BYTES
from toolfold.core.errors import ConfigError

TrustState = Literal["trusted", "changed", "untrusted"]

PROJECT_FILE = "toolfold.yaml"
PLUGINS_DIR = Path(".toolfold", "plugins")
MAX_FILES = 5_000
MAX_TOTAL_BYTES = 64 * MAX_CONFIG_BYTES
_LINKED_PLUGINS = "a linked plugin directory cannot be trusted: changes of its target would not be noticed"


def get_trust_state(directory: Path, paths: Paths) -> TrustState:
    """Return whether a project is trusted as it is now, was changed after it was trusted, or is untrusted."""
    known = load_trusted_projects(paths).get(_resolve_directory(directory))
    if known is None:
        return "untrusted"
    try:
        return "trusted" if fingerprint_project(directory) == known else "changed"
    except ConfigError:
        return "changed"


def is_still_trusted(config: Config) -> bool:
    """Return True if the project was trusted when the settings were loaded and is still trusted."""
    if not config.project_trusted or config.project_vouched_for:
        return config.project_trusted
    return get_trust_state(config.paths.project_dir, config.paths) == "trusted"


def trust_project(directory: Path, paths: Paths) -> None:
    """Trust the project directory with its current content."""
    if not directory.is_dir():
        raise ConfigError("the directory does not exist", file=str(directory))
    found = fingerprint_project(directory)
    with lock_directory(paths.state_dir):
        _write_trusted({**load_trusted_projects(paths), _resolve_directory(directory): found}, paths)


def untrust_project(directory: Path, paths: Paths) -> bool:
    """Stop trusting a project. Return False if the project was not trusted."""
    with lock_directory(paths.state_dir):
        known = load_trusted_projects(paths)
        if known.pop(_resolve_directory(directory), None) is None:
            return False
        _write_trusted(known, paths)
    return True


def load_trusted_projects(paths: Paths) -> dict[Path, str]:
    """Return every trusted project directory with the fingerprint it had when it was trusted."""
    file = _trust_file(paths)
    try:
        known = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(each, str) for each in known.values()):
        raise ConfigError(
            "the file of trusted projects cannot be read",
            file=str(file),
            hint="delete the file, then run `toolfold plugins trust` in each project that you trust",
        )
    return {Path(directory): found for directory, found in known.items()}


def _write_trusted(known: dict[Path, str], paths: Paths) -> None:
    text = json.dumps({str(directory): found for directory, found in sorted(known.items())}, indent=2)
    write_settings(_trust_file(paths), text.encode() + b"\n", SettingsRecord(paths.state_dir), mode=0o600)


def _trust_file(paths: Paths) -> Path:
    return paths.state_dir / "trust.json"


def fingerprint_project(directory: Path) -> str:
    """Return a hash of all files in a project that could grant permissions or start programs."""
    digest = hashlib.sha256()
    left = MAX_TOTAL_BYTES
    try:
        for count, file in enumerate(_list_trusted_files(directory)):
            content = _content_to_hash(file, left)
            left -= len(content)
            if count >= MAX_FILES or left < 0:
                raise _trust_error("the plugins have too many or too large files to be trusted", directory)
            # With lengths, so that content cannot move between neighbouring files unnoticed.
            for part in (os.fsencode(file.relative_to(directory)), content):
                digest.update(len(part).to_bytes(8, "big") + part)
    except OSError as error:
        raise _trust_error(f"the directory cannot be read: {error.strerror}", directory) from None
    return digest.hexdigest()


def _list_trusted_files(directory: Path) -> Iterator[Path]:
    if _target_exists(directory / PROJECT_FILE):
        yield directory / PROJECT_FILE
    for above in (PLUGINS_DIR.parent, PLUGINS_DIR):
        if (directory / above).is_symlink():
            raise _trust_error(_LINKED_PLUGINS, directory / above)
    yield from _walk_tree(directory / PLUGINS_DIR)


def _walk_tree(directory: Path) -> Iterator[Path]:
    """Yield every file and directory below a directory in a fixed order."""
    pending = [directory] if directory.is_dir() else []
    while pending:
        for each in sorted(pending.pop().iterdir(), key=os.fsencode):
            yield each
            if each.is_dir() and not each.is_symlink():
                pending.append(each)


def _content_to_hash(file: Path, limit: int) -> bytes:
    """Return the bytes of a file that go into a project's hash; for a link, its target's path and content."""
    link = os.fsencode(file.readlink()) if file.is_symlink() else b""
    if not _target_exists(file):
        return b"link " + link
    mode = file.stat().st_mode
    if stat.S_ISDIR(mode):
        if link:
            raise _trust_error(_LINKED_PLUGINS, file)
        return b"folder"
    if not stat.S_ISREG(mode):
        raise _trust_error("only regular files and directories can be trusted", file)
    with file.open("rb") as stream:
        return b"file %d %s" % (len(link), link) + stream.read(limit + 1)


def _resolve_directory(directory: Path) -> Path:
    try:
        return directory.resolve()
    except (
        OSError,
        RuntimeError,
    ):  # a link to itself; which error is raised depends on the version of Python
        raise _trust_error("the directory cannot be found", directory) from None


def _target_exists(file: Path) -> bool:
    """Return True if the path exists; False for a link whose target does not exist."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _trust_error(problem: str, path: Path) -> ConfigError:
    return ConfigError(problem, file=str(path))
