"""What a path is by its names: which files hold secrets, start programs, tell agents what they may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shellverdict.names import names
from shellverdict.places.kinds import Place
from shellverdict.places.patterns import WILD, Pattern, broad, fits, wild
from shellverdict.places.program import is_own_program

__all__ = ["DIRECTORIES", "held", "landmarks", "lost_with", "remade"]

DEEPEST = 64  # directories looked at
TELLING = 3  # letters of a pattern that make it point at a name


_SECRET, _STARTUP, _AGENT, _DATA = Place.SECRET, Place.STARTUP, Place.AGENT, Place.DATA
_GUARD = Place.GUARD


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
    **_each(".pre-commit-config.yaml .pre-commit-config.yml lefthook.yml .lefthook.yml codeowners", _GUARD),
    **_each(".gitleaks.toml .overcommit.yml .secrets.baseline agents.md claude.md gemini.md", _GUARD),
    **_each("copilot-instructions.md .cursorrules .windsurfrules .clinerules .roorules", _GUARD),
    **_each(".vimrc .tmux.conf .screenrc .inputrc .emacs .nanorc .irbrc .pryrc .rprofile .psqlrc", _STARTUP),
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
        ("pip", _STARTUP),
        ("nvim", _STARTUP),
        ("emacs", _STARTUP),
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
    ".git": _below(
        ("hooks", _STARTUP),
        ("config", _STARTUP),
        *((path, _DATA) for path in names("head index objects refs logs packed-refs orig_head")),
    ),
    ".vim": _below(("", _STARTUP)),
    ".emacs.d": _below(("", _STARTUP)),
    ".pip": _below(("pip.conf", _STARTUP)),
    ".githooks": _below(("", _STARTUP)),
    ".husky": _below(("", _STARTUP)),
    ".vscode": _below(("tasks.json", _STARTUP), ("settings.json", _STARTUP), ("mcp.json", _AGENT)),
    ".idea": _below(("workspace.xml", _STARTUP)),
    ".devcontainer": _below(("devcontainer.json", _STARTUP)),
    **{
        name: _below(("", _AGENT))
        for name in names(
            ".claude .codex .cursor .hermes .toolfold .gemini .windsurf .codeium .continue .goose .agent "
            ".agents .openhands .cline .roo .kiro .qwen .opencode .amp .openclaw .factory .crush .copilot"
        )
    },
}
# Programs of the system; a file of such a name in the user's own folder is run in their place.
_SHADOWED = names(
    "git ssh scp sudo su doas login passwd ls cat bash sh zsh fish env rm cp mv grep sed awk less more man "
    "vi vim gpg curl wget make tar id ps top which find xargs"
)
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
            for path in names(
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
    if lowered[-1] in _SHADOWED and tuple(lowered[-3:-1]) == (".local", "bin"):
        found.add(_STARTUP)
    if is_own_program(lowered):
        found.add(Place.OWN)
    if absolute and len(parts) <= DEEPEST:
        found |= _by_absolute_path(lowered)
    return frozenset(found)


def held(parts: Sequence[str]) -> frozenset[Place]:
    """What lies below a directory by the names everybody knows, for one who fills it as a whole."""
    lowered = [part.lower() for part in parts[-DEEPEST:]]
    found: set[Place] = set()
    for at, part in enumerate(lowered):
        rest = lowered[at + 1 :]
        for below in DIRECTORIES.get(part, ()):
            if len(rest) < len(below.path) and below.path[: len(rest)] == tuple(rest):
                found |= below.places
    return frozenset(found)


REMADE = names(
    "node_modules bower_components build _build dist out target obj .next .nuxt .svelte-kit .angular .turbo "
    ".parcel-cache .output .venv venv __pycache__ .pytest_cache .mypy_cache .ruff_cache .tox .nox .eggs "
    ".hypothesis htmlcov coverage .nyc_output .cache tmp temp .tmp .temp .gradle .dart_tool deriveddata "
    "cmake-build-debug cmake-build-release .ipynb_checkpoints .sass-cache .vite .webpack .docusaurus"
)
_MADE_FILES = (
    *(".pyc", ".pyo", ".o", ".obj", ".class", ".tmp", ".log", ".swp", ".orig", ".rej", ".ds_store", "~"),
    *(".egg-info", ".gcda", ".gcno"),
)
_HISTORIES = frozenset((".git", ".hg", ".svn", ".jj", ".bzr"))
_STORES = names(
    "data database databases db pgdata pg_data mysql-data mysql_data postgres-data postgres_data redis-data "
    "mongo-data uploads backup backups dumps volumes"
)


def remade(parts: Sequence[str]) -> bool:
    """Whether a path within a project leads to what can be made again."""
    lowered = [part.lower() for part in parts[-DEEPEST:]]
    return not REMADE.isdisjoint(lowered) or (bool(lowered) and lowered[-1].endswith(_MADE_FILES))


def lost_with(parts: Sequence[str]) -> frozenset[Place]:
    """What is lost with a directory, by its name."""
    if not parts:
        return frozenset()
    if not _HISTORIES.isdisjoint(part.lower() for part in parts[-DEEPEST:]):
        return frozenset({Place.HISTORY})
    return frozenset({Place.STORED} if parts[-1].lower() in _STORES else ())


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
