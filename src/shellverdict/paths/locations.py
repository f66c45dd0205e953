"""Classify absolute paths by their first directories: system, home, temporary, device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shellverdict.names import split_names
from shellverdict.paths.kinds import PathKind
from shellverdict.paths.patterns import NamePattern, could_match, has_wildcards, is_unknown
from shellverdict.shell.words import GAP

__all__ = ["kinds_by_location", "kinds_on_drive"]


SYSTEM_TOP_DIRECTORIES = split_names(
    "etc usr bin sbin lib lib32 lib64 libx32 boot var opt sys proc dev run system library applications "
    "private nix snap"
)
HOME_PARENTS = frozenset(("home", "users"))
TOP_DIRECTORIES = SYSTEM_TOP_DIRECTORIES | HOME_PARENTS | {"root", "tmp", "mnt", "srv", "media", "volumes"}
SECOND_LEVEL_SYSTEM_ROOTS: Mapping[str, frozenset[str]] = {
    "usr": split_names("bin sbin lib lib32 lib64 libexec local share include games"),
    "var": split_names("lib db root"),
    "etc": split_names("ssh ssl pam.d systemd cron.d sudoers.d init.d"),
    "lib": split_names("modules systemd"),
    "system": split_names("library applications volumes"),
    "library": split_names("launchdaemons launchagents extensions keychains preferences"),
}
STREAM_DEVICES = split_names("null zero full random urandom stdin stdout stderr fd tty console ptmx pts log")
_NOT_A_DISK = re.compile(
    r"(?:usb|input|snd|dri|net|bus|vfio|v4l|serial|char|cpu|mqueue|hugepages|lp|video|audio|dsp|hidraw|i2c-|spidev"
    r"|gpio\w*|watchdog|rtc|uinput|kvm|fuse|cuse|vhost|media|midi|sequencer|cu\.|uhid|rfkill|hpet|nvram|tpm|bpf"
    r"|kmsg|autofs|btrfs-control|loop-control|ppp|vcs|fb)[\w.-]*"
)
WINDOWS_SYSTEM_DIRECTORIES = frozenset(
    ("windows", "program files", "program files (x86)", "programdata", "boot", "recovery")
)
ROOT_PATTERN_MATCHES = 3  # a pattern with this many matches at the top means the root


def kinds_by_location(parts: Sequence[str]) -> frozenset[PathKind]:
    """Classify an absolute path by its leading components, for example as part of a home directory."""
    if not parts:
        return frozenset({PathKind.ROOT})
    top = parts[0].lower()
    if has_wildcards(top):
        return _kinds_by_top_pattern(top, parts)
    if top in HOME_PARENTS:
        return _kinds_in_homes(parts)
    if top == "root":
        return frozenset({PathKind.HOME if len(parts) == 1 else PathKind.INSIDE_HOME})
    if top == "tmp":
        return frozenset({PathKind.TEMP})
    if top in ("mnt", "cygdrive") and len(parts) > 1 and len(parts[1]) == 1:
        return kinds_on_drive(parts[2:])
    if len(top) == 1 and len(parts) > 1 and parts[1].lower() in WINDOWS_SYSTEM_DIRECTORIES | {"users"}:
        return kinds_on_drive(parts[1:])
    return _kinds_in_system(top, parts) if top in SYSTEM_TOP_DIRECTORIES else frozenset({PathKind.OUTSIDE})


def _kinds_by_top_pattern(top: str, parts: Sequence[str]) -> frozenset[PathKind]:
    if is_unknown(top):
        return frozenset({PathKind.UNKNOWN})
    pattern = NamePattern(top)
    candidates = [name for name in sorted(TOP_DIRECTORIES) if pattern.matches(name)]
    if len(candidates) >= ROOT_PATTERN_MATCHES and len(parts) == 1:
        return frozenset({PathKind.ROOT})
    kinds = [kinds_by_location([name, *parts[1:]]) for name in candidates]
    return frozenset[PathKind]().union(*kinds) or frozenset({PathKind.OUTSIDE})


def _kinds_in_homes(parts: Sequence[str]) -> frozenset[PathKind]:
    return frozenset({PathKind.HOME if len(parts) <= 2 else PathKind.INSIDE_HOME})


def _kinds_in_system(top: str, parts: Sequence[str]) -> frozenset[PathKind]:
    second = parts[1].lower() if len(parts) > 1 else ""
    if top == "private":
        return kinds_by_location(parts[1:]) if second in ("etc", "var", "tmp") else _system_kinds(parts)
    if top == "var" and second in ("tmp", "folders"):
        return frozenset({PathKind.TEMP})
    if top == "var" and second == "www" and len(parts) > 2:
        return frozenset({PathKind.OUTSIDE})  # web sites are content, not part of the system
    if top == "run" and second == "user":
        return frozenset({PathKind.TEMP})
    if top == "usr" and second == "home":
        return _kinds_in_homes(parts[1:])
    if top == "dev":
        return _kinds_in_dev(parts)
    if top == "proc" and len(parts) > 2 and parts[2].lower() == "fd":
        return frozenset({PathKind.STREAM})
    return _system_kinds(parts)


def _system_kinds(parts: Sequence[str]) -> frozenset[PathKind]:
    second = SECOND_LEVEL_SYSTEM_ROOTS.get(parts[0].lower(), frozenset())
    at_top = len(parts) == 1 or (
        len(parts) == 2 and any(could_match(parts[1].lower(), name) for name in second)
    )
    return frozenset({PathKind.SYSTEM, PathKind.SYSTEM_ROOT} if at_top else {PathKind.SYSTEM})


def _kinds_in_dev(parts: Sequence[str]) -> frozenset[PathKind]:
    if len(parts) == 1:
        return _system_kinds(parts)
    name = parts[1].lower()
    if name in STREAM_DEVICES or (name.startswith("tty") and not has_wildcards(name)):
        return frozenset({PathKind.STREAM})
    if name in ("tcp", "udp"):
        return frozenset({PathKind.NETWORK})
    if name == "shm":
        return frozenset({PathKind.TEMP})
    if _NOT_A_DISK.fullmatch(name):
        return frozenset({PathKind.SYSTEM})
    return frozenset({PathKind.DEVICE, PathKind.UNKNOWN} if GAP in name else {PathKind.DEVICE})


def kinds_on_drive(parts: Sequence[str]) -> frozenset[PathKind]:
    """Classify a path on a Windows drive: root, system, inside a home directory, or other."""
    if not parts:
        return frozenset({PathKind.ROOT})
    top = parts[0].lower()
    if top == "users":
        return _kinds_in_homes(parts)
    if top in WINDOWS_SYSTEM_DIRECTORIES:
        return frozenset({PathKind.SYSTEM, PathKind.SYSTEM_ROOT} if len(parts) == 1 else {PathKind.SYSTEM})
    return frozenset({PathKind.OUTSIDE})
