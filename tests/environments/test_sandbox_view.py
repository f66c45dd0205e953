# ruff: noqa: ASYNC221, ASYNC230, ASYNC240  (nothing else runs in these loops)
"""Files, kernel interfaces and sockets of this machine that a sandbox shows, and what it can change."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments.planted_credentials import CREDENTIALS, MARKER, plant
from tests.environments.test_sandbox import skip_if_unavailable
from toolfold.tools.environments import Environment
from toolfold.tools.environments.sandbox import Sandbox

FIND_WRITABLE = r"""
for m in / $(awk '{print $5}' /proc/self/mountinfo); do
  find "$m" -xdev -writable ! -type l ! -path '/proc/[0-9]*' 2>/dev/null
done | sort -u
"""


@pytest.fixture
def workspace_root() -> Iterator[Path]:
    """Directory outside /tmp, because a sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.fixture
def home(workspace_root: Path) -> Path:
    (workspace_root / "home").mkdir()
    return workspace_root / "home"


async def open_sandbox(project: Path, home: Path, **options: object) -> Environment:
    project.mkdir(parents=True, exist_ok=True)
    backend = make_backend(project, home, **options)
    await skip_if_unavailable(backend)
    return Environment(backend)


def make_backend(project: Path, home: Path, **options: object) -> Sandbox:
    return Sandbox(
        home=project,
        state_dir=home.parent / "state" / "notes",
        environment={**os.environ, "HOME": str(home)},
        **options,  # type: ignore[arg-type]
    )


async def run_in(project: Path, home: Path, command: str, **options: object) -> str:
    async with await open_sandbox(project, home, **options) as environment:
        return (await environment.run(command)).output


def write(path: Path, text: str = "content") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def is_root() -> bool:
    return os.geteuid() == 0


async def test_none_of_the_known_credential_files_can_be_read_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    planted = plant(home)
    assert len(planted) > 150
    for tool in (
        ".cargo/registry/a.crate",
        ".npm/_cacache/a",
        "miniconda3/bin/a",
        ".deno/bin/a",
        ".local/share/uv/a",
    ):
        write(home / tool, "cached")
    names = write(workspace_root / "project" / "names", "\n".join(map(str, planted)))
    output = await run_in(
        workspace_root / "project",
        home,
        f'while read -r f; do cat "$f" 2>/dev/null; done <{names}; grep -rs {MARKER} ~ {workspace_root}'
        " /tmp /run /dev/shm; echo finished",
    )
    assert output == "finished\n"


async def test_home_directory_in_the_sandbox_contains_only_package_managers_and_caches(
    workspace_root: Path, home: Path
) -> None:
    plant(home)
    write(home / ".cargo/registry/a.crate")
    shown = set((await run_in(workspace_root / "project", home, "ls -A ~ ~/.cargo")).split())
    assert shown <= {
        f"{home}:",
        f"{home}/.cargo:",
        ".cache",
        ".cargo",
        ".deno",
        ".local",
        ".nvm",
        ".pyenv",
        "miniconda3",
        "registry",
    } | {
        ".config",
        ".cache",
    }


async def test_package_stores_and_version_managers_are_read_only_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    stores = [
        ".cargo/registry/cache/a.crate", ".rustup/toolchains/stable/bin/rustc",
        "go/pkg/mod/a/go.mod", ".m2/repository/a.jar", ".gradle/caches/a.jar",
        ".npm/_cacache/index", ".nvm/versions/node/v22.0.0/bin/node",
        ".pyenv/versions/3.12.1/bin/python", ".asdf/installs/a", ".local/share/mise/installs/a",
        ".sdkman/candidates/a", ".rbenv/versions/a", ".local/bin/tool", ".local/share/uv/tools/a",
        ".local/share/pnpm/store/a", ".cache/huggingface/hub/model", ".cache/ms-playwright/browser",
    ]  # fmt: skip
    for name in stores:
        write(home / name, f"<{name}>")
    command = "; ".join(f"cat ~/{name}; (echo x >~/{name}) 2>/dev/null && echo changed" for name in stores)
    assert (await run_in(workspace_root / "project", home, command)) == "".join(
        f"<{name}>" for name in stores
    )
    assert all((home / name).read_text() == f"<{name}>" for name in stores)


