"""Where an absolute path is by its first directories: the system's, somebody's home, a disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shellverdict.names import names
from shellverdict.places.kinds import Place
from shellverdict.places.patterns import Pattern, fits, unknown, wild
from shellverdict.shell.words import GAP

__all__ = ["located", "on_drive"]


SYSTEM_TOPS = names(
    "etc usr bin sbin lib lib32 lib64 libx32 boot var opt sys proc dev run system library applications "
    "private nix snap"
)
HOMES = frozenset(("home", "users"))
TOPS = SYSTEM_TOPS | HOMES | {"root", "tmp", "mnt", "srv", "media", "volumes"}
SECOND_TOPS: Mapping[str, frozenset[str]] = {
    "usr": names("bin sbin lib lib32 lib64 libexec local share include games"),
    "var": names("lib db root"),
    "etc": names("ssh ssl pam.d systemd cron.d sudoers.d init.d"),
    "lib": names("modules systemd"),
    "system": names("library applications volumes"),
    "library": names("launchdaemons launchagents extensions keychains preferences"),
}
STREAMS = names("null zero full random urandom stdin stdout stderr fd tty console ptmx pts log")
_NO_DISK = re.compile(
    r"(?:usb|input|snd|dri|net|bus|vfio|v4l|serial|char|cpu|mqueue|hugepages|lp|video|audio|dsp|hidraw|i2c-|spidev"
    r"|gpio\w*|watchdog|rtc|uinput|kvm|fuse|cuse|vhost|media|midi|sequencer|cu\.|uhid|rfkill|hpet|nvram|tpm|bpf"
    r"|kmsg|autofs|btrfs-control|loop-control|ppp|vcs|fb)[\w.-]*"
)
WINDOWS = frozenset(("windows", "program files", "program files (x86)", "programdata", "boot", "recovery"))
MANY = 3  # a pattern that fits so many top directories means all of them


def located(parts: Sequence[str]) -> frozenset[Place]:
    """Where an absolute path is by its first directories."""
    if not parts:
        return frozenset({Place.ROOT})
    top = parts[0].lower()
    if wild(top):
        return _located_by_pattern(top, parts)
    if top in HOMES:
        return _in_homes(parts)
    if top == "root":
        return frozenset({Place.HOME if len(parts) == 1 else Place.INSIDE_HOME})
    if top == "tmp":
        return frozenset({Place.TEMP})
    if top in ("mnt", "cygdrive") and len(parts) > 1 and len(parts[1]) == 1:
        return on_drive(parts[2:])
    if len(top) == 1 and len(parts) > 1 and parts[1].lower() in WINDOWS | {"users"}:
        return on_drive(parts[1:])
    return _in_system(top, parts) if top in SYSTEM_TOPS else frozenset({Place.OUTSIDE})


def _located_by_pattern(top: str, parts: Sequence[str]) -> frozenset[Place]:
    if unknown(top):
        return frozenset({Place.UNKNOWN})
    pattern = Pattern(top)
    candidates = [name for name in sorted(TOPS) if pattern.fits(name)]
    if len(candidates) >= MANY and len(parts) == 1:
        return frozenset({Place.ROOT})
    found = [located([name, *parts[1:]]) for name in candidates]
    return frozenset[Place]().union(*found) or frozenset({Place.OUTSIDE})


def _in_homes(parts: Sequence[str]) -> frozenset[Place]:
    return frozenset({Place.HOME if len(parts) <= 2 else Place.INSIDE_HOME})


def _in_system(top: str, parts: Sequence[str]) -> frozenset[Place]:
    second = parts[1].lower() if len(parts) > 1 else ""
    if top == "private":
        return located(parts[1:]) if second in ("etc", "var", "tmp") else _system(parts)
    if top == "var" and second in ("tmp", "folders"):
        return frozenset({Place.TEMP})
    if top == "var" and second == "www" and len(parts) > 2:
        return frozenset({Place.OUTSIDE})  # where sites are kept, not what the system runs on
    if top == "run" and second == "user":
        return frozenset({Place.TEMP})
    if top == "usr" and second == "home":
        return _in_homes(parts[1:])
    if top == "dev":
        return _in_dev(parts)
    if top == "proc" and len(parts) > 2 and parts[2].lower() == "fd":
        return frozenset({Place.STREAM})
    return _system(parts)


def _system(parts: Sequence[str]) -> frozenset[Place]:
    second = SECOND_TOPS.get(parts[0].lower(), frozenset())
    at_top = len(parts) == 1 or (len(parts) == 2 and any(fits(parts[1].lower(), name) for name in second))
    return frozenset({Place.SYSTEM, Place.SYSTEM_ROOT} if at_top else {Place.SYSTEM})


def _in_dev(parts: Sequence[str]) -> frozenset[Place]:
    if len(parts) == 1:
        return _system(parts)
    name = parts[1].lower()
    if name in STREAMS or (name.startswith("tty") and not wild(name)):
        return frozenset({Place.STREAM})
    if name in ("tcp", "udp"):
        return frozenset({Place.NETWORK})
    if name == "shm":
        return frozenset({Place.TEMP})
    if _NO_DISK.fullmatch(name):
        return frozenset({Place.SYSTEM})
    return frozenset({Place.DEVICE, Place.UNKNOWN} if GAP in name else {Place.DEVICE})


def on_drive(parts: Sequence[str]) -> frozenset[Place]:
    """Where a path on a Windows drive is."""
    if not parts:
        return frozenset({Place.ROOT})
    top = parts[0].lower()
    if top == "users":
        return _in_homes(parts)
    if top in WINDOWS:
        return frozenset({Place.SYSTEM, Place.SYSTEM_ROOT} if len(parts) == 1 else {Place.SYSTEM})
    return frozenset({Place.OUTSIDE})
