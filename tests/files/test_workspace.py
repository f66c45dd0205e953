"""The workspace never gives access outside its roots, and rejected operations change nothing."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolfold.core.errors import CallError
from toolfold.tools.files import Workspace

SECRET = b"secret\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"alpha\n")
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_bytes(SECRET)
    return folder


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


def read(workspace: Workspace, path: str | Path, *also: Path) -> bytes:
    with workspace.open_for_reading(path, also) as file:
        return file.read()


def read_error(workspace: Workspace, path: str | Path) -> str:
    with pytest.raises(CallError) as caught:
        read(workspace, path)
    return str(caught.value)


def write_error(workspace: Workspace, path: str | Path) -> str:
    with pytest.raises(CallError) as caught:
        workspace.write_atomically(path, b"evil")
    return str(caught.value)


def snapshot_tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


# Paths


@pytest.mark.parametrize("path", ["a.txt", "./a.txt", "sub/../a.txt", "a.txt/"])
def test_relative_path_is_resolved_against_the_workspace_root(
    workspace: Workspace, root: Path, path: str
) -> None:
    (root / "sub").mkdir()
    assert read(workspace, path) == b"alpha\n"


def test_absolute_path_inside_the_workspace_is_accepted(workspace: Workspace, root: Path) -> None:
    assert read(workspace, str(root / "a.txt")) == b"alpha\n"


def test_tilde_in_a_path_expands_to_the_home_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root))
    assert read(Workspace(root), "~/a.txt") == b"alpha\n"
    monkeypatch.setenv("HOME", "/somewhere/else")
    assert "outside the workspace" in read_error(Workspace(root), "~/a.txt")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../outside/secret.txt", "../../../../etc/passwd", "..", "/"]
)
def test_path_outside_the_workspace_is_rejected_for_reading_and_writing(
    workspace: Workspace, outside: Path, path: str
) -> None:
    assert "is outside the workspace" in read_error(workspace, path)
    assert "is outside the workspace" in write_error(workspace, path)
    assert snapshot_tree(outside) == {"secret.txt": SECRET}


def test_writing_to_a_sibling_directory_whose_name_begins_with_the_workspace_name_is_rejected(
    workspace: Workspace, root: Path
) -> None:
    twin = root.with_name("work-twin")
    twin.mkdir()
    assert "is outside the workspace" in write_error(workspace, str(twin / "x"))
    assert snapshot_tree(twin) == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\0.txt", "NUL"),
        ("x" * 3_000_000, "3000000 bytes"),
        ("x" * 300, "too long"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_empty_overlong_or_invalid_path_is_rejected_with_a_short_message(
    workspace: Workspace, root: Path, path: str, reason: str
) -> None:
    before = snapshot_tree(root)
    for message in (read_error(workspace, path), write_error(workspace, path)):
        assert reason in message
        assert len(message) < 500
    assert snapshot_tree(root) == before


@given(st.text(max_size=60))
@settings(deadline=None)  # a busy disk is slow to sync
def test_writing_to_an_arbitrary_path_changes_files_only_inside_the_workspace_or_raises_call_error(
    path: str,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        try:
            written = workspace.write_atomically(path, b"x")
        except CallError:
            return
        assert written.path.is_relative_to(workspace.root)
        assert written.path.read_bytes() == b"x"


def test_files_in_additional_workspace_directories_can_be_read_and_written_by_absolute_path(
    root: Path, outside: Path
) -> None:
    workspace = Workspace(root, [outside])
    assert read(workspace, str(outside / "secret.txt")) == SECRET
    assert workspace.write_atomically(outside / "new", b"x").created


def test_extra_directory_that_a_session_may_read_is_not_writable(workspace: Workspace, outside: Path) -> None:
    target = outside / "secret.txt"
    assert read(workspace, target, outside) == SECRET
    assert "is outside the workspace" in read_error(workspace, target)
    assert "is outside the workspace" in write_error(workspace, target)
    assert snapshot_tree(outside) == {"secret.txt": SECRET}


def test_displayed_path_is_relative_inside_the_workspace_and_absolute_outside(
    root: Path, outside: Path
) -> None:
    workspace = Workspace(root, [outside])
    assert workspace.relative(workspace.resolve("sub/x.py")) == "sub/x.py"
    assert workspace.relative(workspace.resolve(".")) == "."
    assert workspace.relative(outside / "secret.txt") == str(outside / "secret.txt")


# Reading


def test_chain_of_1500_symlinks_out_of_the_workspace_is_rejected(
    workspace: Workspace, root: Path, tmp_path: Path
) -> None:
    for number in range(1_500):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    (tmp_path / "outside").write_bytes(b"end")
    (root / "l1500").symlink_to(tmp_path / "outside")
    assert "symbolic link" in read_error(workspace, "l0")
    assert "symbolic link" in read_error(workspace, "l0/x")
    assert "symbolic link" in write_error(workspace, "l0")
    assert list_files(workspace) == ["a.txt"]
    assert (tmp_path / "outside").read_bytes() == b"end"


def test_error_for_a_missing_file_suggests_similar_names(workspace: Workspace, root: Path) -> None:
    (root / "src").mkdir()
    (root / "src" / "config.py").touch()
    assert (
        read_error(workspace, "src/confg.py") == "'src/confg.py' does not exist. Did you mean src/config.py?"
    )
    assert read_error(workspace, "srcc/config.py") == "'srcc' does not exist. Did you mean src/config.py?"
    assert read_error(workspace, "config.py") == "'config.py' does not exist. Did you mean src/config.py?"
    assert read_error(workspace, "srcc/other.py") == "'srcc' does not exist. Did you mean src?"
    assert read_error(workspace, "zzzzzzzz") == "'zzzzzzzz' does not exist. '.' contains: a.txt, src."


def test_error_for_reading_a_directory_lists_its_entries(workspace: Workspace, root: Path) -> None:
    assert read_error(workspace, ".") == "'.' is a directory, not a file. It contains: a.txt."
    (root / "many").mkdir()
    for number in range(30):
        (root / "many" / f"{number:02}").touch()
    message = write_error(workspace, "many")
    assert "'many' is a directory, not a file. It contains: 00, 01," in message
    assert message.endswith("19, ….")


def test_error_for_a_path_below_a_regular_file_says_that_a_path_component_is_a_file(
    workspace: Workspace, root: Path
) -> None:
    assert "a part of the path is a file" in read_error(workspace, "a.txt/b")
    assert "a part of the path is a file" in write_error(workspace, "a.txt/b")
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}


def test_access_to_a_missing_workspace_directory_fails_and_does_not_create_the_directory(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path / "gone")
    assert "workspace directory" in read_error(workspace, "a")
    assert "workspace directory" in write_error(workspace, "a")
    assert not (tmp_path / "gone").exists()


def test_reading_a_named_pipe_is_rejected_without_blocking(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert "not a regular file but a named pipe" in read_error(workspace, "pipe")
    assert "not a regular file but a named pipe" in write_error(workspace, "pipe")
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)


def test_reading_a_file_replaced_by_a_named_pipe_after_the_path_check_fails_without_blocking(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (root / "a.txt").unlink()
        os.mkfifo(root / "a.txt")

    swap_before_open(monkeypatch, "a.txt", swap)
    assert "named pipe" in read_error(workspace, "a.txt")


def test_reading_a_socket_is_rejected(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        there = Path.cwd()
        os.chdir(root)  # socket paths must be short
        try:
            server.bind("s")
        finally:
            os.chdir(there)
        assert "not a regular file but a socket" in read_error(Workspace(root), "s")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_reading_a_device_file_inside_the_workspace_is_rejected(workspace: Workspace, root: Path) -> None:
    try:
        os.mknod(root / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this container makes no devices")
    assert "not a regular file but a device" in read_error(workspace, "zero")


def test_reading_a_file_leaks_no_file_descriptor(workspace: Workspace, root: Path) -> None:
    (root / "link").symlink_to("/etc/passwd")
    before = len(list(Path("/proc/self/fd").iterdir()))
    read(workspace, "a.txt")
    workspace.write_atomically("deep/er/b", b"x")
    list(workspace.files())
    for path in ("link", "missing", ".", "a.txt/x"):
        read_error(workspace, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Links


def test_reading_through_a_symlink_inside_the_workspace_returns_the_linked_file(
    workspace: Workspace, root: Path
) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "link").symlink_to("../a.txt")
    (root / "folder").symlink_to("sub")
    assert read(workspace, "sub/link") == b"alpha\n"
    assert read(workspace, "folder/link") == b"alpha\n"


def test_files_of_a_workspace_opened_through_a_symlink_can_be_read_through_the_symlink_path(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(root)
    workspace = Workspace(tmp_path / "alias")
    assert read(workspace, str(tmp_path / "alias" / "a.txt")) == b"alpha\n"


def test_error_for_a_symlink_that_leaves_the_workspace_names_the_symlink(
    workspace: Workspace, root: Path, outside: Path
) -> None:
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "zero").symlink_to("/dev/zero")
    (root / "chain").symlink_to("file")
    (root / "dangling").symlink_to(outside / "new")
    for path in ("file", "folder/secret.txt", "zero", "chain", "dangling", "folder/new"):
        assert "leads outside the workspace through a symbolic link" in read_error(workspace, path)
        assert "leads outside the workspace through a symbolic link" in write_error(workspace, path)
    assert snapshot_tree(outside) == {"secret.txt": SECRET}


def test_path_with_dot_dot_after_a_symlink_to_an_outside_directory_is_rejected(
    workspace: Workspace, root: Path, outside: Path
) -> None:
    (outside / "deep").mkdir()
    (root / "link").symlink_to(outside / "deep")
    assert "outside the workspace" in read_error(workspace, "link/../secret.txt")


def test_reading_or_writing_through_a_cycle_of_symlinks_is_rejected(workspace: Workspace, root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    assert "leads back to itself" in read_error(workspace, "one")
    assert "leads back to itself" in read_error(workspace, "one/x")
    assert "leads back to itself" in write_error(workspace, "one")
    assert (root / "one").is_symlink()


def test_writing_through_a_symlink_replaces_the_file_it_points_to_and_keeps_the_symlink(
    workspace: Workspace, root: Path
) -> None:
    (root / "link").symlink_to("a.txt")
    (root / "dangling").symlink_to("fresh/new.txt")
    written = workspace.write_atomically("link", b"beta")
    assert (written.path, written.created) == (root / "a.txt", False)
    assert workspace.write_atomically("dangling", b"new").created
    assert (root / "link").is_symlink()
    assert snapshot_tree(root) == {"a.txt": b"beta", "fresh/new.txt": b"new"}


# Races: a file is swapped between check and use


def swap_before_open(monkeypatch: pytest.MonkeyPatch, name: str, swap: object) -> None:
    """Run `swap` once, immediately before `name` is opened."""
    real_open, done = os.open, list[str]()

    def racing(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path) == name and not done:
            done.append(name)
            assert callable(swap)
            swap()
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", racing)


def test_reading_fails_if_a_file_is_replaced_by_a_symlink_after_the_path_check(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        (root / "a.txt").unlink()
        (root / "a.txt").symlink_to(outside / "secret.txt")

    swap_before_open(monkeypatch, "a.txt", swap)
    assert "was just changed" in read_error(workspace, "a.txt")


def swapped_directory(root: Path, outside: Path) -> object:
    (root / "sub").mkdir()
    (root / "sub" / "secret.txt").write_bytes(b"mine")

    def swap() -> None:
        (root / "sub").rename(root / "moved")
        (root / "sub").symlink_to(outside)

    return swap


def test_reading_fails_if_a_directory_is_replaced_by_a_symlink_after_the_path_check(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_before_open(monkeypatch, "sub", swapped_directory(root, outside))
    assert "was just changed" in read_error(workspace, "sub/secret.txt")


def test_writing_fails_if_a_directory_is_replaced_by_a_symlink_after_the_path_check(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_before_open(monkeypatch, "sub", swapped_directory(root, outside))
    assert "was just changed" in write_error(workspace, "sub/secret.txt")
    assert snapshot_tree(outside) == {"secret.txt": SECRET}
    assert snapshot_tree(root) == {"a.txt": b"alpha\n", "moved/secret.txt": b"mine"}


def test_write_stays_in_the_original_directory_if_its_path_is_swapped_during_the_write(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap, real_replace = swapped_directory(root, outside), os.replace

    def racing(src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        assert callable(swap)
        swap()
        real_replace(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", racing)
    workspace.write_atomically("sub/secret.txt", b"new")
    assert snapshot_tree(outside) == {"secret.txt": SECRET}
    assert snapshot_tree(root) == {"a.txt": b"alpha\n", "moved/secret.txt": b"new"}


def test_reading_fails_if_the_workspace_directory_was_replaced_by_a_symlink_to_another_directory(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outside / "work").mkdir()
    (outside / "work" / "a.txt").write_bytes(SECRET)

    def swap() -> None:
        root.parent.rename(root.parent.with_name("elsewhere"))
        root.parent.symlink_to(root.parent.with_name("elsewhere") / "outside")

    swap_before_open(monkeypatch, str(root), swap)
    try:
        assert "was just changed" in read_error(workspace, "a.txt")
    finally:
        root.parent.unlink()
        root.parent.with_name("elsewhere").rename(root.parent)


def test_symlink_whose_target_changes_constantly_never_allows_access_outside_the_workspace(
    workspace: Workspace, root: Path, outside: Path
) -> None:
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_bytes(b"mine")
    (root / "flip").symlink_to("real")
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for target in (outside, Path("real")):
                (root / "next").symlink_to(target)
                (root / "next").rename(root / "flip")

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(300):
            try:
                assert read(workspace, "flip/secret.txt") == b"mine"
                workspace.write_atomically("flip/secret.txt", b"mine")
            except CallError:
                continue
    finally:
        stop.set()
        thread.join()
    assert snapshot_tree(outside) == {"secret.txt": SECRET}


@pytest.fixture
def home(root: Path) -> Path:
    folder = root / "home"
    folder.mkdir()
    (folder / "secret.txt").write_bytes(SECRET)
    return folder


def test_toolfold_directory_inside_the_workspace_is_inaccessible(root: Path, home: Path) -> None:
    workspace = Workspace(root, private=[home])
    (root / "link").symlink_to("home")
    for path in ("home/secret.txt", "link/secret.txt", "home/new"):
        assert "Toolfold's own settings and state" in read_error(workspace, path)
        assert "Toolfold's own settings and state" in write_error(workspace, path)
    assert list_files(workspace) == ["a.txt"]
    assert snapshot_tree(home) == {"secret.txt": SECRET}
    assert read(workspace, "home/secret.txt", home) == SECRET


def test_writing_fails_if_a_directory_was_replaced_by_a_symlink_to_toolfold_files(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(root, private=[home])
    swap_before_open(monkeypatch, "sub", swapped_directory(root, home))
    assert "was just changed" in write_error(workspace, "sub/secret.txt")
    assert snapshot_tree(home) == {"secret.txt": SECRET}


def test_reading_through_a_symlink_that_is_removed_during_the_read_raises_call_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link").symlink_to("a.txt")

    def gone(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    workspace = Workspace(root)
    monkeypatch.setattr("os.readlink", gone)
    assert "symbolic link" in read_error(workspace, "link")


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_replacing_directories_during_access_never_exposes_the_toolfold_directory(
    root: Path, home: Path, kind: str
) -> None:
    workspace = Workspace(root, private=[home])
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_bytes(b"mine")
    (root / "flip").symlink_to("real")
    stop = threading.Event()

    def flip_link() -> None:
        for target in ("home", "real"):
            (root / "next").symlink_to(target)
            (root / "next").rename(root / "flip")

    def flip_folder() -> None:
        (root / "real").rename(root / "aside")
        (root / "real").symlink_to("home")
        (root / "real").unlink()
        (root / "aside").rename(root / "real")

    def flip() -> None:
        while not stop.is_set():
            {"link": flip_link, "folder": flip_folder}[kind]()

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(300):
            try:
                assert read(workspace, "flip/secret.txt") == b"mine"
                workspace.write_atomically("flip/secret.txt", b"mine", make_parents=False)
            except CallError:
                continue
    finally:
        stop.set()
        thread.join()
    assert snapshot_tree(home) == {"secret.txt": SECRET}


# Writing


def test_permissions_of_new_files_and_directories_follow_the_umask(workspace: Workspace, root: Path) -> None:
    before = os.umask(0o027)
    try:
        written = workspace.write_atomically("new/deep/b.txt", b"beta")
    finally:
        os.umask(before)
    assert written.created
    assert written.path == root / "new/deep/b.txt"
    assert written.path.read_bytes() == b"beta"
    assert stat.S_IMODE(written.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(written.path.parent.stat().st_mode) == 0o750


def test_writing_into_a_missing_directory_without_make_parents_is_an_error(
    workspace: Workspace, root: Path
) -> None:
    with pytest.raises(CallError, match="'new' does not exist"):
        workspace.write_atomically("new/b.txt", b"", make_parents=False)
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}
    assert not (root / "new").exists()


def test_writing_an_existing_file_keeps_its_permissions(workspace: Workspace, root: Path) -> None:
    (root / "a.txt").chmod(0o751)
    assert not workspace.write_atomically("a.txt", b"beta").created
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o751


def test_writing_an_existing_file_removes_its_set_user_id_bit(workspace: Workspace, root: Path) -> None:
    (root / "a.txt").chmod(0o4755)
    workspace.write_atomically("a.txt", b"beta")
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_writing_an_existing_file_keeps_its_owner(workspace: Workspace, root: Path) -> None:
    os.chown(root / "a.txt", 1234, 5678)
    workspace.write_atomically("a.txt", b"beta")
    assert ((root / "a.txt").stat().st_uid, (root / "a.txt").stat().st_gid) == (1234, 5678)


@pytest.fixture
def unprivileged_directory() -> Iterator[Path]:
    """Directory in which this process has only the rights of the mode bits."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(was)
        shutil.rmtree(folder)


