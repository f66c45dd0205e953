"""This machine behind a wall: bubblewrap shows a command the system to read and the project to write.

It has its own /tmp, home folder and processes, and no network unless it is allowed. Of the user's home folder
it sees installed tools and downloaded packages, and nothing of the runtime's own files. What looks after
the commands runs outside, as in `local`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from toolfold.environments import visible_paths
from toolfold.environments.backend import Channel, Readiness, Size
from toolfold.environments.client import Client, on_terminal
from toolfold.environments.local import Local
from toolfold.environments.view import FileView, find_private, has_writable_file, trace_links

PROBE_SECONDS = 5.0
MAX_IDENTITY_BYTES = 4_000
"""How much of the user's git settings is taken over."""

_NAMESPACES = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    "--unshare-user-try",  # also as root, who would share the keys that the kernel keeps for a user
    *("--cap-drop", "ALL"),
)
_TMP = Path("/tmp")  # noqa: S108  (the one inside)
_OWN_FILES = Path("/run/toolfold")
"""Inside: where host caches are, to which the sandbox's own cache folder links."""


class Sandbox(Local):
    """`local`, with a wall around each command."""

    name = "sandbox"
    gate = "bwrap"
    advice = "Run `toolfold env test sandbox` to see what is wrong."

    def __init__(
        self,
        *,
        home: Path,
        notes: Path,
        environment: Mapping[str, str],
        network: bool = False,
        writable: Iterable[Path] = (),
        visible: Iterable[Path] = (),
        hidden: Iterable[Path] = (),
    ) -> None:
        """Describe a sandbox; nothing is started.

        `writable` are folders beside the project, `visible` more that can be read, and `hidden` what is shown
        in no case, unless it is the project.
        """
        super().__init__(home=home, notes=notes, environment=environment)
        self._network = network
        self._writable = (home, *writable)
        self._visible = tuple(visible)
        self._hidden = tuple(hidden)
        self._user = _user_home(environment.get("HOME", ""))
        self._arguments: list[str] = []
        self._kernel: list[str] = []

    @property
    def shared(self) -> Sequence[tuple[str, str]]:
        return [(str(folder), str(folder)) for folder in self._writable]

    async def check(self) -> Readiness:
        if not shutil.which("bwrap", path=self._environment["PATH"]):
            return Readiness(
                False, "bubblewrap is not installed", "Install it: `apt-get install bubblewrap`, or the like."
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
        probe = Client.start([*words, "--unshare-net", "true"], env=self._environment, cwd="/")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                code = await probe.wait()
            reason = probe.complaint()
        except TimeoutError:
            code, reason = 1, "bubblewrap does not answer"
        finally:
            await probe.close()
        advice = (
            "It needs namespaces, which a container or the kernel's settings may forbid. Use docker or local."
        )
        return Readiness(code == 0, reason, "" if code == 0 else advice)

    async def open(self) -> None:
        for folder in (self._temporary, self._cache, self._empty_folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._empty_file.touch()
        self._git_identity.write_text(await self._read_git_identity())
        view = await asyncio.to_thread(self._build_view)
        self._arguments = view.arguments()
        self._kernel = [*_proc_arguments(self._empty_file), *_limits_arguments()]
        _make_folders(self._temporary, view.scratch_entries())

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], pty: Size | None) -> Channel:
        return Client.start(argv, env={**self._environment, **env}, pty=pty, controls=False, cwd="/")

    def entry(self, tasks: str, *, lasting: bool, terminal: bool) -> Sequence[str]:
        return [
            "bwrap",
            *_NAMESPACES,
            *(() if self._network else ("--unshare-net",)),
            *(() if lasting else ("--die-with-parent",)),
            *self._arguments,
            *("--dev", "/dev", *self._kernel),
            *("--ro-bind", f"{self.folder}/shell", f"{self.folder}/shell"),
            *("--ro-bind", posixpath.dirname(tasks), posixpath.dirname(tasks), "--bind", tasks, tasks),
            *("--remount-ro", "/"),
            *("--setenv", "TMPDIR", str(_TMP)),
            "--",
            *(("setsid", *on_terminal("/dev/console")) if terminal else ()),
        ]

    @property
    def _temporary(self) -> Path:
        return self._notes / "tmp"

    @property
    def _cache(self) -> Path:
        return self._notes / "cache"

    @property
    def _empty_file(self) -> Path:
        return self._notes / "nothing"

    @property
    def _empty_folder(self) -> Path:
        return self._notes / "empty"

    @property
    def _git_identity(self) -> Path:
        return self._notes / "gitconfig"

    def _build_view(self) -> FileView:
        """Collect what is visible. Where two of these name one path, the later one counts."""
        view = FileView(self._empty_file, self._empty_folder)
        for path in visible_paths.SYSTEM:
            view.show(path, follow=False)
        for folder, depth in visible_paths.PRIVATE_SYSTEM.items():
            for path in find_private(folder, max_depth=depth):
                view.cover(path)
        view.links[Path("/var/run")] = "/run"
        for path in (Path("/run"), Path("/var/tmp")):  # noqa: S108  (the ones inside)
            view.add_empty(path)
        if self._network:
            self._show_resolver(view)
        view.bind(self._temporary, _TMP, writable=True)
        if self._user is not None:
            view.add_empty(self._user)
        self._show_chosen(view)
        view.add_empty(self._notes)
        return view

    def _show_chosen(self, view: FileView) -> None:
        """Show the project, what the settings name, and the tools in the user's home folder."""
        chosen = FileView(self._empty_file, self._empty_folder)
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
                if each in self._real_writable or not each.is_relative_to(path.resolve())
            }
        view.mounts |= chosen.mounts

    @property
    def _real_writable(self) -> set[Path]:
        return {path.resolve() for path in self._writable} | set(self._writable)

    def _show_home(self, view: FileView, *, around: FileView) -> None:
        """Show the tools in the user's home folder, and hide the rest of it.

        Where the home folder is part of what was chosen, its hidden files are hidden; others are shown.
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
        """Show caches of the user, by links in the sandbox's own cache folder.

        Nothing can be mounted there itself: commands write to that folder, and could lead a mount astray.
        """
        for name, parts in visible_paths.CACHES.items():
            shown = [part for part in parts or ("",) if _is_plain_folder(caches / name / part)]
            for part in shown:
                view.bind(caches / name / part, _OWN_FILES / "cache" / name / part)
            if shown:
                with contextlib.suppress(FileExistsError):
                    (self._cache / name).symlink_to(_OWN_FILES / "cache" / name)

    def _show_resolver(self, view: FileView) -> None:
        """Show how names are looked up, which may lie in /run, behind a link."""
        found = Path("/etc/resolv.conf").resolve()
        if found.is_relative_to("/run") and found.exists():
            view.bind(found, found)

    async def _read_git_identity(self) -> str:
        """Return the user's name and address as settings of git; nothing else of those settings is shown."""
        if self._user is None or not shutil.which("git", path=self._environment["PATH"]):
            return ""
        words = ("git", "config", "--global", "--null", "--get-regexp", r"^user\.(name|email)$")
        git = Client.start(words, env=self._environment, cwd="/")
        found = b""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                while (data := await git.read()) and len(found) <= MAX_IDENTITY_BYTES:
                    found += data
        except TimeoutError:
            return ""
        finally:
            await git.close()
        return _identity_settings(found[:MAX_IDENTITY_BYTES].decode(errors="replace"))


