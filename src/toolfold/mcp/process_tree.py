"""Kill a process with all its descendants: by a watcher process on POSIX systems, by a job object on Windows.

Both also work if this process is killed: the system closes the pipe to the watcher or the handle of the job,
and the rest of the tree ends. The Windows part has not been run on Windows; see `docs/windows.md`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Any, Protocol

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMIT_INFORMATION = 9
_SET_QUOTA_AND_TERMINATE = 0x0100 | 0x0001


class ProcessTree(Protocol):
    """A process and all its descendants."""

    def end(self) -> None:
        """Kill the remaining processes of the tree. Calling it again has no effect."""

    def kill_group(self) -> None:
        """Kill the first process and its process group, for processes that survived `end`."""


class WatchedGroup:
    """POSIX process group that a watcher process kills when this process ends or closes a pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid, self._pipe = pid, pipe

    def end(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)


class _BasicLimits(ctypes.Structure):
    """The Windows structure JOBOBJECT_BASIC_LIMIT_INFORMATION."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """The Windows structure JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class WindowsJob:
    """A Windows job object; its processes end when its last handle is closed."""

    def __init__(self, pid: int, kernel32: Any) -> None:
        """Put a process into a new job object. Raises OSError if Windows refuses."""
        self._kernel = kernel32
        self._job = self._require(kernel32.CreateJobObjectW(None, None))
        try:
            limits = ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            size = ctypes.sizeof(limits)
            kind = _EXTENDED_LIMIT_INFORMATION
            self._require(kernel32.SetInformationJobObject(self._job, kind, ctypes.byref(limits), size))
            self._add_process(pid)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        job, self._job = self._job, None
        if job:
            self._kernel.TerminateJobObject(job, 1)
            self._kernel.CloseHandle(job)

    def kill_group(self) -> None:
        self.end()

    def _add_process(self, pid: int) -> None:
        process = self._require(self._kernel.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, pid))
        try:
            self._require(self._kernel.AssignProcessToJobObject(self._job, process))
        finally:
            self._kernel.CloseHandle(process)

    def _require(self, result: Any) -> Any:
        if not result:
            raise OSError(f"Windows error {self._kernel.GetLastError()} while a job object was set up")
        return result


def load_kernel32() -> Any:
    """Load the Windows library kernel32 and declare the types of its functions. Windows only."""
    if sys.platform == "win32":
        library = ctypes.WinDLL("kernel32")
        handle = ctypes.c_void_p
        library.CreateJobObjectW.restype = library.OpenProcess.restype = handle
        library.SetInformationJobObject.argtypes = (handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)
        library.AssignProcessToJobObject.argtypes = (handle, handle)
        library.TerminateJobObject.argtypes = (handle, ctypes.c_uint32)
        library.CloseHandle.argtypes = (handle,)
        return library
    raise OSError("job objects exist on Windows only")
