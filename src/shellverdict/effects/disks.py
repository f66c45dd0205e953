"""Detect disks, partitions and volumes that a command formats, repartitions or erases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shellverdict.effects.run_context import EffectHandlers, RunContext
from shellverdict.names import split_names
from shellverdict.options import Options
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = ["DISK_HANDLERS", "find_mkfs_effects"]

_MKFS = re.compile(r"(?:mkfs|newfs|mkudffs|mkntfs|mkdosfs|mke2fs|mkreiserfs|mkexfatfs|mkswap)(?:[._][\w-]+)?")
_MKFS_VALUES = split_names(
    "-t --type -b -L --label -N -i -I -m -U --uuid -E -O -T -F -n -s -S -c -C -d -f -G -J -M -o -r -R -v "
    "-z -l -p"
)


def find_mkfs_effects(name: str, context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effects of programs that create file systems, recognised by a name such as `mkfs.ext4`."""
    if _MKFS.fullmatch(name):
        yield from _mkfs_effects(name, context)


def _mkfs_effects(name: str, context: RunContext) -> Iterator[CommandEffect]:
    """Yield an effect for every argument of a program such as `mkfs` that may be the device to format."""
    words = context.run.argv[1:]
    if not words or words[0] in ("-V", "-h", "--help", "--version"):
        return
    if "-n" in words and name.endswith(("ext2", "ext3", "ext4", "mke2fs")):
        return  # dry run
    devices = [w for w in words if w.startswith("/dev/") or not w.is_known]
    plain = context.parse_options(_MKFS_VALUES).operands
    yield from _format_effects(context, *(devices or plain[:1]))


def _format_effects(context: RunContext, *devices: Word, detail: str = "") -> Iterator[CommandEffect]:
    for word in context.iter_operands(devices):
        yield context.destroy_effect(EffectKind.FORMAT, word, context.classify(word))
    if not devices and not context.run.has_unknown_operands:
        yield context.new_effect(EffectKind.FORMAT, "in:device", detail=detail)


def _volume_effect(context: RunContext, *traits: str) -> CommandEffect:
    """Return the effect of destroying storage that has a name but no path, such as a pool or volume group."""
    return context.new_effect(EffectKind.FORMAT, "volume", *traits, target=context.run.argv[-1])


def _wipefs_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-o --offset -O --output -t --types"))
    if not options.has("-n", "--no-act") and options.has("-a", "--all", "-o", "--offset"):
        yield from _format_effects(context, *options.operands)


_PARTED_CHANGES = split_names(
    "mklabel mktable mkpart mkpartfs mkfs rm resizepart resize move rescue set name toggle disk_set cp"
)


def _parted_effects(context: RunContext) -> Iterator[CommandEffect]:
    operands = context.parse_options(split_names("-a --align")).operands
    if any(word in _PARTED_CHANGES for word in operands[1:]) or (operands and context.run.stdin is not None):
        yield from _format_effects(context, operands[0])


def _fdisk_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-b -C -c -H -L -o -S -t -w -W -N -n -u"))
    shows = options.has("-l", "--list", "-s", "-x", "--list-details", "-V", "-v", "-h", "--help")
    if options.operands and not shows:
        yield from _format_effects(context, *options.operands[:1])


def _sfdisk_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-N -O -o -w -W -X -Y --partno --backup-file"))
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
        yield from _format_effects(context, options.operands[0])


_SGDISK_SHOWS = split_names(
    "-p --print -i --info -v --verify -L --list-types -P --pretend -b --backup -V --version -?"
)


def _sgdisk_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = [word for word in context.run.argv[1:] if word.startswith("-")]
    if "-P" in words or "--pretend" in words:
        return
    changes = [
        w for w in words if w.partition("=")[0] not in _SGDISK_SHOWS and not re.fullmatch("-[pivbL].*", w)
    ]
    if changes:
        operands = [word for word in context.run.argv[1:] if not word.startswith("-")]
        yield from _format_effects(context, *operands[-1:])


def _gdisk_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options()
    if options.operands and not options.has("-l"):
        yield from _format_effects(context, options.operands[0])


