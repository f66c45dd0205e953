"""Arrays kept in a file, read without trust.

Whoever can write to the folder may have put anything there: a pipe that never ends, a link to elsewhere, an
archive that unpacks to a thousand times its size. Only a regular file that holds what it says, unpacked, is
read. Whether its arrays make sense is the reader's to say.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_HARMLESS = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")  # each system has some of them


@contextmanager
def arrays_in(file: Path, largest: int) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays in a file of at most so many bytes. Raises ValueError or OSError for anything else."""
    flags = os.O_RDONLY
    for name in _HARMLESS:
        flags |= getattr(os, name, 0)
    with os.fdopen(os.open(file, flags), "rb") as opened:
        _require_plain(opened, largest)
        with np.load(opened, allow_pickle=False) as stored:
            yield stored


def _require_plain(opened: IO[bytes], largest: int) -> None:
    about = os.fstat(opened.fileno())
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a file")
    if about.st_size > largest:
        raise ValueError("it is too large")
    with zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it is compressed")
    if sum(member.file_size for member in members) > about.st_size:
        raise ValueError("it claims to hold more than it does")
    opened.seek(0)
