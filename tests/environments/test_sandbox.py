"""Isolation of the sandbox backend."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolfold.tools.environments import Environment
from toolfold.tools.environments.sandbox import Sandbox

EXPECTED_VARIABLES = {
    *("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "USER", "LOGNAME", "SHELL", "TZ"),
    *("PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TOOLFOLD_RUN", "GIVEN"),
}


@pytest.fixture
def workspace_root() -> Iterator[Path]:
    """Directory outside /tmp, because a sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def make_sandbox(workspace_root: Path, **options: object) -> Sandbox:
    home, project = workspace_root / "home", workspace_root / "project"
    for folder in (home / ".ssh", home / ".cache", project, workspace_root / "state"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / ".ssh" / "id_ed25519").write_text("private key")
    (home / ".netrc").write_text("password")
    (home / "notes.txt").write_text("readable")
    return Sandbox(
        home=project,
        state_dir=workspace_root / "state" / "notes",
        environment={**os.environ, "HOME": str(home)},
        hidden=[workspace_root / "state"],
        **options,  # type: ignore[arg-type]
    )


async def skip_if_unavailable(backend: Sandbox) -> None:
    readiness = await backend.check()
    if not readiness.available:
        pytest.skip(f"{readiness.reason}. {readiness.advice}")


@pytest.fixture
async def sandbox(workspace_root: Path) -> AsyncIterator[Environment]:
    backend = make_sandbox(workspace_root)
    await skip_if_unavailable(backend)
    async with Environment(backend, variables={"GIVEN": "1"}) as environment:
        yield environment


async def test_commands_in_the_sandbox_can_write_only_in_the_project(
    sandbox: Environment, workspace_root: Path
) -> None:
    done = await sandbox.run("touch mine; touch ~/other /other /etc/other /usr/other; echo over")
    assert done.output.count("Read-only file system") == 3
    assert (workspace_root / "project" / "mine").exists()
    assert not (workspace_root / "home" / "other").exists()


async def test_system_files_are_readable_in_the_sandbox_but_credentials_are_not(sandbox: Environment) -> None:
    done = await sandbox.run(
        "cat /etc/hostname >/dev/null && echo system; cat ~/notes.txt ~/.ssh/id_ed25519 ~/.netrc 2>/dev/null"
    )
    assert done.output == "system\n"


async def test_files_of_toolfold_are_hidden_in_the_sandbox(
    sandbox: Environment, workspace_root: Path
) -> None:
    (workspace_root / "state" / "audit").write_text("who did what")
    assert (await sandbox.run(f"cat {workspace_root}/state/audit")).exit_code == 1


async def test_credentials_and_toolfold_files_stay_hidden_if_the_project_contains_the_home_directory(
    workspace_root: Path,
) -> None:
    make_sandbox(workspace_root)
    (workspace_root / "state" / "audit").write_text("who did what")
    home = workspace_root / "home"
    around = Sandbox(
        home=workspace_root,
        state_dir=workspace_root / "state" / "notes",
        environment={**os.environ, "HOME": str(home)},
        hidden=[workspace_root / "state"],
    )
    await skip_if_unavailable(around)
    async with Environment(around) as environment:
        done = await environment.run(
            f"cat {home}/notes.txt; ls -A {home}/.ssh; cat {home}/.netrc {workspace_root}/state/audit;"
            f" touch made; echo mine >{workspace_root}/state/audit; echo mine >{home}/.netrc;"
            " echo cached >~/.cache/inside"
        )
        assert "readable" in done.output
        assert "id_ed25519" not in done.output
        assert "password" not in done.output
        assert "who did what" not in done.output
    assert (workspace_root / "made").exists()
    assert (workspace_root / "state" / "audit").read_text() == "who did what"
    assert (home / ".netrc").read_text() == "password"
    assert list((home / ".cache").iterdir()) == []


