"""Classify paths by well-known names: secrets, startup files, agent configuration, databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shellverdict.names import split_names
from shellverdict.paths.kinds import PathKind
from shellverdict.paths.own_program import is_own_program
from shellverdict.paths.patterns import WILD, NamePattern, could_match, has_wildcards, matches_everything

__all__ = [
    "DIRECTORIES",
    "is_regenerable_path",
    "kinds_below_directory",
    "kinds_by_name",
    "kinds_lost_with_directory",
]

MAX_DEPTH = 64  # components checked, counted from the end
MIN_LITERAL_CHARS = 3  # a pattern with fewer matches too many names


_SECRET, _STARTUP, _AGENT, _DATA = PathKind.SECRET, PathKind.STARTUP, PathKind.AGENT, PathKind.DATA
_GUARD = PathKind.GUARD


def _map_names(names: str, *kinds_of_name: PathKind) -> dict[str, frozenset[PathKind]]:
    return dict.fromkeys(names.split(), frozenset(kinds_of_name))


FILES: Mapping[str, frozenset[PathKind]] = {
    **_map_names("id_rsa id_dsa id_ecdsa id_ed25519 id_ecdsa_sk id_ed25519_sk identity.key", _SECRET),
    **_map_names(
        ".netrc _netrc .pgpass .my.cnf .mylogin.cnf .npmrc .yarnrc.yml .pypirc .git-credentials", _SECRET
    ),
    **_map_names(
        ".vault-token .htpasswd .s3cfg .boto .dockercfg .credentials .rediscli_auth wallet.dat", _SECRET
    ),
    **_map_names("secrets.yml secrets.yaml secrets.json secrets.toml secrets.env credentials.json", _SECRET),
    **_map_names("client_secret.json service-account.json service_account.json serviceaccount.json", _SECRET),
    **_map_names("application_default_credentials.json master.key key4.db logins.json .age-key.txt", _SECRET),
    **_map_names(".bash_history .zsh_history .sh_history .history .psql_history .mysql_history", _SECRET),
    **_map_names(".python_history .node_repl_history .rediscli_history .irb_history fish_history", _SECRET),
    **_map_names(".env .env.local .env.production .env.prod .env.development .env.staging", _SECRET, _DATA),
    **_map_names("terraform.tfstate", _SECRET, _DATA),
    **_map_names(
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv", _STARTUP
    ),
    **_map_names(
        ".zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc .tcshrc .login .logout .bash.bashrc", _STARTUP
    ),
    **_map_names(
        ".xinitrc .xprofile .xsession .xsessionrc .pam_environment .gitconfig .envrc .gdbinit", _STARTUP
    ),
    **_map_names(
        "authorized_keys authorized_keys2 sitecustomize.py usercustomize.py .pythonstartup", _STARTUP
    ),
    **_map_names(
        "microsoft.powershell_profile.ps1 profile.ps1 .rhosts .shosts .forward .lessfilter", _STARTUP
    ),
    **_map_names(".mcp.json mcp.json mcp_config.json claude_desktop_config.json .claude.json", _AGENT),
    **_map_names(
        ".pre-commit-config.yaml .pre-commit-config.yml lefthook.yml .lefthook.yml codeowners", _GUARD
    ),
    **_map_names(".gitleaks.toml .overcommit.yml .secrets.baseline agents.md claude.md gemini.md", _GUARD),
    **_map_names("copilot-instructions.md .cursorrules .windsurfrules .clinerules .roorules", _GUARD),
    **_map_names(
        ".vimrc .tmux.conf .screenrc .inputrc .emacs .nanorc .irbrc .pryrc .rprofile .psqlrc", _STARTUP
    ),
    **_map_names("toolfold.yaml toolfold.yml toolfold.toml .toolfold.yaml .aider.conf.yml", _AGENT),
}
SUFFIXES: Mapping[str, frozenset[PathKind]] = {
    **_map_names(".pem .key .p12 .pfx .jks .keystore .kdbx .ppk .keytab .ovpn .mobileprovision", _SECRET),
    **_map_names(".db .db3 .sqlite .sqlite3 .sqlitedb .mdb .accdb .mdf .ibd .myd .frm .ldb", _DATA),
    **_map_names(".duckdb .realm .fdb .h2.db .tfstate", _DATA),
}


class _KnownPath(NamedTuple):
    """A well-known path, and the kinds (secret, startup file …) of the path and of everything below it."""

    path: tuple[str, ...]
    kinds: frozenset[PathKind]


def _known_paths(*rows: tuple[str, PathKind]) -> tuple[_KnownPath, ...]:
    return tuple(
        _KnownPath(tuple(part for part in path.split("/") if part), frozenset({kind})) for path, kind in rows
    )


DIRECTORIES: Mapping[str, tuple[_KnownPath, ...]] = {
    ".ssh": _known_paths(("config", _STARTUP), ("rc", _STARTUP), ("environment", _STARTUP)),
    ".gnupg": _known_paths(("", _SECRET)),
    ".aws": _known_paths(("", _SECRET)),
    ".azure": _known_paths(("", _SECRET)),
    ".oci": _known_paths(("", _SECRET)),
    ".kube": _known_paths(("config", _SECRET)),
    ".docker": _known_paths(("config.json", _SECRET)),
    ".password-store": _known_paths(("", _SECRET)),
    ".mozilla": _known_paths(("", _SECRET)),
    ".thunderbird": _known_paths(("", _SECRET)),
    ".electrum": _known_paths(("", _SECRET)),
    ".bitcoin": _known_paths(("", _SECRET)),
    ".cargo": _known_paths(
        ("credentials", _SECRET), ("credentials.toml", _SECRET), ("config.toml", _STARTUP)
    ),
    ".gem": _known_paths(("credentials", _SECRET)),
    ".m2": _known_paths(("settings.xml", _SECRET)),
    ".gradle": _known_paths(("gradle.properties", _SECRET), ("init.d", _STARTUP)),
    ".terraform.d": _known_paths(("credentials.tfrc.json", _SECRET)),
    ".subversion": _known_paths(("auth", _SECRET)),
    ".config": _known_paths(
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
    ".local": _known_paths(
        ("share/keyrings", _SECRET),
        ("share/systemd", _STARTUP),
        ("share/toolfold", _AGENT),
        ("state/toolfold", _AGENT),
    ),
    "keychains": _known_paths(("", _SECRET)),
    "user data": _known_paths(("", _SECRET)),
    "application support": _known_paths(
        ("firefox", _SECRET),
        ("google/chrome", _SECRET),
        ("bravesoftware", _SECRET),
        ("microsoft edge", _SECRET),
        ("com.apple.tcc", _SECRET),
    ),
    "launchagents": _known_paths(("", _STARTUP)),
    "launchdaemons": _known_paths(("", _STARTUP)),
    "startupitems": _known_paths(("", _STARTUP)),
    "start menu": _known_paths(("programs/startup", _STARTUP)),
    ".git": _known_paths(
        ("hooks", _STARTUP),
        ("config", _STARTUP),
        *((path, _DATA) for path in split_names("head index objects refs logs packed-refs orig_head")),
    ),
    ".vim": _known_paths(("", _STARTUP)),
    ".emacs.d": _known_paths(("", _STARTUP)),
    ".pip": _known_paths(("pip.conf", _STARTUP)),
    ".githooks": _known_paths(("", _STARTUP)),
    ".husky": _known_paths(("", _STARTUP)),
    ".vscode": _known_paths(("tasks.json", _STARTUP), ("settings.json", _STARTUP), ("mcp.json", _AGENT)),
    ".idea": _known_paths(("workspace.xml", _STARTUP)),
    ".devcontainer": _known_paths(("devcontainer.json", _STARTUP)),
    **{
        name: _known_paths(("", _AGENT))
        for name in split_names(
            ".claude .codex .cursor .hermes .toolfold .gemini .windsurf .codeium .continue .goose .agent "
            ".agents .openhands .cline .roo .kiro .qwen .opencode .amp .openclaw .factory .crush .copilot"
        )
    },
}
# A file with one of these names in ~/.local/bin replaces the system's program.
_SHADOWED_PROGRAMS = split_names(
    "git ssh scp sudo su doas login passwd ls cat bash sh zsh fish env rm cp mv grep sed awk less more man "
    "vi vim gpg curl wget make tar id ps top which find xargs"
)
SSH_PUBLIC_FILES = frozenset(
    ("known_hosts", "known_hosts.old", "config", "authorized_keys", "rc", "environment")
)

ABSOLUTE_PATHS: Mapping[str, tuple[_KnownPath, ...]] = {
    "etc": _known_paths(
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
            for path in split_names(
                "profile profile.d bash.bashrc bashrc bash zsh zshrc zshenv zprofile environment crontab "
                "cron.d cron.daily cron.hourly cron.weekly cron.monthly anacrontab rc.local rc.d init.d "
                "inittab init systemd sudoers sudoers.d doas.conf pam.d pam.conf ld.so.preload ld.so.conf "
                "ld.so.conf.d xdg/autostart udev/rules.d modprobe.d modules-load.d update-motd.d "
                "apt/apt.conf.d networkmanager/dispatcher.d security passwd group nsswitch.conf "
                "ssh/sshd_config ssh/sshd_config.d polkit-1 launchd.conf periodic"
            )
        ),
    ),
    "var": _known_paths(
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
    "run": _known_paths(("secrets", _SECRET), ("systemd/system", _STARTUP)),
    "usr": _known_paths(
        ("lib/systemd", _STARTUP), ("lib/cron", _STARTUP), ("lib/udev", _STARTUP), ("lib/pam.d", _STARTUP)
    ),
    "lib": _known_paths(("systemd", _STARTUP), ("udev", _STARTUP)),
    "windows": _known_paths(("system32/config", _SECRET), ("system32/tasks", _STARTUP)),
}


def kinds_by_name(parts: Sequence[str], absolute: bool) -> frozenset[PathKind]:
    """Classify a path in any directory (secret, startup file …) by well-known names in it, such as `.ssh`."""
    if not parts:
        return frozenset()
    lowered = [part.lower() for part in parts[-MAX_DEPTH:]]
    kinds = set(kinds_of_file_name(lowered[-1]))
    for at, part in enumerate(lowered):
        if part in DIRECTORIES or part[0] == ".":
            for known in _known_paths_below(part):
                _add_if_below(kinds, known, lowered[at + 1 :])
            if could_match(part, ".ssh"):
                kinds |= _kinds_in_ssh(lowered[at + 1 :])
    if lowered[-1].endswith(".pth") and not {"site-packages", "dist-packages"}.isdisjoint(lowered):
        kinds.add(_STARTUP)  # elsewhere a .pth file contains model weights
    if lowered[-1] in _SHADOWED_PROGRAMS and tuple(lowered[-3:-1]) == (".local", "bin"):
        kinds.add(_STARTUP)
    if is_own_program(lowered):
        kinds.add(PathKind.OWN)
    if absolute and len(parts) <= MAX_DEPTH:
        kinds |= _kinds_by_absolute_path(lowered)
    return frozenset(kinds)


def kinds_below_directory(parts: Sequence[str]) -> frozenset[PathKind]:
    """Return the kinds (secret, startup file …) of the well-known files in a directory such as `.ssh`."""
    lowered = [part.lower() for part in parts[-MAX_DEPTH:]]
    kinds: set[PathKind] = set()
    for at, part in enumerate(lowered):
        rest = lowered[at + 1 :]
        for known in DIRECTORIES.get(part, ()):
            if len(rest) < len(known.path) and known.path[: len(rest)] == tuple(rest):
                kinds |= known.kinds
    return frozenset(kinds)


REGENERABLE_DIRECTORIES = split_names(
    "node_modules bower_components build _build dist out target obj .next .nuxt .svelte-kit .angular .turbo "
    ".parcel-cache .output .venv venv __pycache__ .pytest_cache .mypy_cache .ruff_cache .tox .nox .eggs "
    ".hypothesis htmlcov coverage .nyc_output .cache tmp temp .tmp .temp .gradle .dart_tool deriveddata "
    "cmake-build-debug cmake-build-release .ipynb_checkpoints .sass-cache .vite .webpack .docusaurus"
)
_REGENERABLE_SUFFIXES = (
    *(".pyc", ".pyo", ".o", ".obj", ".class", ".tmp", ".log", ".swp", ".orig", ".rej", ".ds_store", "~"),
    *(".egg-info", ".gcda", ".gcno"),
)
_REPOSITORY_DIRECTORIES = frozenset((".git", ".hg", ".svn", ".jj", ".bzr"))
_DATA_DIRECTORIES = split_names(
    "data database databases db pgdata pg_data mysql-data mysql_data postgres-data postgres_data redis-data "
    "mongo-data uploads backup backups dumps volumes"
)


def is_regenerable_path(parts: Sequence[str]) -> bool:
    """Return True if tools can regenerate a path in a project, judged by its directory and file names."""
    lowered = [part.lower() for part in parts[-MAX_DEPTH:]]
    return not REGENERABLE_DIRECTORIES.isdisjoint(lowered) or (
        bool(lowered) and lowered[-1].endswith(_REGENERABLE_SUFFIXES)
    )


def kinds_lost_with_directory(parts: Sequence[str]) -> frozenset[PathKind]:
    """Return the kinds of data, such as a repository, that are lost with a directory of this name."""
    if not parts:
        return frozenset()
    if not _REPOSITORY_DIRECTORIES.isdisjoint(part.lower() for part in parts[-MAX_DEPTH:]):
        return frozenset({PathKind.HISTORY})
    return frozenset({PathKind.STORED} if parts[-1].lower() in _DATA_DIRECTORIES else ())


def _known_paths_below(part: str) -> tuple[_KnownPath, ...]:
    if not has_wildcards(part):
        return DIRECTORIES.get(part, ())
    pattern = NamePattern(part)
    return tuple(known for name, rows in DIRECTORIES.items() if pattern.matches(name) for known in rows)


def _add_if_below(kinds: set[PathKind], known: _KnownPath, rest: Sequence[str]) -> None:
    if len(rest) >= len(known.path) and all(map(_could_match_part, rest, known.path)):
        kinds |= known.kinds


def _could_match_part(part: str, name: str) -> bool:
    return could_match(part, name) or matches_everything(part)


def _kinds_in_ssh(rest: Sequence[str]) -> frozenset[PathKind]:
    """Classify a path in `.ssh`: secret, unless the file is known to be public."""
    if rest and (rest[0].endswith(".pub") or any(rest[0] == name for name in SSH_PUBLIC_FILES)):
        return frozenset()
    return frozenset({_SECRET})


def kinds_of_file_name(name: str) -> frozenset[PathKind]:
    """Classify a file (secret, database, startup file …) by its name without directories."""
    name = name.lower()
    if not has_wildcards(name):
        return FILES.get(name, frozenset()) | _kinds_by_suffix(name) | _kinds_by_prefix(name)
    kinds = set(_kinds_by_suffix(name))
    if name[0] not in WILD and len(name) - sum(map(name.count, WILD)) >= MIN_LITERAL_CHARS:
        pattern = NamePattern(name)
        for other, kinds_of_name in FILES.items():
            if pattern.matches(other):
                kinds |= kinds_of_name
    return frozenset(kinds)


def _kinds_by_suffix(name: str) -> frozenset[PathKind]:
    dot = name.rfind(".")
    return SUFFIXES.get(name[dot:], frozenset()) if dot >= 0 else frozenset()


def _kinds_by_prefix(name: str) -> frozenset[PathKind]:
    if name.startswith(".env.") and not name.endswith(
        (".example", ".sample", ".template", ".dist", ".test", ".tpl")
    ):
        return frozenset({_SECRET})
    if name.startswith(("service-account", "service_account", "serviceaccount")) and name.endswith(".json"):
        return frozenset({_SECRET})
    return frozenset()


def _kinds_by_absolute_path(parts: Sequence[str]) -> frozenset[PathKind]:
    if parts[0] == "private":
        parts = parts[1:]
    kinds: set[PathKind] = set()
    for known in ABSOLUTE_PATHS.get(parts[0], ()) if parts else ():
        _add_if_below(kinds, known, parts[1:])
    if len(parts) > 2 and parts[0] == "proc" and could_match(parts[2], "environ"):
        kinds.add(_SECRET)
    return frozenset(kinds)