def _blkdiscard_effects(context: RunContext) -> Iterator[CommandEffect]:
    operands = context.parse_options(split_names("-o --offset -l --length -p --step")).operands
    if operands or context.run.has_unknown_operands:
        yield from _format_effects(context, *operands)


_NVME_CHANGES = split_names(
    "format sanitize delete-ns detach-ns write write-zeroes write-uncor dsm fw-download fw-commit reset"
)


def _nvme_effects(context: RunContext) -> Iterator[CommandEffect]:
    operands = context.parse_options().operands
    if operands and operands[0] in _NVME_CHANGES:
        yield from _format_effects(
            context, *(word for word in operands[1:] if word.startswith("/") or not word.is_known)
        )


_HDPARM_CHANGES = re.compile(
    r"--(?:security-(?:erase|erase-enhanced|set-pass|disable|freeze|unlock|mode|prompt).*|trim-sector-ranges.*"
    r"|write-sector|repair-sector|make-bad-sector|fwdownload.*|dco-.*|sanitize-.*|yes-i-know.*)"
)


def _hdparm_effects(context: RunContext) -> Iterator[CommandEffect]:
    if any(_HDPARM_CHANGES.fullmatch(word) for word in context.run.argv[1:]):
        yield from _format_effects(context, *context.run.argv[-1:])


def _badblocks_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-b -c -d -e -i -o -p -t"))
    if options.has("-w") and options.operands:
        yield from _format_effects(context, options.operands[0])


_CRYPT_FORMATS = split_names("luksformat lukserase erase plainformat")
_CRYPT_KEYS = split_names("reencrypt lukskillslot luksremovekey luksheaderrestore")


def _cryptsetup_effects(context: RunContext) -> Iterator[CommandEffect]:
    operands = context.parse_options(
        split_names("-c --cipher -h --hash -s --key-size -d --key-file -S --key-slot -i -l -M --type")
    )
    words = operands.operands
    if words and words[0].lower() in _CRYPT_FORMATS:
        yield from _format_effects(context, *words[1:2])
    elif words and words[0].lower() in _CRYPT_KEYS:
        yield _volume_effect(context)


def _zfs_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(split_names("-o -O -t"))
    verb = options.operands[0] if options.operands else EMPTY
    pool = split_names("destroy labelclear remove detach export create add")
    data = split_names("destroy rollback")
    if verb in (pool if context.run.name == "zpool" else data) and not options.has("-n"):
        yield _volume_effect(context)


_LVM_CHANGES = split_names("lvremove vgremove pvremove lvreduce vgreduce pvcreate lvconvert")


def _lvm_effects(context: RunContext) -> Iterator[CommandEffect]:
    argv = context.run.argv
    if argv and argv[0] == "lvm" and len(argv) > 1 and argv[1] in _LVM_CHANGES:
        argv = argv[1:]
    options = Options.parse(argv, split_names("-L --size -l --extents"))
    if argv and argv[0] in _LVM_CHANGES and options.operands and not options.has("-t", "--test"):
        yield _volume_effect(context)


def _mdadm_effects(context: RunContext) -> Iterator[CommandEffect]:
    options = context.parse_options(abbreviated=False)
    if options.has("--stop", "-S", "--remove", "-r", "--fail", "-f"):
        yield _volume_effect(context)
    if options.has("--zero-superblock", "--create", "-C"):
        yield from _format_effects(context, *(word for word in options.operands if word.startswith("/")))


def _btrfs_effects(context: RunContext) -> Iterator[CommandEffect]:
    words = context.parse_options().operands
    if len(words) > 1 and words[0].startswith(("su", "de")) and words[1].startswith(("del", "rem")):
        yield _volume_effect(context)
    if words[:1] == ("check",) and context.parse_options().has("--repair"):
        yield _volume_effect(context)


_DISKUTIL_CHANGES = re.compile(
    r"erase\w*|reformat|partitiondisk|zerodisk|randomdisk|secureerase|deletecontainer|deletevolume|eraseoptical"
    r"|splitpartition|mergepartitions|resizevolume|destroy|delete",
    re.IGNORECASE,
)