async def test_project_inside_a_directory_that_the_sandbox_hides_is_still_writable(
    workspace_root: Path,
) -> None:
    make_sandbox(workspace_root)
    project = workspace_root / "state" / "project"
    project.mkdir()
    inside = Sandbox(
        home=project,
        state_dir=workspace_root / "state" / "notes",
        environment=os.environ,
        hidden=[workspace_root / "state"],
    )
    await skip_if_unavailable(inside)
    async with Environment(inside) as environment:
        assert (await environment.run("touch made")).exit_code == 0
    assert (project / "made").exists()


async def test_command_in_the_sandbox_cannot_write_outside_through_links_proc_or_mounts(
    sandbox: Environment, workspace_root: Path
) -> None:
    done = await sandbox.run(
        "ln -s ~ way; echo x >way/notes.txt; ln ~/notes.txt hard; echo x >/proc/self/root/etc/hostname;"
        " echo x >/proc/1/root/etc/hostname; echo x >/proc/sys/kernel/hostname;"
        " unshare -Urm sh -c 'mount -o remount,rw /; echo x >~/notes.txt'; echo over"
    )
    assert done.output.endswith("over\n")
    assert (workspace_root / "home" / "notes.txt").read_text() == "readable"
    assert not (workspace_root / "project" / "hard").exists()


async def test_environment_variables_of_the_runtime_are_not_visible_in_the_sandbox(
    sandbox: Environment,
) -> None:
    done = await sandbox.run("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | cut -d= -f1 | sort -u")
    assert set(done.output.split()) <= EXPECTED_VARIABLES


async def test_network_is_disabled_in_the_sandbox_by_default(
    sandbox: Environment, workspace_root: Path
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'"
    assert (await sandbox.run(connect)).exit_code != 0
    async with Environment(make_sandbox(workspace_root, network=True)) as allowed:
        assert (await allowed.run(connect)).exit_code == 0
    server.close()


async def test_other_processes_are_invisible_and_unreachable_in_the_sandbox(sandbox: Environment) -> None:
    done = await sandbox.run(f"ls -d /proc/[0-9]* | wc -l; kill -0 {os.getpid()}")
    assert int(done.output.split()[0]) < 10
    assert done.exit_code == 1


async def test_temporary_and_cache_files_persist_between_sandboxed_commands_but_not_on_the_host(
    sandbox: Environment, workspace_root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    await sandbox.run("echo kept >/tmp/inside; echo cached >~/.cache/inside")
    done = await sandbox.run(f"cat /tmp/inside ~/.cache/inside; [ -e {outside} ] || echo not there")
    assert done.output == "kept\ncached\nnot there\n"
    assert list((workspace_root / "home" / ".cache").iterdir()) == []


async def test_command_in_the_sandbox_cannot_change_the_configured_variables_of_the_next_command(
    sandbox: Environment,
) -> None:
    await sandbox.run(
        "for f in /dev/shm/toolfold.*/variables; do echo 'export GIVEN=2' >$f; ln -sf /etc/passwd $f; done"
    )
    assert (await sandbox.run("echo $GIVEN", task="other")).output == "1\n"


async def test_commands_in_the_sandbox_have_no_kernel_capabilities_and_cannot_mount(
    sandbox: Environment,
) -> None:
    assert "0000000000000000" in (await sandbox.run("grep CapEff /proc/self/status")).output
    assert (await sandbox.run("mount -t tmpfs none /mnt")).exit_code != 0


def test_readiness_check_of_the_sandbox_says_how_to_install_bubblewrap_if_it_is_missing(
    workspace_root: Path,
) -> None:
    backend = Sandbox(
        home=workspace_root, state_dir=workspace_root / "notes", environment={"PATH": str(workspace_root)}
    )
    readiness = asyncio.run(backend.check())
    assert not readiness.available
    assert readiness.reason == "bubblewrap is not installed"
    assert "apt-get install bubblewrap" in readiness.advice
