"""What a path can be. Pure data."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Place"]


class Place(StrEnum):
    """What a path is, as far as a person would care before something is done to it."""

    ROOT = "root"  # the root of the file system, or all that is in it
    HOME = "home"  # somebody's whole home
    INSIDE_HOME = "inside-home"
    SYSTEM_ROOT = "system-root"  # a top directory of the system; also SYSTEM
    SYSTEM = "system"
    DEVICE = "device"  # a disk, memory, a port: what stands in /dev and is not a plain stream
    STREAM = "stream"  # /dev/null, /dev/stdout, a terminal
    NETWORK = "network"  # /dev/tcp/…
    TEMP = "temp"
    SECRET = "secret"  # noqa: S105  the word, not one
    STARTUP = "startup"  # read and run by something else later: shells, cron, systemd, git hooks
    AGENT = "agent"  # what tells an agent what it may do
    GUARD = "guard"  # what checks a project's changes, or tells agents how to work in it
    OWN = "own"  # this runtime's own files
    DATA = "data"  # a database, a dump
    REMADE = "remade"  # in the project: what a build or an installation makes again
    HISTORY = "history"  # a repository's own folder
    STORED = "stored"  # a folder that by its name holds data nobody can make again
    PROJECT = "project"
    OUTSIDE = "outside"  # none of these
    UNKNOWN = "unknown"
