"""What the wall of the sandbox keeps in and out."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolfold.environments import Environment
from toolfold.environments.sandbox import Sandbox

USUAL = {
    *("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "USER", "LOGNAME", "SHELL", "TZ"),
    *("PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TOOLFOLD_RUN", "GIVEN"),
}


@pytest.fixture
def land() -> Iterator[Path]:
    """Not in /tmp, of which a sandbox has its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def walled(land: Path, **options: object) -> Sandbox:
    home, project = land / "home", land / "project"
    for folder in (home / ".ssh", home / ".cache", project, land / "state"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / ".ssh" / "id_ed25519").write_text("private key")
    (home / ".netrc").write_text("password")
    (home / "notes.txt").write_text("readable")
    return Sandbox(
        home=project,
        notes=land / "state" / "notes",
        environment={**os.environ, "HOME": str(home)},
        hidden=[land / "state"],
        **options,  # type: ignore[arg-type]
    )


async def skip_where_it_cannot_run(backend: Sandbox) -> None:
    readiness = await backend.check()
    if not readiness.available:
        pytest.skip(f"{readiness.reason}. {readiness.advice}")


@pytest.fixture
async def sandbox(land: Path) -> AsyncIterator[Environment]:
    backend = walled(land)
    await skip_where_it_cannot_run(backend)
    async with Environment(backend, variables={"GIVEN": "1"}) as environment:
        yield environment


async def test_the_project_may_be_written_and_nothing_else(sandbox: Environment, land: Path) -> None:
    done = await sandbox.run("touch mine; touch ~/other /other /etc/other /usr/other; echo over")
    assert done.output.count("Read-only file system") == 3
    assert (land / "project" / "mine").exists()
    assert not (land / "home" / "other").exists()


async def test_the_system_can_be_read_and_credentials_cannot(sandbox: Environment) -> None:
    done = await sandbox.run(
        "cat /etc/hostname >/dev/null && echo system; cat ~/notes.txt ~/.ssh/id_ed25519 ~/.netrc 2>/dev/null"
    )
    assert done.output == "system\n"


async def test_the_runtime_s_own_files_are_not_seen(sandbox: Environment, land: Path) -> None:
    (land / "state" / "audit").write_text("who did what")
    assert (await sandbox.run(f"cat {land}/state/audit")).code == 1


async def test_a_project_around_them_shows_neither_credentials_nor_the_runtime_s_files(land: Path) -> None:
    walled(land)
    (land / "state" / "audit").write_text("who did what")
    home = land / "home"
    around = Sandbox(
        home=land,
        notes=land / "state" / "notes",
        environment={**os.environ, "HOME": str(home)},
        hidden=[land / "state"],
    )
    await skip_where_it_cannot_run(around)
    async with Environment(around) as environment:
        done = await environment.run(
            f"cat {home}/notes.txt; ls -A {home}/.ssh; cat {home}/.netrc {land}/state/audit; touch made;"
            f" echo mine >{land}/state/audit; echo mine >{home}/.netrc; echo cached >~/.cache/inside"
        )
        assert "readable" in done.output
        assert "id_ed25519" not in done.output
        assert "password" not in done.output
        assert "who did what" not in done.output
    assert (land / "made").exists()
    assert (land / "state" / "audit").read_text() == "who did what"
    assert (home / ".netrc").read_text() == "password"
    assert list((home / ".cache").iterdir()) == []


async def test_a_project_in_a_hidden_folder_is_shown(land: Path) -> None:
    walled(land)
    project = land / "state" / "project"
    project.mkdir()
    inside = Sandbox(
        home=project, notes=land / "state" / "notes", environment=os.environ, hidden=[land / "state"]
    )
    await skip_where_it_cannot_run(inside)
    async with Environment(inside) as environment:
        assert (await environment.run("touch made")).code == 0
    assert (project / "made").exists()


async def test_links_and_mounts_lead_nowhere(sandbox: Environment, land: Path) -> None:
    done = await sandbox.run(
        "ln -s ~ way; echo x >way/notes.txt; ln ~/notes.txt hard; echo x >/proc/self/root/etc/hostname;"
        " echo x >/proc/1/root/etc/hostname; echo x >/proc/sys/kernel/hostname;"
        " unshare -Urm sh -c 'mount -o remount,rw /; echo x >~/notes.txt'; echo over"
    )
    assert done.output.endswith("over\n")
    assert (land / "home" / "notes.txt").read_text() == "readable"
    assert not (land / "project" / "hard").exists()


async def test_the_runtime_s_variables_are_in_no_process_that_is_seen(
    sandbox: Environment,
) -> None:
    done = await sandbox.run("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | cut -d= -f1 | sort -u")
    assert set(done.output.split()) <= USUAL


async def test_there_is_no_network_unless_it_is_allowed(sandbox: Environment, land: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'"
    assert (await sandbox.run(connect)).code != 0
    async with Environment(walled(land, network=True)) as allowed:
        assert (await allowed.run(connect)).code == 0
    server.close()


async def test_nobody_else_s_processes_are_seen_nor_reached(sandbox: Environment) -> None:
    done = await sandbox.run(f"ls -d /proc/[0-9]* | wc -l; kill -0 {os.getpid()}")
    assert int(done.output.split()[0]) < 10
    assert done.code == 1


async def test_its_temporary_files_are_its_own_and_stay(
    sandbox: Environment, land: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    await sandbox.run("echo kept >/tmp/inside; echo cached >~/.cache/inside")
    done = await sandbox.run(f"cat /tmp/inside ~/.cache/inside; [ -e {outside} ] || echo not there")
    assert done.output == "kept\ncached\nnot there\n"
    assert list((land / "home" / ".cache").iterdir()) == []


async def test_a_command_cannot_change_what_the_next_one_is_given(sandbox: Environment) -> None:
    await sandbox.run(
        "for f in /dev/shm/toolfold.*/variables; do echo 'export GIVEN=2' >$f; ln -sf /etc/passwd $f; done"
    )
    assert (await sandbox.run("echo $GIVEN", task="other")).output == "1\n"


async def test_it_has_no_rights_of_the_superuser(sandbox: Environment) -> None:
    assert "0000000000000000" in (await sandbox.run("grep CapEff /proc/self/status")).output
    assert (await sandbox.run("mount -t tmpfs none /mnt")).code != 0


def test_it_says_why_it_cannot_be_used(land: Path) -> None:
    backend = Sandbox(home=land, notes=land / "notes", environment={"PATH": str(land)})
    readiness = asyncio.run(backend.check())
    assert not readiness.available
    assert readiness.reason == "bubblewrap is not installed"
    assert "apt-get install bubblewrap" in readiness.advice