async def test_python_of_a_virtual_environment_in_the_project_runs_in_the_sandbox(
    workspace_root: Path,
) -> None:
    """Uses this machine's real interpreter, wherever in the real home directory its base is."""
    if not Path(sys.base_prefix).is_relative_to(Path.home()) and not sys.base_prefix.startswith("/usr"):
        pytest.skip(
            f"the interpreter is at {sys.base_prefix}, neither in the home folder nor part of the system"
        )
    project = workspace_root / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    output = await _run_with_state(
        project, workspace_root, ".venv/bin/python -c 'import ssl, sys; print(sys.prefix)'"
    )
    assert output == f"{project}/.venv\n"


async def _run_with_state(project: Path, workspace_root: Path, command: str) -> str:
    backend = Sandbox(home=project, state_dir=workspace_root / "notes", environment=os.environ)
    await skip_if_unavailable(backend)
    async with Environment(backend) as environment:
        return (await environment.run(command)).output


async def test_workspace_in_the_home_directory_is_writable_and_its_siblings_are_hidden(home: Path) -> None:
    write(home / "projects/other/.env")
    project = home / "projects" / "mine"
    write(project / ".env", "own settings ")
    output = await run_in(project, home, "cat .env; touch made; ls -A ~/projects; cat ~/projects/other/.env")
    assert output.startswith("own settings mine\n")
    assert "No such file" in output
    assert (project / "made").exists()


async def test_dot_files_except_package_managers_are_hidden_if_the_home_directory_is_the_workspace(
    home: Path,
) -> None:
    planted = plant(home)
    write(home / "thesis.tex", "chapter")
    write(home / ".cargo/registry/a.crate", "crate")
    output = await run_in(
        home,
        home,
        f"cat ~/thesis.tex ~/.cargo/registry/a.crate; grep -rls {MARKER} ~; touch ~/made; echo finished",
    )
    assert output.startswith("chaptercrate")
    assert (home / "made").exists()
    visible = {line for line in output.split("\n") if line.startswith(str(home))}
    open_to_see = {str(f) for f in planted if not any(p.startswith(".") for p in f.relative_to(home).parts)}
    assert visible <= open_to_see | {
        f"{home}/projects/other/.env",
        f"{home}/snap/firefox/common/.mozilla/firefox/a.default/logins.json",
    }


async def test_directories_added_to_the_sandbox_are_read_only_and_their_credential_files_stay_hidden(
    workspace_root: Path, home: Path
) -> None:
    write(home / ".config/tool/settings", "wanted ")
    write(home / ".config/gcloud/credentials.db", "secret")
    data = write(workspace_root / "data" / "model", "model ")
    output = await run_in(
        workspace_root / "project",
        home,
        f"cat ~/.config/tool/settings {data}; cat ~/.config/gcloud/credentials.db; echo x >{data};"
        " echo x >~/.config/tool/settings",
        visible=[home / ".config", data.parent],
    )
    assert output.startswith("wanted model ")
    assert "secret" not in output
    assert output.count("Read-only file system") == 2


async def test_credential_file_is_readable_in_the_sandbox_only_if_the_settings_list_this_file(
    workspace_root: Path, home: Path
) -> None:
    write(home / ".aws/config", "region")
    write(home / ".aws/credentials", "secret")
    output = await run_in(
        workspace_root / "project",
        home,
        "cat ~/.aws/config ~/.aws/credentials",
        visible=[home / ".aws/config"],
    )
    assert output.startswith("region")
    assert "secret" not in output


async def test_toolfold_files_inside_a_directory_added_to_the_sandbox_stay_hidden(
    workspace_root: Path, home: Path
) -> None:
    own = write(workspace_root / "data" / "toolfold" / "tokens", "secret")
    write(workspace_root / "data" / "other", "shown")
    output = await run_in(
        workspace_root / "project",
        home,
        f"cat {workspace_root}/data/other {own}",
        visible=[workspace_root / "data", own],
        hidden=[own.parent],
    )
    assert output.startswith("shown")
    assert "secret" not in output


