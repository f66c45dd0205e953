"""Read numpy archives from untrusted files.

Anyone who can write to the directory may have put anything there: a pipe that blocks, a symbolic link, an
archive that expands to a thousand times its size. Only a regular, uncompressed archive within the size
limit is read. The caller validates the arrays.
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

_SAFE_OPEN_FLAGS = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")  # not every platform has all of them


@contextmanager
def open_arrays(file: Path, max_bytes: int) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open a numpy archive of at most `max_bytes`. Raises ValueError or OSError for any other file."""
    flags = os.O_RDONLY
    for name in _SAFE_OPEN_FLAGS:
        flags |= getattr(os, name, 0)
    with os.fdopen(os.open(file, flags), "rb") as opened:
        _check_archive(opened, max_bytes)
        with np.load(opened, allow_pickle=False) as stored:
            yield stored


def _check_archive(opened: IO[bytes], max_bytes: int) -> None:
    status = os.fstat(opened.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    if status.st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes:,} bytes")
    with zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("the numpy archive is compressed, which is not supported")
    if sum(member.file_size for member in members) > status.st_size:
        raise ValueError("the numpy archive declares more data than it contains")
    opened.seek(0)
