"""Disks, partitions and volumes formatted, partitioned, erased or destroyed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.scene import Family, Scene
from shellverdict.names import names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["DISKS", "disk_effects"]

_MKFS = re.compile(r"(?:mkfs|newfs|mkudffs|mkntfs|mkdosfs|mke2fs|mkreiserfs|mkexfatfs|mkswap)(?:[._][\w-]+)?")
_MKFS_VALUES = names(
    "-t --type -b -L --label -N -i -I -m -U --uuid -E -O -T -F -n -s -S -c -C -d -f -G -J -M -o -r -R -v "
    "-z -l -p"
)


def disk_effects(name: str, scene: Scene) -> Iterator[Effect]:
    """Makers of file systems come under too many names for a table."""
    if _MKFS.fullmatch(name):
        yield from _mkfs(name, scene)


def _mkfs(name: str, scene: Scene) -> Iterator[Effect]:
    """Which options take values differs between them, so every word that could be the device counts."""
    words = scene.run.argv[1:]
    if not words or words[0] in ("-V", "-h", "--help", "--version"):
        return
    if "-n" in words and name.endswith(("ext2", "ext3", "ext4", "mke2fs")):
        return  # shows what it would do
    devices = [w for w in words if w.startswith("/dev/") or not w.known]
    plain = scene.options(_MKFS_VALUES).operands
    yield from _formatted(scene, *(devices or plain[:1]))


def _formatted(scene: Scene, *devices: Word, detail: str = "") -> Iterator[Effect]:
    for word in scene.each(devices):
        yield scene.destroy(Kind.FORMAT, word, scene.where(word))
    if not devices and not scene.run.more_operands:
        yield scene.effect(Kind.FORMAT, "in:device", detail=detail)


def _volume(scene: Scene, *traits: str) -> Effect:
    """Something named, not by a path: a pool, a volume group, a data set."""
    return scene.effect(Kind.FORMAT, "volume", *traits, target=scene.run.argv[-1])


def _wipefs(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-o --offset -O --output -t --types"))
    if not options.has("-n", "--no-act") and options.has("-a", "--all", "-o", "--offset"):
        yield from _formatted(scene, *options.operands)


_PARTED = names(
    "mklabel mktable mkpart mkpartfs mkfs rm resizepart resize move rescue set name toggle disk_set cp"
)


def _parted(scene: Scene) -> Iterator[Effect]:
    operands = scene.options(names("-a --align")).operands
    if any(word in _PARTED for word in operands[1:]) or (operands and scene.run.stdin is not None):
        yield from _formatted(scene, operands[0])


def _fdisk(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-b -C -c -H -L -o -S -t -w -W -N -n -u"))
    shows = options.has("-l", "--list", "-s", "-x", "--list-details", "-V", "-v", "-h", "--help")
    if options.operands and not shows:
        yield from _formatted(scene, *options.operands[:1])


def _sfdisk(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-N -O -o -w -W -X -Y --partno --backup-file"))
    shows = (
        "-l",
        "--list",
        "-d",
        "--dump",
        "-J",
        "--json",
        "-s",
        "-V",
        "--verify",
        "-F",
        "-g",
        "-n",
        "--no-act",
    )
    if options.operands and not options.has(*shows, "-T", "--list-types", "-v", "--version", "--help"):
        yield from _formatted(scene, options.operands[0])


_SGDISK_SHOWS = names(
    "-p --print -i --info -v --verify -L --list-types -P --pretend -b --backup -V --version -?"
)


def _sgdisk(scene: Scene) -> Iterator[Effect]:
    words = [word for word in scene.run.argv[1:] if word.startswith("-")]
    if "-P" in words or "--pretend" in words:
        return
    changes = [
        w for w in words if w.partition("=")[0] not in _SGDISK_SHOWS and not re.fullmatch("-[pivbL].*", w)
    ]
    if changes:
        operands = [word for word in scene.run.argv[1:] if not word.startswith("-")]
        yield from _formatted(scene, *operands[-1:])


def _gdisk(scene: Scene) -> Iterator[Effect]:
    options = scene.options()
    if options.operands and not options.has("-l"):
        yield from _formatted(scene, options.operands[0])


def _blkdiscard(scene: Scene) -> Iterator[Effect]:
    operands = scene.options(names("-o --offset -l --length -p --step")).operands
    if operands or scene.run.more_operands:
        yield from _formatted(scene, *operands)


_NVME = names(
    "format sanitize delete-ns detach-ns write write-zeroes write-uncor dsm fw-download fw-commit reset"
)


def _nvme(scene: Scene) -> Iterator[Effect]:
    operands = scene.options().operands
    if operands and operands[0] in _NVME:
        yield from _formatted(
            scene, *(word for word in operands[1:] if word.startswith("/") or not word.known)
        )


_HDPARM = re.compile(
    r"--(?:security-(?:erase|erase-enhanced|set-pass|disable|freeze|unlock|mode|prompt).*|trim-sector-ranges.*"
    r"|write-sector|repair-sector|make-bad-sector|fwdownload.*|dco-.*|sanitize-.*|yes-i-know.*)"
)


def _hdparm(scene: Scene) -> Iterator[Effect]:
    if any(_HDPARM.fullmatch(word) for word in scene.run.argv[1:]):
        yield from _formatted(scene, *scene.run.argv[-1:])


def _badblocks(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-b -c -d -e -i -o -p -t"))
    if options.has("-w") and options.operands:
        yield from _formatted(scene, options.operands[0])


_CRYPT = names("luksformat lukserase erase plainformat")
_CRYPT_KEYS = names("reencrypt lukskillslot luksremovekey luksheaderrestore")


def _cryptsetup(scene: Scene) -> Iterator[Effect]:
    operands = scene.options(
        names("-c --cipher -h --hash -s --key-size -d --key-file -S --key-slot -i -l -M --type")
    )
    words = operands.operands
    if words and words[0].lower() in _CRYPT:
        yield from _formatted(scene, *words[1:2])
    elif words and words[0].lower() in _CRYPT_KEYS:
        yield _volume(scene)


def _zfs(scene: Scene) -> Iterator[Effect]:
    options = scene.options(names("-o -O -t"))
    verb = options.operands[0] if options.operands else EMPTY
    pool = names("destroy labelclear remove detach export create add")
    data = names("destroy rollback")
    if verb in (pool if scene.run.name == "zpool" else data) and not options.has("-n"):
        yield _volume(scene)


_LVM = names("lvremove vgremove pvremove lvreduce vgreduce pvcreate lvconvert")


def _lvm(scene: Scene) -> Iterator[Effect]:
    argv = scene.run.argv
    if argv and argv[0] == "lvm" and len(argv) > 1 and argv[1] in _LVM:
        argv = argv[1:]
    options = Options.read(argv, names("-L --size -l --extents"))
    if argv and argv[0] in _LVM and options.operands and not options.has("-t", "--test"):
        yield _volume(scene)


def _mdadm(scene: Scene) -> Iterator[Effect]:
    options = scene.options(abbreviated=False)
    if options.has("--stop", "-S", "--remove", "-r", "--fail", "-f"):
        yield _volume(scene)
    if options.has("--zero-superblock", "--create", "-C"):
        yield from _formatted(scene, *(word for word in options.operands if word.startswith("/")))


def _btrfs(scene: Scene) -> Iterator[Effect]:
    words = scene.options().operands
    if len(words) > 1 and words[0].startswith(("su", "de")) and words[1].startswith(("del", "rem")):
        yield _volume(scene)
    if words[:1] == ("check",) and scene.options().has("--repair"):
        yield _volume(scene)


_DISKUTIL = re.compile(
    r"erase\w*|reformat|partitiondisk|zerodisk|randomdisk|secureerase|deletecontainer|deletevolume|eraseoptical"
    r"|splitpartition|mergepartitions|resizevolume|destroy|delete",
    re.IGNORECASE,
)


def _diskutil(scene: Scene) -> Iterator[Effect]:
    verbs = [word for word in scene.options().operands[:2] if _DISKUTIL.fullmatch(word)]
    if verbs:
        yield scene.effect(Kind.FORMAT, "in:device", target=scene.run.argv[-1])


def _format(scene: Scene) -> Iterator[Effect]:
    for word in scene.run.argv[1:2]:
        if re.fullmatch(r"[A-Za-z]:[\\/]?", word):
            yield scene.effect(Kind.FORMAT, "in:device", target=word)


def _dmsetup(scene: Scene) -> Iterator[Effect]:
    if scene.options().operands[:1] in (("remove",), ("remove_all",), ("wipe_table",)):
        yield _volume(scene)


def _always(scene: Scene) -> Iterator[Effect]:
    """Programs that do nothing else; without operands they only explain themselves, or ask."""
    operands = scene.options().operands
    if operands:
        yield from _formatted(scene, *operands[:1])


def _flashrom(scene: Scene) -> Iterator[Effect]:
    if scene.options(names("-p -c -l -i")).has("-w", "--write", "-E", "--erase"):
        yield _volume(scene, "firmware")


def _efibootmgr(scene: Scene) -> Iterator[Effect]:
    if scene.options(names("-b")).has("-B", "--delete-bootnum", "-O", "--delete-bootorder"):
        yield _volume(scene, "firmware")


_VERBS: dict[str, frozenset[str]] = {
    "gpart": names("destroy delete create bootcode restore undo"),
    "gpt": names("destroy remove create"),
    "geli": names("init kill delkey clear"),
    "camcontrol": names("format sanitize security"),
    "asr": names("restore partition"),
    "rbd": names("rm remove purge trash"),
    "ceph-volume": names("zap"),
    "drbdadm": names("invalidate wipe-md create-md down"),
    "tmutil": names("delete deletelocalsnapshots disable"),
    "vmkfstools": names("-U"),
}


def _verbs(scene: Scene) -> Iterator[Effect]:
    """Keepers of volumes that say what they do in a word."""
    if any(word in _VERBS[scene.run.name.lower()] for word in scene.run.argv[1:8]):
        yield _volume(scene)


def _repair(scene: Scene) -> Iterator[Effect]:
    """Repairs that throw data away, or write to a file system past the kernel."""
    letter = "-L" if scene.run.name == "xfs_repair" else "-w"
    if scene.options(names("-f -l -o -r")).has(letter):
        yield _volume(scene)


DISKS: Family = {
    **dict.fromkeys(_VERBS, _verbs),
    **dict.fromkeys(names("xfs_repair debugfs"), _repair),
    "wipefs": _wipefs,
    **dict.fromkeys(names("parted"), _parted),
    **dict.fromkeys(names("fdisk"), _fdisk),
    "sfdisk": _sfdisk,
    "sgdisk": _sgdisk,
    **dict.fromkeys(names("gdisk cfdisk cgdisk fixparts"), _gdisk),
    "blkdiscard": _blkdiscard,
    "nvme": _nvme,
    "hdparm": _hdparm,
    "badblocks": _badblocks,
    "cryptsetup": _cryptsetup,
    **dict.fromkeys(names("zfs zpool"), _zfs),
    **dict.fromkeys(_LVM | {"lvm"}, _lvm),
    "mdadm": _mdadm,
    "btrfs": _btrfs,
    "diskutil": _diskutil,
    "format": _format,
    "dmsetup": _dmsetup,
    **dict.fromkeys(
        names("nwipe sg_format sg_sanitize flash_erase flash_eraseall flashcp ubiformat"), _always
    ),
    "flashrom": _flashrom,
    "efibootmgr": _efibootmgr,
}
