"""Which project folders the user trusts, and whether they are still what was trusted.

A cloned repository must not be able to grant itself anything, so trust is kept outside of it, bound
to a fingerprint of everything in the folder that could grant or run something.
Knows nothing of what the settings mean.
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
from toolfold.config.document import MAX_CONFIG_BYTES
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.config.settings import Config, Paths
from toolfold.errors import ConfigError

TrustState = Literal["trusted", "changed", "untrusted"]

PROJECT_FILE = "toolfold.yaml"
PLUGINS_DIR = Path(".toolfold", "plugins")
MAX_FILES = 5_000
MAX_TOTAL_BYTES = 64 * MAX_CONFIG_BYTES


def get_trust_state(folder: Path, paths: Paths) -> TrustState:
    """Whether the folder may grant itself something, as it is now."""
    known = load_trusted_projects(paths).get(_resolve_directory(folder))
    if known is None:
        return "untrusted"
    try:
        return "trusted" if fingerprint_project(folder) == known else "changed"
    except ConfigError:
        return "changed"


def is_still_trusted(config: Config) -> bool:
    """Whether the project is still what was trusted: its code may run long after its settings were read."""
    if not config.project_trusted or config.project_vouched_for:
        return config.project_trusted
    return get_trust_state(config.paths.project_dir, config.paths) == "trusted"


def trust_project(folder: Path, paths: Paths) -> None:
    """Trust the folder as it is now."""
    if not folder.is_dir():
        raise ConfigError("there is no such folder to trust", file=str(folder))
    found = fingerprint_project(folder)
    with lock_directory(paths.state_dir):
        _write_trusted({**load_trusted_projects(paths), _resolve_directory(folder): found}, paths)


def untrust_project(folder: Path, paths: Paths) -> bool:
    """Forget the folder. False if it was not trusted."""
    with lock_directory(paths.state_dir):
        known = load_trusted_projects(paths)
        if known.pop(_resolve_directory(folder), None) is None:
            return False
        _write_trusted(known, paths)
    return True


def load_trusted_projects(paths: Paths) -> dict[Path, str]:
    """Every folder the user trusted, with the fingerprint it had then."""
    file = _trust_file(paths)
    try:
        known = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(each, str) for each in known.values()):
        raise ConfigError(
            "the list of trusted folders cannot be read",
            file=str(file),
            hint="delete it and trust your folders again",
        )
    return {Path(folder): found for folder, found in known.items()}


def _write_trusted(known: dict[Path, str], paths: Paths) -> None:
    text = json.dumps({str(folder): found for folder, found in sorted(known.items())}, indent=2)
    write_settings(_trust_file(paths), text.encode() + b"\n", SettingsRecord(paths.state_dir), mode=0o600)


def _trust_file(paths: Paths) -> Path:
    return paths.state_dir / "trust.json"


def fingerprint_project(folder: Path) -> str:
    """A hash of everything in the folder that could grant or run something."""
    digest = hashlib.sha256()
    left = MAX_TOTAL_BYTES
    try:
        for count, file in enumerate(_list_trusted_files(folder)):
            content = _content_to_hash(file, left)
            left -= len(content)
            if count >= MAX_FILES or left < 0:
                raise _trust_error("there are too many or too large plugin files to trust", folder)
            # Lengths keep one file's end from passing as another's beginning.
            for part in (os.fsencode(file.relative_to(folder)), content):
                digest.update(len(part).to_bytes(8, "big") + part)
    except OSError as error:
        raise _trust_error(f"the folder cannot be read: {error.strerror}", folder) from None
    return digest.hexdigest()


def _list_trusted_files(folder: Path) -> Iterator[Path]:
    if _target_exists(folder / PROJECT_FILE):
        yield folder / PROJECT_FILE
    for above in (PLUGINS_DIR.parent, PLUGINS_DIR):
        if (folder / above).is_symlink():
            raise _trust_error("a linked plugin folder cannot be watched for changes", folder / above)
    yield from _walk_tree(folder / PLUGINS_DIR)


def _walk_tree(folder: Path) -> Iterator[Path]:
    """Every file and folder, in an order that does not depend on the disk."""
    waiting = [folder] if folder.is_dir() else []
    while waiting:
        for each in sorted(waiting.pop().iterdir(), key=os.fsencode):
            yield each
            if each.is_dir() and not each.is_symlink():
                waiting.append(each)


def _content_to_hash(file: Path, limit: int) -> bytes:
    """What counts as a file's content: a link is where it points and what it shows there."""
    link = os.fsencode(file.readlink()) if file.is_symlink() else b""
    if not _target_exists(file):
        return b"link " + link
    mode = file.stat().st_mode
    if stat.S_ISDIR(mode):
        if link:
            raise _trust_error("a linked plugin folder cannot be watched for changes", file)
        return b"folder"
    if not stat.S_ISREG(mode):
        raise _trust_error("only files and folders can be trusted", file)
    with file.open("rb") as stream:
        return b"file %d %s" % (len(link), link) + stream.read(limit + 1)


def _resolve_directory(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself; which error it is depends on Python
        raise _trust_error("the folder cannot be found", folder) from None


def _target_exists(file: Path) -> bool:
    """Follows links, and takes a link that leads nowhere for nothing."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _trust_error(problem: str, place: Path) -> ConfigError:
    return ConfigError(problem, file=str(place))