def test_writing_a_read_only_file_in_a_writable_directory_is_rejected(unprivileged_directory: Path) -> None:
    (unprivileged_directory / "locked").write_bytes(b"keep")
    (unprivileged_directory / "locked").chmod(0o444)
    assert "is read-only" in write_error(Workspace(unprivileged_directory), "locked")
    assert snapshot_tree(unprivileged_directory) == {"locked": b"keep"}


def test_reading_a_file_without_permission_raises_call_error(unprivileged_directory: Path) -> None:
    (unprivileged_directory / "locked").write_bytes(b"keep")
    (unprivileged_directory / "locked").chmod(0)
    assert "Permission denied" in read_error(Workspace(unprivileged_directory), "locked")


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_content_and_leaves_no_temporary_file(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    assert "No space left on device. Nothing was changed." in write_error(workspace, "a.txt")
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}


def test_write_interrupted_by_ctrl_c_keeps_the_old_file_content_and_leaves_no_temporary_file(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        workspace.write_atomically("a.txt", b"beta")
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}


def test_writing_a_hard_linked_file_does_not_change_the_content_of_its_other_link(
    workspace: Workspace, root: Path
) -> None:
    (root / "b.txt").hardlink_to(root / "a.txt")
    workspace.write_atomically("b.txt", b"beta")
    assert snapshot_tree(root) == {"a.txt": b"alpha\n", "b.txt": b"beta"}