def _diskutil_effects(context: RunContext) -> Iterator[CommandEffect]:
    verbs = [word for word in context.parse_options().operands[:2] if _DISKUTIL_CHANGES.fullmatch(word)]
    if verbs:
        yield context.new_effect(EffectKind.FORMAT, "in:device", target=context.run.argv[-1])


def _dos_format_effects(context: RunContext) -> Iterator[CommandEffect]:
    for word in context.run.argv[1:2]:
        if re.fullmatch(r"[A-Za-z]:[\\/]?", word):
            yield context.new_effect(EffectKind.FORMAT, "in:device", target=word)


def _dmsetup_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options().operands[:1] in (("remove",), ("remove_all",), ("wipe_table",)):
        yield _volume_effect(context)


def _always_destructive_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of disk programs that destroy data whenever they are given a device."""
    operands = context.parse_options().operands
    if operands:
        yield from _format_effects(context, *operands[:1])


def _flashrom_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options(split_names("-p -c -l -i")).has("-w", "--write", "-E", "--erase"):
        yield _volume_effect(context, "firmware")


def _efibootmgr_effects(context: RunContext) -> Iterator[CommandEffect]:
    if context.parse_options(split_names("-b")).has("-B", "--delete-bootnum", "-O", "--delete-bootorder"):
        yield _volume_effect(context, "firmware")


_DESTRUCTIVE_VERBS: dict[str, frozenset[str]] = {
    "gpart": split_names("destroy delete create bootcode restore undo"),
    "gpt": split_names("destroy remove create"),
    "geli": split_names("init kill delkey clear"),
    "camcontrol": split_names("format sanitize security"),
    "asr": split_names("restore partition"),
    "rbd": split_names("rm remove purge trash"),
    "ceph-volume": split_names("zap"),
    "drbdadm": split_names("invalidate wipe-md create-md down"),
    "tmutil": split_names("delete deletelocalsnapshots disable"),
    "vmkfstools": split_names("-U"),
}


def _volume_verb_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of destructive subcommands of volume managers (`zfs`, `lvm` …)."""
    if any(word in _DESTRUCTIVE_VERBS[context.run.name.lower()] for word in context.run.argv[1:8]):
        yield _volume_effect(context)


def _repair_effects(context: RunContext) -> Iterator[CommandEffect]:
    """Yield the effect of a file system repair that discards data or writes to a mounted file system."""
    letter = "-L" if context.run.name == "xfs_repair" else "-w"
    if context.parse_options(split_names("-f -l -o -r")).has(letter):
        yield _volume_effect(context)


DISK_HANDLERS: EffectHandlers = {
    **dict.fromkeys(_DESTRUCTIVE_VERBS, _volume_verb_effects),
    **dict.fromkeys(split_names("xfs_repair debugfs"), _repair_effects),
    "wipefs": _wipefs_effects,
    **dict.fromkeys(split_names("parted"), _parted_effects),
    **dict.fromkeys(split_names("fdisk"), _fdisk_effects),
    "sfdisk": _sfdisk_effects,
    "sgdisk": _sgdisk_effects,
    **dict.fromkeys(split_names("gdisk cfdisk cgdisk fixparts"), _gdisk_effects),
    "blkdiscard": _blkdiscard_effects,
    "nvme": _nvme_effects,
    "hdparm": _hdparm_effects,
    "badblocks": _badblocks_effects,
    "cryptsetup": _cryptsetup_effects,
    **dict.fromkeys(split_names("zfs zpool"), _zfs_effects),
    **dict.fromkeys(_LVM_CHANGES | {"lvm"}, _lvm_effects),
    "mdadm": _mdadm_effects,
    "btrfs": _btrfs_effects,
    "diskutil": _diskutil_effects,
    "format": _dos_format_effects,
    "dmsetup": _dmsetup_effects,
    **dict.fromkeys(
        split_names("nwipe sg_format sg_sanitize flash_erase flash_eraseall flashcp ubiformat"),
        _always_destructive_effects,
    ),
    "flashrom": _flashrom_effects,
    "efibootmgr": _efibootmgr_effects,
}