@pytest.mark.parametrize("link", [".cargo/registry", ".cargo", ".nvm", ".local/share", ".cache/huggingface"])
async def test_symlink_from_a_visible_to_a_hidden_directory_does_not_make_the_hidden_files_readable(
    link: str, workspace_root: Path, home: Path
) -> None:
    write(home / "private/secret", "secret")
    write(home / "private/registry/secret", "secret")
    write(home / "private/uv/secret", "secret")
    write(home / "private/hub/secret", "secret")
    (home / link).parent.mkdir(parents=True, exist_ok=True)
    (home / link).symlink_to(home / "private")
    output = await run_in(
        workspace_root / "project",
        home,
        "grep -rs secret ~/ ~/.cargo/registry ~/.nvm ~/.local/share ~/.cache/*; echo finished",
    )
    assert output == "finished\n"


async def test_symlink_between_two_visible_directories_can_be_followed_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    (home / ".nvm").symlink_to("/usr/bin")
    assert (await run_in(workspace_root / "project", home, "test -x ~/.nvm/env && echo works")) == "works\n"


async def test_credentials_stay_hidden_in_the_sandbox_if_the_home_directory_is_a_symlink(
    workspace_root: Path, home: Path
) -> None:
    write(home / ".cargo/bin/tool", "tool")
    write(home / ".netrc", "secret")
    (workspace_root / "way").symlink_to("home")
    project = workspace_root / "way" / "project"
    output = await run_in(
        project,
        workspace_root / "way",
        f"pwd; cat ~/.cargo/bin/tool {home}/.cargo/bin/tool; cat ~/.netrc; touch made",
    )
    assert output.startswith(f"{project}\ntooltool")
    assert "secret" not in output
    assert (home / "project" / "made").exists()


@pytest.mark.parametrize("value", ["/", "/usr", "/nonexistent/home", "relative", ""])
async def test_sandboxed_commands_run_even_if_the_variable_home_is_empty_missing_or_a_system_directory(
    value: str, workspace_root: Path
) -> None:
    (workspace_root / "project").mkdir()
    backend = Sandbox(
        home=workspace_root / "project",
        state_dir=workspace_root / "notes",
        environment={"PATH": os.environ["PATH"], "HOME": value},
    )
    await skip_if_unavailable(backend)
    async with Environment(backend) as environment:
        assert (await environment.run("touch made && ls /usr/bin | wc -l")).output.strip() != "0"


async def test_file_written_to_the_home_directory_in_the_sandbox_is_absent_in_the_next_command(
    workspace_root: Path, home: Path
) -> None:
    async with await open_sandbox(workspace_root / "project", home) as environment:
        assert (await environment.run("echo x >~/.profile && cat ~/.profile")).output == "x\n"
        assert (await environment.run("ls ~/.profile")).exit_code != 0
    assert not list(home.iterdir())