def _proc_arguments(empty: Path) -> list[str]:
    """Options for /proc, where what belongs to the entire machine cannot be changed.

    As root it could be otherwise: bubblewrap takes /proc/sys for read-only, since nothing can be added to it.
    """
    words = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for path in sorted(Path("/proc").iterdir()):
        if path.name in visible_paths.PROC_HIDDEN:
            words += ["--ro-bind", str(empty), str(path)]
        elif not path.name.isdecimal() and path.name not in visible_paths.PROC_COVERED:
            words += ["--ro-bind", str(path), str(path)] if has_writable_file(path) else []
    return words


def _limits_arguments() -> list[str]:
    """Show by which limits programs learn how much memory they have, where it is one small file system."""
    folder = "/sys/fs/cgroup"
    return ["--ro-bind", folder, folder] if Path(folder, "cgroup.controllers").exists() else []


def _user_home(value: str) -> Path | None:
    """Return the home folder, or None where there is none of its own."""
    home = Path(value)
    if not home.is_absolute():
        return None
    real = home.resolve()
    return None if any(path.is_relative_to(real) for path in visible_paths.SYSTEM) else home


def _is_plain_folder(path: Path) -> bool:
    """Whether it is a folder, with no link on the way to it."""
    return path.is_dir() and path.resolve() == path


def _make_folders(parent: Path, names: Iterable[str]) -> None:
    """Make folders in one that commands can write, in place of links that they may have left there."""
    for name in names:
        path = parent / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(exist_ok=True)


def _identity_settings(found: str) -> str:
    """Return settings of git with the values of `git config --null --get-regexp`."""
    values = dict(entry.split("\n", 1) for entry in found.split("\0") if "\n" in entry)
    lines = [f"\t{key.partition('.')[2]} = {_quote_setting(value)}\n" for key, value in values.items()]
    return "[user]\n" + "".join(lines) if lines else ""


def _quote_setting(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
