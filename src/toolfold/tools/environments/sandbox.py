"""Backend for this machine with isolation by bubblewrap: a read-only system and a writable project.

A command has its own /tmp, home directory and processes, and no network unless that is allowed. Of the
user's home directory it sees installed tools and downloaded packages, and none of Toolfold's own files. The
helper programs run outside, as in `local`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from toolfold.tools.environments import visible_paths
from toolfold.tools.environments.backend import Channel, Readiness, TerminalSize
from toolfold.tools.environments.local import Local
from toolfold.tools.environments.local_process import LocalProcess, terminal_wrapper
from toolfold.tools.environments.view import FileView, find_private, has_writable_file, trace_links

PROBE_TIMEOUT_S = 5.0
MAX_IDENTITY_BYTES = 4_000
"""Maximum size of the git identity copied from the user's settings."""

_NAMESPACES = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    "--unshare-user-try",  # also as root, who would share the keys that the kernel keeps for a user
    *("--cap-drop", "ALL"),
)
_TMP = Path("/tmp")  # noqa: S108  (inside the sandbox)
_OWN_FILES = Path("/run/toolfold")
"""Path inside the sandbox for host caches; the sandbox's own cache directory links to it."""


class Sandbox(Local):
    """The `local` backend with each command isolated by bubblewrap."""

    name = "sandbox"
    gate_name = "bwrap"
    advice = "Run `toolfold env test sandbox` to see the cause."

    def __init__(
        self,
        *,
        home: Path,
        state_dir: Path,
        environment: Mapping[str, str],
        network: bool = False,
        writable: Iterable[Path] = (),
        visible: Iterable[Path] = (),
        hidden: Iterable[Path] = (),
    ) -> None:
        """Store the settings of the sandbox; nothing is started yet.

        `writable` are directories besides the project, `visible` further readable ones, and `hidden` paths
        that are never shown unless they are the project.
        """
        super().__init__(home=home, state_dir=state_dir, environment=environment)
        self._network = network
        self._writable = (home, *writable)
        self._visible = tuple(visible)
        self._hidden = tuple(hidden)
        self._user = _user_home(environment.get("HOME", ""))
        self._arguments: list[str] = []
        self._kernel: list[str] = []

    @property
    def shared_directories(self) -> Sequence[tuple[str, str]]:
        return [(str(folder), str(folder)) for folder in self._writable]

    async def check(self) -> Readiness:
        if not shutil.which("bwrap", path=self._environment["PATH"]):
            return Readiness(
                False,
                "bubblewrap is not installed",
                "Install it, for example with `apt-get install bubblewrap`.",
            )
        words = (
            "bwrap",
            *_NAMESPACES,
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            *_proc_arguments(Path(os.devnull)),
        )
        probe = LocalProcess.start([*words, "--unshare-net", "true"], env=self._environment, cwd="/")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                code = await probe.wait()
            reason = probe.error_text()
        except TimeoutError:
            code, reason = 1, "bubblewrap does not respond"
        finally:
            await probe.close()
        advice = (
            "bubblewrap needs user namespaces, which a container or kernel settings may forbid."
            " Use docker or local."
        )
        return Readiness(code == 0, reason, "" if code == 0 else advice)

    async def open(self) -> None:
        for folder in (self._temporary, self._cache, self._empty_directory):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._empty_file.touch()
        self._git_identity.write_text(await self._read_git_identity())
        view = await asyncio.to_thread(self._build_view)
        self._arguments = view.arguments()
        self._kernel = [*_proc_arguments(self._empty_file), *_cgroup_arguments()]
        _make_directories(self._temporary, view.scratch_entries())

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], pty: TerminalSize | None
    ) -> Channel:
        return LocalProcess.start(
            argv, env={**self._environment, **env}, pty=pty, controls_terminal=False, cwd="/"
        )

    def entry_argv(self, tasks_dir: str, *, persistent: bool, terminal: bool) -> Sequence[str]:
        return [
            "bwrap",
            *_NAMESPACES,
            *(() if self._network else ("--unshare-net",)),
            *(() if persistent else ("--die-with-parent",)),
            *self._arguments,
            *("--dev", "/dev", *self._kernel),
            *("--ro-bind", f"{self.state_dir}/shell", f"{self.state_dir}/shell"),
            *(
                "--ro-bind",
                posixpath.dirname(tasks_dir),
                posixpath.dirname(tasks_dir),
                "--bind",
                tasks_dir,
                tasks_dir,
            ),
            *("--remount-ro", "/"),
            *("--setenv", "TMPDIR", str(_TMP)),
            "--",
            *(("setsid", *terminal_wrapper("/dev/console")) if terminal else ()),
        ]

    @property
    def _temporary(self) -> Path:
        return self._state / "tmp"

    @property
    def _cache(self) -> Path:
        return self._state / "cache"

    @property
    def _empty_file(self) -> Path:
        return self._state / "nothing"

    @property
    def _empty_directory(self) -> Path:
        return self._state / "empty"

    @property
    def _git_identity(self) -> Path:
        return self._state / "gitconfig"

    def _build_view(self) -> FileView:
        """Build the file system that commands see. If two rules name one path, the later rule applies."""
        view = FileView(self._empty_file, self._empty_directory)
        for path in visible_paths.SYSTEM:
            view.show(path, follow=False)
        for folder, depth in visible_paths.PRIVATE_SYSTEM.items():
            for path in find_private(folder, max_depth=depth):
                view.cover(path)
        view.links[Path("/var/run")] = "/run"
        for path in (Path("/run"), Path("/var/tmp")):  # noqa: S108  (inside the sandbox)
            view.add_empty(path)
        if self._network:
            self._show_resolver(view)
        view.bind(self._temporary, _TMP, writable=True)
        if self._user is not None:
            view.add_empty(self._user)
        self._show_chosen(view)
        view.add_empty(self._state)
        return view

    def _show_chosen(self, view: FileView) -> None:
        """Make the project, paths from the settings, and tools in the home directory visible to commands."""
        chosen = FileView(self._empty_file, self._empty_directory)
        for path in self._visible:
            chosen.show(path)
        for path in self._writable:
            chosen.show(path, writable=True)
        view.links |= chosen.links
        if self._user is not None:
            self._show_home(view, around=chosen)
        for path in self._hidden:
            view.cover(path.resolve())
            chosen.mounts = {
                each: mount
                for each, mount in chosen.mounts.items()
                if each in self._resolved_writable or not each.is_relative_to(path.resolve())
            }
        view.mounts |= chosen.mounts

    @property
    def _resolved_writable(self) -> set[Path]:
        return {path.resolve() for path in self._writable} | set(self._writable)

    def _show_home(self, view: FileView, *, around: FileView) -> None:
        """Make the tools in the user's home directory visible to commands, and hide its other content.

        If the home directory itself was chosen, only its dot files are hidden.
        """
        _, home = trace_links(self._user or Path("/"))
        if around.is_shown(home):
            del view.mounts[home]
            for entry in home.glob(".*"):
                view.cover(entry)
        for path in visible_paths.find_credentials(home):
            view.cover(path)
        for name in visible_paths.HOME:
            if os.path.lexists(home / name):
                view.show(home / name, follow=False)
        view.bind(self._cache, home / ".cache", writable=True)
        self._show_caches(view, home / ".cache")
        if self._git_identity.stat().st_size:
            view.bind(self._git_identity, home / ".config" / "git" / "config")

    def _show_caches(self, view: FileView, caches: Path) -> None:
        """Make the user's caches visible to commands, by links in the sandbox's own cache directory.

        Nothing can be mounted there directly: commands write to that directory, and could redirect a mount.
        """
        for name, parts in visible_paths.CACHES.items():
            shown = [part for part in parts or ("",) if _is_plain_directory(caches / name / part)]
            for part in shown:
                view.bind(caches / name / part, _OWN_FILES / "cache" / name / part)
            if shown:
                with contextlib.suppress(FileExistsError):
                    (self._cache / name).symlink_to(_OWN_FILES / "cache" / name)

    def _show_resolver(self, view: FileView) -> None:
        """Make the DNS resolver configuration visible to commands if it is a symbolic link into /run."""
        config = Path("/etc/resolv.conf").resolve()
        if config.is_relative_to("/run") and config.exists():
            view.bind(config, config)

    async def _read_git_identity(self) -> str:
        """Return a git config file with the user's name and email address only."""
        if self._user is None or not shutil.which("git", path=self._environment["PATH"]):
            return ""
        words = ("git", "config", "--global", "--null", "--get-regexp", r"^user\.(name|email)$")
        git = LocalProcess.start(words, env=self._environment, cwd="/")
        output = b""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                while (data := await git.read()) and len(output) <= MAX_IDENTITY_BYTES:
                    output += data
        except TimeoutError:
            return ""
        finally:
            await git.close()
        return _identity_settings(output[:MAX_IDENTITY_BYTES].decode(errors="replace"))