async def test_git_in_the_sandbox_has_the_user_name_and_email_but_no_tokens_of_the_git_configuration(
    workspace_root: Path, home: Path
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    write(
        home / ".gitconfig",
        '[user]\n name = Ann "A" \\\\ Example\n email = ann@example.org\n'
        '[url "https://token@host/"]\n insteadOf = x\n'
        "[credential]\n helper = store\n",
    )
    output = await run_in(
        workspace_root / "project", home, "git config user.name; git config user.email; git config --list"
    )
    assert output.startswith("Ann A \\ Example\nann@example.org\n")
    assert "token" not in output
    assert "helper=store" not in output


async def test_kernel_settings_are_read_only_in_the_sandbox(workspace_root: Path, home: Path) -> None:
    output = await run_in(
        workspace_root / "project",
        home,
        "cat /proc/sys/kernel/core_pattern >/dev/null && echo readable;"
        " for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches"
        " /proc/sysrq-trigger /proc/irq/default_smp_affinity; do"
        " [ -e $f ] && (: >>$f) 2>/dev/null && echo opened $f; done; echo finished",
    )
    assert output == "readable\nfinished\n"


async def test_only_the_project_and_temporary_directories_are_writable_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    plant(home)
    project = workspace_root / "project"
    output = await run_in(project, home, FIND_WRITABLE)
    assert unexpectedly_writable(output, project, home) == []


def unexpectedly_writable(output: str, project: Path, home: Path) -> list[str]:
    exact = {
        "/dev",
        "/dev/shm",
        "/dev/pts",
        "/dev/pts/ptmx",
        "/run",
        "/tmp",
        "/var/tmp",
        str(project),
        str(home),
    }
    exact |= {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console")}
    # Directories that the sandbox creates on the way to a mount.
    exact |= {
        str(each) for each in (home.parent / "state" / "notes").parents if each.is_relative_to("/var/tmp")
    }
    exact.add(str(home.parent / "state" / "notes"))
    below = ("/tmp/", f"{project}/", f"{home}/.cache", "/dev/shm/toolfold.", "/run/toolfold")
    shown = {line for line in output.splitlines() if line not in exact and not line.startswith(below)}
    return sorted(line for line in shown if not line.startswith(f"{home}/"))


async def test_sandboxed_command_that_writes_everywhere_changes_only_the_project_on_the_host(
    workspace_root: Path, home: Path
) -> None:
    """Tries to write everywhere; only the project has changed afterwards."""
    plant(home)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    await run_in(
        workspace_root / "project",
        home,
        f"({FIND_WRITABLE}) | while read -r d; do [ -d $d ] && touch $d/tried; done; true",
    )
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    assert not any(
        (Path(folder) / "tried").exists()
        for folder in ("/run", "/tmp", "/var/tmp", "/dev", "/dev/shm", workspace_root)
    )
    assert (workspace_root / "project" / "tried").exists()


async def test_sandbox_of_an_unprivileged_user_hides_secrets_and_allows_writing_only_in_the_project(
    workspace_root: Path, home: Path
) -> None:
    if not is_root():
        pytest.skip("only root can become another user to try it; the other tests ran unprivileged")
    plant(home)
    project = workspace_root / "project"
    async with await open_sandbox(project, home) as environment:
        await environment.run("true")
        tasks = workspace_root / "tasks" / "own"
        tasks.mkdir(parents=True)
        argv = environment.backend.entry_argv(str(tasks), persistent=False, terminal=False)
        command = f"grep -rs {MARKER} {home}; cat /etc/shadow; touch {project}/made; {FIND_WRITABLE}"
        for path in (workspace_root, *workspace_root.rglob("*")):
            os.chown(path, 65_534, 65_534, follow_symlinks=False)
        done = await asyncio.to_thread(
            subprocess.run,
            [*argv, "sh", "-c", command],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
            user=65_534, group=65_534, extra_groups=[], capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    if "namespace" in done.stderr:
        pytest.skip(f"users may have no namespaces here: {done.stderr}")
    assert (project / "made").exists(), done.stderr
    assert MARKER not in done.stdout
    assert [
        line for line in unexpectedly_writable(done.stdout, project, home) if not line.startswith(str(tasks))
    ] == []


async def test_system_files_not_readable_by_everyone_such_as_shadow_are_hidden_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    output = await run_in(
        workspace_root / "project",
        home,
        "cat /etc/passwd >/dev/null && echo public;"
        " cat /etc/shadow /etc/gshadow /etc/ssh/ssh_host_*_key 2>/dev/null;"
        " find /etc -type f ! -perm -004 -size +0 -readable 2>/dev/null; echo finished",
    )
    assert output == "public\nfinished\n"


async def test_system_directories_that_commands_do_not_need_are_absent_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    secret = write(workspace_root / "elsewhere" / "file")
    output = await run_in(
        workspace_root / "project",
        home,
        f"for f in /root/.profile /root/.bashrc /home /mnt /media /boot /srv /sys/firmware /sys/kernel/debug"
        f" /sys/kernel/tracing /var/log /var/lib/docker /var/spool {secret} {Path(__file__).resolve()};"
        " do ls $f 2>/dev/null; done; echo finished",
    )
    assert output == "finished\n"


async def test_kernel_files_such_as_proc_kcore_are_unreadable_in_the_sandbox_even_for_root(
    workspace_root: Path, home: Path
) -> None:
    output = await run_in(
        workspace_root / "project",
        home,
        "for f in /proc/kcore /proc/kmsg /proc/keys /proc/timer_list /proc/1/mem /dev/mem; do"
        " [ -n \"$(head -c 10 $f 2>/dev/null | tr '\\0' x)\" ] && echo $f; done; echo finished",
    )
    assert output == "finished\n"


async def test_sandboxed_command_cannot_connect_to_sockets_of_the_host(
    workspace_root: Path, home: Path
) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("there is no python3 of the system to connect with")
    (home / ".gnupg").mkdir()
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as own,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        addresses = [f"{home}/.gnupg/S.agent", f"{own}/agent", f"{memory}/agent", f"\0toolfold-{os.getpid()}"]
        if is_root() and os.access("/run", os.W_OK):
            addresses.append(f"/run/toolfold-{os.getpid()}.sock")
        listeners = [listen(address) for address in addresses]
        connect = "socket.socket(socket.AF_UNIX).connect(a); print(repr(a))"
        tries = f"import socket\nfor a in {addresses!r}:\n try: {connect}\n except OSError: pass\n"
        write(workspace_root / "project" / "tries.py", tries)
        output = await run_in(workspace_root / "project", home, f"{python} tries.py; echo finished")
        for listener, address in zip(listeners, addresses, strict=True):
            listener.close()
            if address.startswith("/run"):
                Path(address).unlink()
    assert output == "finished\n"


def listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    return listener


async def test_sandbox_inherits_no_open_file_descriptor(workspace_root: Path, home: Path) -> None:
    with Path("/etc/hostname").open() as file:
        os.set_inheritable(file.fileno(), True)
        output = await run_in(
            workspace_root / "project",
            home,
            "for f in /proc/[0-9]*/fd/*; do readlink $f; done | grep -v '^/proc\\|^/dev\\|^anon_' | sort -u",
        )
    assert all(line.startswith(("pipe:", "/dev/shm/toolfold.")) for line in output.splitlines()), output


async def test_kernel_keyring_of_the_user_is_unreadable_in_the_sandbox(
    workspace_root: Path, home: Path
) -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine)
    if python is None or numbers is None:
        pytest.skip("there is no python3 of the system, or its system calls are not known here")
    add_key, keyctl = numbers
    libc = ctypes.CDLL(None)
    key = libc.syscall(add_key, b"user", b"toolfold-test", b"secret", 6, -4)  # the user's keyring
    if key < 0:
        pytest.skip("this kernel keeps no keys")
    try:
        probe = (
            f"import ctypes\nl = ctypes.CDLL(None); b = ctypes.create_string_buffer(20)\n"
            f"print(l.syscall({keyctl}, 11, {key}, b, 20), b.value)\n"
        )
        write(workspace_root / "project" / "probe.py", probe)
        output = await run_in(workspace_root / "project", home, f"{python} probe.py")
    finally:
        libc.syscall(keyctl, 9, key, -4)
    assert "secret" not in output


async def test_symlink_left_in_tmp_of_the_sandbox_is_not_followed_by_the_next_command(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as outer:
        project = Path(outer) / "project"
        target = home.parent / "target"
        target.mkdir()
        async with await open_sandbox(project, home) as environment:
            name = Path(outer).name
            await environment.run(
                f"(cd /tmp; mv -T {name} away; rm -r {name}; ln -sT /oldroot{target} {name})"
            )
            done = await environment.run("touch made; echo kept >/tmp/kept")
            assert done.exit_code == 0
            assert (await environment.run("cat /tmp/kept")).output == "kept\n"
        assert (project / "made").exists()
        assert list(target.iterdir()) == []


def test_sandbox_tests_use_at_least_90_different_credential_files() -> None:
    assert len(CREDENTIALS) == len(set(CREDENTIALS)) >= 90
