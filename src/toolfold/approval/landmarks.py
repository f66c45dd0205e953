"""The paths everybody knows: which directories are the system's, which files hold secrets or start programs.

Tables and the matching of one path against them. Everything is lexical; who asks has already made the path
absolute as far as that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from toolfold.approval.shell.words import ANY, CLOSE, GAP, OPEN, STAR

__all__ = ["Pattern", "Place", "broad", "fits", "landmarks", "named", "unknown", "wild"]


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
    OWN = "own"  # this runtime's own files
    DATA = "data"  # a database, a dump
    PROJECT = "project"
    OUTSIDE = "outside"  # none of these
    UNKNOWN = "unknown"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


WILD = frozenset((GAP, STAR, ANY, OPEN, CLOSE))
LONGEST_NAME = 256  # no file system takes longer ones

_CLASS = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}")
_BROAD = frozenset((GAP, STAR, ANY, "."))
_ONE = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}|.", re.DOTALL)


def wild(part: str) -> bool:
    """Whether a part of a path is a pattern or contains what nobody knows."""
    return not WILD.isdisjoint(part)


def unknown(part: str) -> bool:
    """Whether nothing at all is known of this part."""
    return GAP in part and not part.strip(GAP)


def broad(part: str) -> bool:
    """Whether a pattern stands for about everything: `*`, `.*`, `[a-z]*`, `???`; not `*.pyc`."""
    if WILD.isdisjoint(part) or unknown(part):
        return False
    return _BROAD.issuperset(_CLASS.sub(STAR, part))


def fits(part: str, name: str) -> bool:
    """Whether one part of a path could be this name. A lone gap is no evidence."""
    return part == name or (not WILD.isdisjoint(part) and Pattern(part).fits(name))


class Pattern:
    """One part of a path with unknown letters, made ready to be held against many names."""

    __slots__ = ("_first", "_last", "_length", "_letters", "_tokens")

    def __init__(self, part: str) -> None:
        settled = unknown(part) or len(part) > LONGEST_NAME
        self._tokens: list[str] = [] if settled else _ONE.findall(part)
        self._first, self._last = (self._tokens[0], self._tokens[-1]) if self._tokens else ("", "")
        elastic = GAP in part or STAR in part
        self._length = -1 if elastic else len(self._tokens)
        self._letters = [t for t in self._tokens if len(t) == 1 and t not in WILD]

    def fits(self, name: str) -> bool:
        if not self._tokens or not self._looks_like(name):
            return False
        return _glob(self._tokens, name)

    def _looks_like(self, name: str) -> bool:
        """The cheap half: the length, the ends and the letters settle most names."""
        if self._length not in (-1, len(name)):
            return False
        first, last = self._first, self._last
        if name.startswith(".") and first != "." and first != GAP:
            return False  # a pattern never matches a leading dot
        if len(first) == 1 and first not in WILD and not name.startswith(first):
            return False
        if len(last) == 1 and last not in WILD and not name.endswith(last):
            return False
        return all(letter in name for letter in self._letters)


def _glob(pattern: Sequence[str], name: str) -> bool:
    """Greedy matching with one step back: linear for each star, never exponential."""
    at = in_name = 0
    star, resume = -1, 0
    while in_name < len(name):
        if at < len(pattern) and pattern[at] in (STAR, GAP):
            star, resume = at, in_name
            at += 1
        elif at < len(pattern) and _one_fits(pattern[at], name[in_name]):
            at, in_name = at + 1, in_name + 1
        elif star >= 0:
            resume += 1
            at, in_name = star + 1, resume
        else:
            return False
    return all(rest in (STAR, GAP) for rest in pattern[at:])


def _one_fits(token: str, letter: str) -> bool:
    if token == ANY:
        return True
    if len(token) == 1:
        return token == letter
    inside = token[1:-1]
    negated = inside[:1] in ("!", "^")
    return negated != _in_class(inside[negated:], letter)


def _in_class(inside: str, letter: str) -> bool:
    if "[:" in inside:
        return True  # a named class: nearly always letters or digits
    if letter in inside:
        return True
    return any(
        a <= letter <= b for a, dash, b in zip(inside, inside[1:], inside[2:], strict=False) if dash == "-"
    )


# --- where in the tree -----------------------------------------------------------------------------------

SYSTEM_TOPS = _names(
    "etc usr bin sbin lib lib32 lib64 libx32 boot var opt sys proc dev run system library applications "
    "private nix snap"
)
HOMES = frozenset(("home", "users"))
TOPS = SYSTEM_TOPS | HOMES | {"root", "tmp", "mnt", "srv", "media", "volumes"}
SECOND_TOPS: Mapping[str, frozenset[str]] = {
    "usr": _names("bin sbin lib lib32 lib64 libexec local share include games"),
    "var": _names("lib db root"),
    "etc": _names("ssh ssl pam.d systemd cron.d sudoers.d init.d"),
    "lib": _names("modules systemd"),
    "system": _names("library applications volumes"),
    "library": _names("launchdaemons launchagents extensions keychains preferences"),
}
STREAMS = _names("null zero full random urandom stdin stdout stderr fd tty console ptmx pts log")
_NO_DISK = re.compile(
    r"(?:usb|input|snd|dri|net|bus|vfio|v4l|serial|char|cpu|mqueue|hugepages|lp|video|audio|dsp|hidraw|i2c-|spidev"
    r"|gpio\w*|watchdog|rtc|uinput|kvm|fuse|cuse|vhost|media|midi|sequencer|cu\.|uhid|rfkill|hpet|nvram|tpm|bpf"
    r"|kmsg|autofs|btrfs-control|loop-control|ppp|vcs|fb)[\w.-]*"
)
WINDOWS = frozenset(("windows", "program files", "program files (x86)", "programdata", "boot", "recovery"))
DEEPEST = 64  # directories looked at
TELLING = 3  # letters of a pattern that make it point at a name
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


# --- by name ---------------------------------------------------------------------------------------------

_SECRET, _STARTUP, _AGENT, _DATA = Place.SECRET, Place.STARTUP, Place.AGENT, Place.DATA


def _each(names: str, *places: Place) -> dict[str, frozenset[Place]]:
    return dict.fromkeys(names.split(), frozenset(places))


FILES: Mapping[str, frozenset[Place]] = {
    **_each("id_rsa id_dsa id_ecdsa id_ed25519 id_ecdsa_sk id_ed25519_sk identity.key", _SECRET),
    **_each(
        ".netrc _netrc .pgpass .my.cnf .mylogin.cnf .npmrc .yarnrc.yml .pypirc .git-credentials", _SECRET
    ),
    **_each(".vault-token .htpasswd .s3cfg .boto .dockercfg .credentials .rediscli_auth wallet.dat", _SECRET),
    **_each("secrets.yml secrets.yaml secrets.json secrets.toml secrets.env credentials.json", _SECRET),
    **_each("client_secret.json service-account.json service_account.json serviceaccount.json", _SECRET),
    **_each("application_default_credentials.json master.key key4.db logins.json .age-key.txt", _SECRET),
    **_each(".bash_history .zsh_history .sh_history .history .psql_history .mysql_history", _SECRET),
    **_each(".python_history .node_repl_history .rediscli_history .irb_history fish_history", _SECRET),
    **_each(".env .env.local .env.production .env.prod .env.development .env.staging", _SECRET, _DATA),
    **_each("terraform.tfstate", _SECRET, _DATA),
    **_each(".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv", _STARTUP),
    **_each(".zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc .tcshrc .login .logout .bash.bashrc", _STARTUP),
    **_each(".xinitrc .xprofile .xsession .xsessionrc .pam_environment .gitconfig .envrc .gdbinit", _STARTUP),
    **_each("authorized_keys authorized_keys2 sitecustomize.py usercustomize.py .pythonstartup", _STARTUP),
    **_each("microsoft.powershell_profile.ps1 profile.ps1 .rhosts .shosts .forward .lessfilter", _STARTUP),
    **_each(".mcp.json mcp.json mcp_config.json claude_desktop_config.json .claude.json", _AGENT),
    **_each("toolfold.yaml toolfold.yml toolfold.toml .toolfold.yaml .aider.conf.yml", _AGENT),
}
ENDINGS: Mapping[str, frozenset[Place]] = {
    **_each(".pem .key .p12 .pfx .jks .keystore .kdbx .ppk .keytab .ovpn .mobileprovision", _SECRET),
    **_each(".db .db3 .sqlite .sqlite3 .sqlitedb .mdb .accdb .mdf .ibd .myd .frm .ldb", _DATA),
    **_each(".duckdb .realm .fdb .h2.db .tfstate", _DATA),
}


class _Below(NamedTuple):
    """What is below a directory: `path` leads from it to what has the places, and to all below that."""

    path: tuple[str, ...]
    places: frozenset[Place]


def _below(*rows: tuple[str, Place]) -> tuple[_Below, ...]:
    return tuple(
        _Below(tuple(part for part in path.split("/") if part), frozenset({place})) for path, place in rows
    )


DIRECTORIES: Mapping[str, tuple[_Below, ...]] = {
    ".ssh": _below(("config", _STARTUP), ("rc", _STARTUP), ("environment", _STARTUP)),
    ".gnupg": _below(("", _SECRET)),
    ".aws": _below(("", _SECRET)),
    ".azure": _below(("", _SECRET)),
    ".oci": _below(("", _SECRET)),
    ".kube": _below(("config", _SECRET)),
    ".docker": _below(("config.json", _SECRET)),
    ".password-store": _below(("", _SECRET)),
    ".mozilla": _below(("", _SECRET)),
    ".thunderbird": _below(("", _SECRET)),
    ".electrum": _below(("", _SECRET)),
    ".bitcoin": _below(("", _SECRET)),
    ".cargo": _below(("credentials", _SECRET), ("credentials.toml", _SECRET), ("config.toml", _STARTUP)),
    ".gem": _below(("credentials", _SECRET)),
    ".m2": _below(("settings.xml", _SECRET)),
    ".gradle": _below(("gradle.properties", _SECRET), ("init.d", _STARTUP)),
    ".terraform.d": _below(("credentials.tfrc.json", _SECRET)),
    ".subversion": _below(("auth", _SECRET)),
    ".config": _below(
        ("gcloud", _SECRET),
        ("gh/hosts.yml", _SECRET),
        ("glab-cli", _SECRET),
        ("hub", _SECRET),
        ("op", _SECRET),
        ("rclone", _SECRET),
        ("sops", _SECRET),
        ("doctl", _SECRET),
        ("heroku", _SECRET),
        ("google-chrome", _SECRET),
        ("chromium", _SECRET),
        ("bravesoftware", _SECRET),
        ("microsoft-edge", _SECRET),
        ("fish", _STARTUP),
        ("systemd", _STARTUP),
        ("autostart", _STARTUP),
        ("environment.d", _STARTUP),
        ("git", _STARTUP),
        ("powershell", _STARTUP),
        ("goose", _AGENT),
        ("opencode", _AGENT),
        ("claude", _AGENT),
        ("toolfold", _AGENT),
        ("github-copilot", _AGENT),
    ),
    ".local": _below(
        ("share/keyrings", _SECRET),
        ("share/systemd", _STARTUP),
        ("share/toolfold", _AGENT),
        ("state/toolfold", _AGENT),
    ),
    "keychains": _below(("", _SECRET)),
    "user data": _below(("", _SECRET)),
    "application support": _below(
        ("firefox", _SECRET),
        ("google/chrome", _SECRET),
        ("bravesoftware", _SECRET),
        ("microsoft edge", _SECRET),
        ("com.apple.tcc", _SECRET),
    ),
    "launchagents": _below(("", _STARTUP)),
    "launchdaemons": _below(("", _STARTUP)),
    "startupitems": _below(("", _STARTUP)),
    "start menu": _below(("programs/startup", _STARTUP)),
    ".git": _below(("hooks", _STARTUP), ("config", _STARTUP)),
    ".githooks": _below(("", _STARTUP)),
    ".husky": _below(("", _STARTUP)),
    ".vscode": _below(("tasks.json", _STARTUP), ("settings.json", _STARTUP), ("mcp.json", _AGENT)),
    ".idea": _below(("workspace.xml", _STARTUP)),
    ".devcontainer": _below(("devcontainer.json", _STARTUP)),
    **{
        name: _below(("", _AGENT))
        for name in _names(
            ".claude .codex .cursor .hermes .toolfold .gemini .windsurf .codeium .continue .goose .agent "
            ".agents .openhands .cline .roo .kiro .qwen .opencode .amp .openclaw .factory .crush .copilot"
        )
    },
}
SSH_PUBLIC = frozenset(("known_hosts", "known_hosts.old", "config", "authorized_keys", "rc", "environment"))

ABSOLUTE: Mapping[str, tuple[_Below, ...]] = {
    "etc": _below(
        ("shadow", _SECRET),
        ("shadow-", _SECRET),
        ("gshadow", _SECRET),
        ("gshadow-", _SECRET),
        ("master.passwd", _SECRET),
        ("ssl/private", _SECRET),
        ("krb5.keytab", _SECRET),
        ("ipsec.secrets", _SECRET),
        ("wireguard", _SECRET),
        ("letsencrypt/live", _SECRET),
        ("ssh/ssh_host_rsa_key", _SECRET),
        ("ssh/ssh_host_ecdsa_key", _SECRET),
        ("ssh/ssh_host_ed25519_key", _SECRET),
        ("ppp/chap-secrets", _SECRET),
        ("kubernetes/admin.conf", _SECRET),
        ("rancher/k3s/k3s.yaml", _SECRET),
        *(
            (path, _STARTUP)
            for path in _names(
                "profile profile.d bash.bashrc bashrc bash zsh zshrc zshenv zprofile environment crontab "
                "cron.d cron.daily cron.hourly cron.weekly cron.monthly anacrontab rc.local rc.d init.d "
                "inittab init systemd sudoers sudoers.d doas.conf pam.d pam.conf ld.so.preload ld.so.conf "
                "ld.so.conf.d xdg/autostart udev/rules.d modprobe.d modules-load.d update-motd.d "
                "apt/apt.conf.d networkmanager/dispatcher.d security passwd group nsswitch.conf "
                "ssh/sshd_config ssh/sshd_config.d polkit-1 launchd.conf periodic"
            )
        ),
    ),
    "var": _below(
        ("spool/cron", _STARTUP),
        ("spool/at", _STARTUP),
        ("at/tabs", _STARTUP),
        ("run/secrets", _SECRET),
        ("lib/docker", _DATA),
        ("lib/mysql", _DATA),
        ("lib/postgresql", _DATA),
        ("lib/mongodb", _DATA),
        ("lib/redis", _DATA),
        ("backups", _DATA),
        ("db/dslocal", _SECRET),
    ),
    "run": _below(("secrets", _SECRET), ("systemd/system", _STARTUP)),
    "usr": _below(
        ("lib/systemd", _STARTUP), ("lib/cron", _STARTUP), ("lib/udev", _STARTUP), ("lib/pam.d", _STARTUP)
    ),
    "lib": _below(("systemd", _STARTUP), ("udev", _STARTUP)),
    "windows": _below(("system32/config", _SECRET), ("system32/tasks", _STARTUP)),
}


def landmarks(parts: Sequence[str], absolute: bool) -> frozenset[Place]:
    """What a path is by its names, wherever it is."""
    if not parts:
        return frozenset()
    lowered = [part.lower() for part in parts[-DEEPEST:]]
    found = set(named(lowered[-1]))
    for at, part in enumerate(lowered):
        if part in DIRECTORIES or part[0] == ".":
            for below in _directory(part):
                _add_below(found, below, lowered[at + 1 :])
            if fits(part, ".ssh"):
                found |= _in_ssh(lowered[at + 1 :])
    if lowered[-1].endswith(".pth") and not {"site-packages", "dist-packages"}.isdisjoint(lowered):
        found.add(_STARTUP)  # elsewhere it is a model's weights
    if absolute and len(parts) <= DEEPEST:
        found |= _by_absolute_path(lowered)
    return frozenset(found)


def _directory(part: str) -> tuple[_Below, ...]:
    if not wild(part):
        return DIRECTORIES.get(part, ())
    pattern = Pattern(part)
    return tuple(below for name, rows in DIRECTORIES.items() if pattern.fits(name) for below in rows)


def _add_below(found: set[Place], below: _Below, rest: Sequence[str]) -> None:
    if len(rest) >= len(below.path) and all(map(_could_fit, rest, below.path)):
        found |= below.places


def _could_fit(part: str, name: str) -> bool:
    return fits(part, name) or broad(part)


def _in_ssh(rest: Sequence[str]) -> frozenset[Place]:
    """Keys are whatever is in `.ssh` and is not known to be something else."""
    if rest and (rest[0].endswith(".pub") or any(rest[0] == name for name in SSH_PUBLIC)):
        return frozenset()
    return frozenset({_SECRET})


def named(name: str) -> frozenset[Place]:
    """What a file is by its own name."""
    name = name.lower()
    if not wild(name):
        return FILES.get(name, frozenset()) | _by_ending(name) | _by_beginning(name)
    found = set(_by_ending(name))
    if name[0] not in WILD and len(name) - sum(map(name.count, WILD)) >= TELLING:
        pattern = Pattern(name)
        for other, places in FILES.items():
            if pattern.fits(other):
                found |= places
    return frozenset(found)


def _by_ending(name: str) -> frozenset[Place]:
    dot = name.rfind(".")
    return ENDINGS.get(name[dot:], frozenset()) if dot >= 0 else frozenset()


def _by_beginning(name: str) -> frozenset[Place]:
    if name.startswith(".env.") and not name.endswith(
        (".example", ".sample", ".template", ".dist", ".test", ".tpl")
    ):
        return frozenset({_SECRET})
    if name.startswith(("service-account", "service_account", "serviceaccount")) and name.endswith(".json"):
        return frozenset({_SECRET})
    return frozenset()


def _by_absolute_path(parts: Sequence[str]) -> frozenset[Place]:
    if parts[0] == "private":
        parts = parts[1:]
    found: set[Place] = set()
    for below in ABSOLUTE.get(parts[0], ()) if parts else ():
        _add_below(found, below, parts[1:])
    if len(parts) > 2 and parts[0] == "proc" and fits(parts[2], "environ"):
        found.add(_SECRET)
    return frozenset(found)