def _proc_arguments(empty: Path) -> list[str]:
    """Return bubblewrap options for a /proc through which commands cannot change the machine.

    bubblewrap assumes that /proc/sys is read-only because nothing can be added to it, which does not hold
    for root.
    """
    words = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for path in sorted(Path("/proc").iterdir()):
        if path.name in visible_paths.PROC_HIDDEN:
            words += ["--ro-bind", str(empty), str(path)]
        elif not path.name.isdecimal() and path.name not in visible_paths.PROC_COVERED:
            words += ["--ro-bind", str(path), str(path)] if has_writable_file(path) else []
    return words


def _cgroup_arguments() -> list[str]:
    """Return bubblewrap options that show the cgroup limits, from which programs learn their memory limit."""
    folder = "/sys/fs/cgroup"
    return ["--ro-bind", folder, folder] if Path(folder, "cgroup.controllers").exists() else []


def _user_home(value: str) -> Path | None:
    """Return the user's home directory; None if it is not absolute or contains system directories."""
    home = Path(value)
    if not home.is_absolute():
        return None
    real = home.resolve()
    return None if any(path.is_relative_to(real) for path in visible_paths.SYSTEM) else home


def _is_plain_directory(path: Path) -> bool:
    """Return True if the path is a directory and contains no symbolic link."""
    return path.is_dir() and path.resolve() == path


def _make_directories(parent: Path, names: Iterable[str]) -> None:
    """Create directories that commands can write to; replace symbolic links that commands may have left."""
    for name in names:
        path = parent / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(exist_ok=True)


def _identity_settings(output: str) -> str:
    """Convert the output of `git config --null --get-regexp` to the `[user]` section of a git config file."""
    values = dict(entry.split("\n", 1) for entry in output.split("\0") if "\n" in entry)
    lines = [f"\t{key.partition('.')[2]} = {_quote_setting(value)}\n" for key, value in values.items()]
    return "[user]\n" + "".join(lines) if lines else ""


def _quote_setting(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
