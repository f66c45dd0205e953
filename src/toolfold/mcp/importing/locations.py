"""Find other clients' configuration files on Linux, macOS and Windows.

Checks which files exist and reads none. Home directory, platform and environment are parameters, so that the
locations of another machine can be computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from toolfold.mcp.importing.import_types import ClientConfigFile, ClientName

_VSCODE_NAMES = ("Code", "Code - Insiders", "VSCodium")
_MAX_PROFILES = 50

_PROJECT_FILES: tuple[tuple[ClientName, str], ...] = (
    ("claude-code", ".mcp.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".vscode/mcp.json"),
    ("vscode", ".vscode/settings.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("opencode", "opencode.json"),
    ("opencode", "opencode.jsonc"),
)


def find_config_files(
    *, home: Path, project: Path | None, platform: str, environment: Mapping[str, str]
) -> tuple[ClientConfigFile, ...]:
    """Return the existing configuration files: the user's files before the project's files."""
    files = [
        ClientConfigFile(client, "user", file)
        for client, file in _iter_user_files(home, platform, environment)
    ]
    if project is not None and not _is_same_path(project, home):
        files += [ClientConfigFile(client, "project", project / path) for client, path in _PROJECT_FILES]
    return tuple(file for file in files if _is_file(file.file))


def user_config_file(
    client: ClientName, *, home: Path, platform: str, environment: Mapping[str, str]
) -> Path:
    """Return the configuration file to which a client adds a user's new servers; it may not exist yet."""
    files = [
        file
        for each, file in _iter_user_files(home, platform, environment)
        if each == client and not (client == "vscode" and _is_other_vscode_file(file))
    ]
    present = [file for file in files if _is_file(file)]
    # Only VS Code has several variants; its directory shows which one is installed.
    installed = [file for file in files if client == "vscode" and file.parent.is_dir()]
    return (present or installed or files)[0]


def _iter_user_files(
    home: Path, platform: str, environment: Mapping[str, str]
) -> Iterator[tuple[ClientName, Path]]:
    support, settings = _config_directories(home, platform, environment)
    yield "claude-desktop", support / "Claude" / "claude_desktop_config.json"
    yield "claude-code", Path(environment.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
    yield "cursor", home / ".cursor" / "mcp.json"
    for name in _VSCODE_NAMES:
        for file in _iter_vscode_files(support / name / "User"):
            yield "vscode", file
    for directory in ("windsurf", "windsurf-next", "."):
        yield "windsurf", home / ".codeium" / directory / "mcp_config.json"
    yield "codex", Path(environment.get("CODEX_HOME") or home / ".codex") / "config.toml"
    yield "gemini", Path(environment.get("GEMINI_CLI_HOME") or home) / ".gemini" / "settings.json"
    if configured := environment.get("OPENCODE_CONFIG"):
        yield "opencode", Path(configured)
    for name in ("opencode.json", "opencode.jsonc"):
        yield "opencode", settings / "opencode" / name
    goose = support / "Block" / "goose" / "config" if platform == "win32" else settings / "goose"
    yield "goose", goose / "config.yaml"


def _config_directories(home: Path, platform: str, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the settings directories of desktop programs and of terminal programs."""
    settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    if platform == "darwin":
        return home / "Library" / "Application Support", settings
    if platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming"), settings
    return settings, settings


def _iter_vscode_files(user: Path) -> Iterator[Path]:
    yield user / "mcp.json"
    yield user / "settings.json"
    try:
        yield from sorted(islice((user / "profiles").glob("*/mcp.json"), _MAX_PROFILES))
    except OSError:
        return


def _is_other_vscode_file(file: Path) -> bool:
    """Return True for a VS Code file that may contain servers, but to which no new servers are added."""
    return file.name == "settings.json" or file.parent.parent.name == "profiles"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_same_path(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError):
        return False