def test_writing_a_file_path_with_a_trailing_slash_is_rejected(workspace: Workspace, root: Path) -> None:
    assert "names a directory" in write_error(workspace, "notes/")
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}


def test_reader_during_a_concurrent_write_sees_either_the_old_or_the_new_content_completely(
    workspace: Workspace,
) -> None:
    versions = [b"a" * 300_000, b"b" * 300_000]
    workspace.write_atomically("big", versions[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                workspace.write_atomically("big", version)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            assert read(workspace, "big") in versions
    finally:
        stop.set()
        thread.join()


# Protected files


@pytest.mark.parametrize(
    "path",
    [
        "toolfold.yaml",
        "sub/Toolfold.YAML",
        ".toolfold/state.db",
        ".TOOLFOLD/deep/er",
        ".git",
        ".git/hooks/pre-commit",
        "sub/.Git/config",
        ".g\u200cit/config",
        ".git./config",
        "sub/../.git/config",
    ],
)
def test_files_of_toolfold_and_git_are_not_writable(workspace: Workspace, root: Path, path: str) -> None:
    assert "is protected from the file tools" in write_error(workspace, path)
    assert snapshot_tree(root) == {"a.txt": b"alpha\n"}
    assert sorted(each.name for each in root.iterdir()) == ["a.txt"]


def test_files_of_toolfold_and_git_are_not_writable_through_symlinks(
    workspace: Workspace, root: Path
) -> None:
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "toolfold.yaml").write_bytes(b"mine")
    (root / "hooks").symlink_to(".git/hooks")
    (root / "settings").symlink_to("toolfold.yaml")
    (root / "store").mkdir()
    (root / ".toolfold").symlink_to("store")
    before = snapshot_tree(root)
    for path in ("hooks/pre-commit", "settings", ".toolfold/x"):
        assert "is protected from the file tools" in write_error(workspace, path)
    assert snapshot_tree(root) == before


def test_files_with_names_similar_to_git_and_toolfold_files_can_be_written(workspace: Workspace) -> None:
    for path in (".gitignore", ".github/x", "toolfold.yaml.md", "my.toolfold/x"):
        assert workspace.write_atomically(path, b"x").created


GIT = "git runs code that is stored there"


def test_git_directory_with_a_name_other_than_dot_git_is_not_writable(
    workspace: Workspace, root: Path
) -> None:
    subprocess.run(["git", "init", "-q", "--separate-git-dir", root / "meta", root], check=True)
    before = snapshot_tree(root)
    for path in ("meta/hooks/pre-commit", "meta/config", "meta/new/x", "meta/HEAD"):
        assert GIT in write_error(workspace, path)
    with pytest.raises(CallError, match=GIT):
        workspace.write_atomically("meta/config", b"evil", make_parents=False)
    assert snapshot_tree(root) == before
    assert not (root / "meta" / "new").exists()


def test_workspace_that_is_a_git_directory_is_not_writable(root: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", root], check=True)
    assert GIT in write_error(Workspace(root), "hooks/pre-commit")
    assert GIT in write_error(Workspace(root / "hooks"), "pre-commit")
    assert not (root / "hooks" / "pre-commit").exists()


@pytest.mark.parametrize("marker", ["file", "link", "link to a file"])
def test_git_directory_referenced_by_a_dot_git_file_or_symlink_is_not_writable(
    workspace: Workspace, root: Path, marker: str
) -> None:
    (root / "store").mkdir()
    (root / "named").write_text("gitdir: store\n")
    if marker == "file":
        (root / "named").rename(root / ".git")
    else:
        (root / ".git").symlink_to("store" if marker == "link" else "named")
    assert GIT in write_error(workspace, "store/config")
    assert snapshot_tree(root / "store") == {}
    assert workspace.write_atomically("storehouse/config", b"x").created


def test_files_beside_an_invalid_dot_git_file_are_writable(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / ".git")
    (root / "sub").mkdir()
    (root / "sub" / ".git").write_bytes(b"gitdir: \0\xff")
    assert workspace.write_atomically("sub/b", b"x").created


@pytest.mark.parametrize(
    "paths",
    [
        ["HEAD", "config", "objects/x", "refs/x"],
        ["refs/x", "objects/x", "HEAD"],
        ["objects/deep/x", "HEAD", "refs/deep/x"],
        ["objects/x", "refs/x", "head"],
        ["config", "hooks/pre-commit", "HEAD"],
        ["HEAD", "commondir"],
    ],
    ids=lambda paths: paths[-1],
)
def test_write_that_would_turn_a_directory_into_a_git_directory_is_rejected(
    workspace: Workspace, root: Path, paths: list[str]
) -> None:
    for path in paths[:-1]:
        workspace.write_atomically(f"sub/{path}", b"x")
    assert GIT in write_error(workspace, f"sub/{paths[-1]}")
    assert not (root / "sub" / paths[-1]).exists()


def test_files_with_names_of_git_internals_are_writable_outside_git_directories(workspace: Workspace) -> None:
    for path in ("HEAD", "config", "objects/x", "docs/refs/x", "docs/hooks/x", "docs/config"):
        assert workspace.write_atomically(path, b"x").created


def test_toolfold_settings_file_in_the_workspace_can_be_read(workspace: Workspace, root: Path) -> None:
    (root / "toolfold.yaml").write_bytes(b"mine")
    assert read(workspace, "toolfold.yaml") == b"mine"


# Walking


def list_files(workspace: Workspace, *args: object, **kwargs: object) -> list[str]:
    return [workspace.relative(path) for path in workspace.files(*args, **kwargs)]  # type: ignore[arg-type]


def test_files_are_listed_in_a_fixed_order_and_ignored_directories_are_skipped(
    workspace: Workspace, root: Path
) -> None:
    for path in ("z.txt", "b/2", "b/1", "b/c/3", "node_modules/x", "b/node_modules/y"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    os.mkfifo(root / "pipe")
    assert list_files(workspace, skip={"node_modules"}) == ["a.txt", "z.txt", "b/1", "b/2", "b/c/3"]
    assert list_files(workspace, "node_modules", skip={"node_modules"}) == ["node_modules/x"]
    assert list_files(workspace, "b/1") == ["b/1"]


def test_file_listing_with_symlink_cycles_terminates_and_lists_each_file_once(
    workspace: Workspace, root: Path
) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "f").touch()
    (root / "sub" / "up").symlink_to("..")
    (root / "sub" / "self").symlink_to("self")
    (root / "again").symlink_to("sub")
    (root / "also_f").symlink_to("sub/f")
    assert list_files(workspace) == ["a.txt", "sub/f"]
    assert list_files(workspace, "sub") == ["sub/f", "a.txt"]


def test_file_listing_never_includes_files_outside_the_workspace(
    workspace: Workspace, root: Path, outside: Path
) -> None:
    (root / "out").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret.txt")
    assert list_files(workspace) == ["a.txt"]
    assert list_files(Workspace(root, [outside])) == ["a.txt", str(outside / "secret.txt")]
    with pytest.raises(CallError, match="through a symbolic link"):
        list_files(workspace, "out")


def test_file_listing_skips_a_directory_that_is_replaced_by_a_symlink_during_the_listing(
    workspace: Workspace, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_before_open(monkeypatch, "sub", swapped_directory(root, outside))
    assert list_files(workspace) == ["a.txt"]


def test_listing_a_missing_directory_is_an_error(workspace: Workspace) -> None:
    with pytest.raises(CallError, match="'missing' does not exist"):
        list_files(workspace, "missing")


def test_file_listing_of_many_empty_directories_stops_when_the_stop_callback_returns_true(
    workspace: Workspace, root: Path
) -> None:
    for number in range(50):
        (root / "empty" / f"{number}").mkdir(parents=True)
        (root / f"link{number}").symlink_to("empty")
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 20

    assert list_files(workspace, "empty", stop=stop) == []
    assert len(asked) < 30


@pytest.mark.thorough
def test_file_listing_includes_a_file_at_a_depth_of_300_directories(workspace: Workspace, root: Path) -> None:
    folder = root
    for _ in range(300):
        folder = folder / "d"
        folder.mkdir()
    (folder / "f").touch()
    assert len(list_files(workspace)) == 2
