"""Where a path is, however it is spelled."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.places import Place, Places, Where
from shellverdict.places.patterns import fits
from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR, Mark, Word, gap

HOME, WORK = "/home/ann", "/home/ann/work/shop"
OWN = ("/home/ann/.config/toolfold/config.yaml", f"{WORK}/toolfold.lock", "/home/ann/.hooks")

_SHOWN = {"*": STAR, "?": ANY, "[": OPEN, "]": CLOSE, "…": GAP}


def word(shown: str) -> Word:
    """A word as people write it, `…` for what is not known."""
    return Word("".join(_SHOWN.get(c, c) for c in shown))


def places() -> Places:
    return Places(home=HOME, cwd=WORK, users=frozenset({"ann"}), protected=OWN, links=False)


def at(shown: str, cwd: str = ".", **how: bool) -> Where:
    return places().of(word(shown), word(cwd), **how)


@pytest.mark.parametrize(
    "spelling",
    [
        "/",
        "//",
        "/.",
        "/./",
        "/..",
        "/../../",
        "/tmp/..",
        "/tmp/../",
        "/*",
        "/[a-z]*",
        "/???",
        "/?*",
        "~/../../",
    ],
)
def test_the_root_is_known_in_every_spelling(spelling: str) -> None:
    assert Place.ROOT in at(spelling)


@pytest.mark.parametrize("spelling", ["…/", "…/*", "……/", "/…", "…/.*"])
def test_a_gap_that_may_be_empty_could_be_the_root(spelling: str) -> None:
    assert Place.ROOT in at(spelling).if_empty


@pytest.mark.parametrize("spelling", ["…", "…/build", "build/…", "x…/"])
def test_a_gap_with_a_name_beside_it_could_not_be_the_root(spelling: str) -> None:
    assert Place.ROOT not in at(spelling).if_empty | at(spelling).places


@pytest.mark.parametrize(
    "spelling",
    [
        "~",
        "~/",
        "~/.",
        "~/*",
        "~ann",
        "~root",
        "~bob/",
        "/home",
        "/home/",
        "/home/*",
        "/home/ann",
        "/root",
        "/Users",
        "/home/bob",
        "../..",
        "../../*",
        "~/x/..",
        "/home/../home/ann/",
        "/h*",
        "C:\\Users",
        "/home/ann/work/..",
    ],
)
def test_a_home_is_known_in_every_spelling(spelling: str) -> None:
    assert Place.HOME in at(spelling)


@pytest.mark.parametrize("spelling", ["~/work", "~/Documents/*", "~/.cache", "/home/bob/x", "/root/x"])
def test_what_is_in_a_home_is_not_the_home(spelling: str) -> None:
    assert Place.INSIDE_HOME in at(spelling)
    assert Place.HOME not in at(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "/etc",
        "/etc/",
        "/etc/.",
        "//etc",
        "/../etc",
        "//./etc",
        "/proc/self/root/etc",
        "/proc/1/root/usr/bin",
        "%SystemRoot%",
        "%windir%\\",
        "/tmp/../etc",
        "/etc/*",
        "/e?c",
        "/[e]tc",
        "/usr",
        "/bin",
        "/lib64",
        "/usr/bin",
        "/usr/lib/*",
        "/boot",
        "/var",
        "/var/lib",
        "/opt",
        "/System",
        "/Library",
        "/private/etc",
        "/sys",
        "C:\\Windows",
        "C:/Program Files",
        "/mnt/c/Windows",
        "/c/Windows",
        "../../../../etc",
    ],
)
def test_the_top_directories_of_a_system_are_known(spelling: str) -> None:
    assert {Place.SYSTEM, Place.SYSTEM_ROOT} <= at(spelling).places


@pytest.mark.parametrize(
    "spelling", ["/etc/passwd", "/usr/local/bin/x", "/etc/…", "/var/log/auth.log", "/opt/a/b"]
)
def test_what_is_in_the_system_is_not_its_top(spelling: str) -> None:
    assert Place.SYSTEM in at(spelling)
    assert Place.SYSTEM_ROOT not in at(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "/dev/sda",
        "/dev/sd*",
        "/dev/nvme0n1p2",
        "/dev/disk/by-id/x",
        "/dev/mapper/vg-root",
        "/dev/rdisk2",
        "/dev/…",
        "/dev/mem",
        "\\\\.\\PhysicalDrive0",
        "//dev/./sda",
    ],
)
def test_disks_are_devices(spelling: str) -> None:
    assert Place.DEVICE in at(spelling)


@pytest.mark.parametrize(
    "spelling", ["/dev/null", "/dev/stdout", "/dev/tty", "/dev/fd/3", "/dev/zero", "/proc/self/fd/1"]
)
def test_plain_streams_are_no_devices(spelling: str) -> None:
    assert at(spelling).places == {Place.STREAM}


@pytest.mark.parametrize(
    "spelling", ["/tmp/x", "/tmp", "/var/tmp/x", "/dev/shm/x", "/private/tmp/x", "/private/var/folders/x"]
)
def test_temporary_directories_are_not_the_system(spelling: str) -> None:
    assert at(spelling).places == {Place.TEMP}


@pytest.mark.parametrize(
    "spelling",
    [
        "~/.ssh/id_rsa",
        "~/.ssh",
        "~/.ssh/*",
        "~/.ssh/id_*",
        "~/.s?h/id_rsa",
        "../../.ssh/id_ed25519",
        "…/.ssh/id_rsa",
        "~/.aws/credentials",
        "~/.gnupg/x",
        "~/.netrc",
        ".env",
        ".env.production",
        "~/.kube/config",
        "/etc/shadow",
        "/etc/sha*",
        "/etc/*",
        "tls/server.key",
        "*.pem",
        "~/.bash_history",
        "~/.config/gcloud/x",
        "~/.npmrc",
        "~/.config/gh/hosts.yml",
        "~/Library/Keychains/login.keychain-db",
        "/proc/self/environ",
        "/proc/*/environ",
        "~/.config/google-chrome/Default/Cookies",
        "/run/secrets/db",
        "~/.docker/config.json",
        "~/.SSH/ID_RSA",
    ],
)
def test_secrets_are_known_by_name(spelling: str) -> None:
    assert Place.SECRET in at(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "~/.ssh/id_rsa.pub",
        "~/.ssh/*.pub",
        "~/.ssh/known_hosts",
        "~/.ssh/config",
        ".env.example",
        "src/keys.py",
        "/etc/hosts",
        "~/.gitconfig",
        "environment.py",
        "*",
        "src/*",
        "~/.docker/cli-plugins",
        "/etc/passwd",
        "…",
        "*.py",
        "k*",
    ],
)
def test_what_is_no_secret_is_not_called_one(spelling: str) -> None:
    assert Place.SECRET not in at(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "~/.bashrc",
        ".profile",
        "~/.zs*rc",
        "~/.ssh/authorized_keys",
        "~/.ssh/config",
        "/etc/cron.d/x",
        "/etc/crontab",
        "/etc/systemd/system/x.service",
        "~/.config/systemd/user/x",
        "~/Library/LaunchAgents/x.plist",
        ".git/hooks/x",
        ".envrc",
        ".vscode/tasks.json",
        "~/.config/autostart/x",
        "/etc/pam.d/sshd",
        "/etc/sudoers.d/x",
        "~/.gitconfig",
        "/etc/ld.so.preload",
        "/etc/profile.d/x.sh",
        "~/.config/fish/config.fish",
        "/var/spool/cron/x",
        ".git/config",
    ],
)
def test_what_something_else_runs_later_is_known_by_name(spelling: str) -> None:
    assert Place.STARTUP in at(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "~/.claude/settings.json",
        ".claude",
        "~/.codex/config.toml",
        ".cursor/mcp.json",
        ".mcp.json",
        "~/.hermes/config.yaml",
    ],
)
def test_the_configuration_of_agents_is_known_by_name(spelling: str) -> None:
    assert Place.AGENT in at(spelling)


@pytest.mark.parametrize("spelling", ["src/agent.py", "docs/mcp.md", "docs/agents/index.md"])
def test_what_is_written_about_agents_is_not_their_configuration(spelling: str) -> None:
    assert at(spelling).places == {Place.PROJECT}


@pytest.mark.parametrize(
    "spelling", ["CLAUDE.md", "pkg/AGENTS.md", ".pre-commit-config.yaml", ".github/CODEOWNERS"]
)
def test_what_checks_changes_or_instructs_agents_is_a_guard_of_the_project(spelling: str) -> None:
    assert at(spelling).places == {Place.PROJECT, Place.GUARD}


@pytest.mark.parametrize(
    "spelling",
    [
        "toolfold.lock",
        "./x/../toolfold.lock",
        "tool*.lock",
        "~/.config/toolfold/config.yaml",
        "~/.hooks/before.py",
        f"{WORK}/toolfold.lock",
        "~/.hooks",
        "~/.config/toolfold/*",
        "*",
        "…/toolfold/config.yaml",
    ],
)
def test_the_runtimes_own_files_are_known_in_every_spelling(spelling: str) -> None:
    assert Place.OWN in at(spelling)


@pytest.mark.parametrize(
    "spelling", ["toolfold.py", "src", "*.py", "~/.config/other", "…/config.yaml", "hooks"]
)
def test_other_files_are_not_the_runtimes_own(spelling: str) -> None:
    assert Place.OWN not in at(spelling)


def test_deleting_what_is_above_the_runtimes_own_files_reaches_them() -> None:
    assert Place.OWN in at("~/.config", whole=True)
    assert Place.OWN not in at("~/.config")


@pytest.mark.parametrize("spelling", ["src", "./src/../x", ".", f"{WORK}/src", "src/*.py", "build/…", "~+/x"])
def test_what_is_in_the_sessions_directory_is_the_project(spelling: str) -> None:
    assert at(spelling).places == {Place.PROJECT}


def test_a_directory_changed_into_counts() -> None:
    assert Place.SYSTEM in at("passwd", "/etc")
    assert Place.ROOT in at("*", "/")
    assert Place.HOME in at("*", "~")
    assert at("x", "src").places == {Place.PROJECT}
    assert Place.UNKNOWN in at("x", "…")
    assert Place.HOME in at("..", "..")


@pytest.mark.parametrize("spelling", ["*", "./*", "src/*", ".*", "?*", "[!.]*", "*.*"])
def test_a_pattern_for_all_there_is_means_everything(spelling: str) -> None:
    assert at(spelling).everything


@pytest.mark.parametrize("spelling", ["*.pyc", "a*", "src", "…", "*/x", "test_*"])
def test_a_pattern_for_some_does_not_mean_everything(spelling: str) -> None:
    assert not at(spelling).everything


def test_deleting_the_sessions_directory_or_one_above_it_means_everything() -> None:
    for spelling in (".", "./", "..", WORK, f"{WORK}/src/.."):
        assert at(spelling, whole=True).everything
        assert not at(spelling).everything
    assert not at("src", whole=True).everything
    assert Places().of(Word("."), whole=True).everything


def test_a_session_in_the_system_or_a_home_has_no_project() -> None:
    assert Place.SYSTEM in Places(cwd="/etc", links=False).of(Word("passwd"))
    assert Place.HOME in Places(home=HOME, cwd=HOME, links=False).of(word("*"))
    assert Place.ROOT in Places(cwd="/", links=False).of(word("*"))


@pytest.mark.parametrize(
    "cwd", ["/opt/shop", "/usr/src/app", "/var/www/shop", "/srv/shop", "/tmp/shop", "/root/shop"]
)
def test_a_session_may_work_where_people_keep_projects(cwd: str) -> None:
    assert Places(cwd=cwd, links=False).of(Word("src/a.py")).places == {Place.PROJECT}


def test_without_a_known_directory_relative_paths_are_the_project_and_what_is_above_is_outside() -> None:
    nowhere = Places()
    assert nowhere.of(Word("src")).places == {Place.PROJECT}
    assert nowhere.of(Word("../src")).places == {Place.OUTSIDE}
    assert nowhere.of(Word("~")).places == {Place.HOME}
    assert nowhere.of(Word("~/..")).places == {Place.HOME}


def test_another_machine_has_the_usual_places_and_none_of_ours() -> None:
    away = places().away()
    assert Place.SYSTEM in away.of(Word("/etc"))
    assert Place.OWN not in away.of(Word(OWN[0]))


class TestLinks:
    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        (tmp_path / "work").mkdir()
        (tmp_path / "own").mkdir()
        (tmp_path / "work" / "etc").symlink_to("/etc")
        (tmp_path / "work" / "innocent").symlink_to(tmp_path / "own")
        return tmp_path

    def seen(self, work: Path) -> Places:
        return Places(home="/home/ann", cwd=str(work / "work"), protected=(str(work / "own" / "rules.yaml"),))

    def test_a_link_is_followed_to_the_system(self, work: Path) -> None:
        assert Place.SYSTEM in self.seen(work).of(Word("etc/passwd"))
        assert Place.SYSTEM_ROOT in self.seen(work).of(word("etc/*"))

    def test_a_link_is_followed_to_own_files_that_do_not_exist_yet(self, work: Path) -> None:
        assert Place.OWN in self.seen(work).of(Word("innocent/rules.yaml"))
        assert Place.OWN in self.seen(work).of(Word("x/../innocent/rules.yaml"))

    def test_own_files_behind_a_link_are_own_by_their_real_name(self, work: Path) -> None:
        seen = Places(cwd=str(work / "work"), protected=(str(work / "work" / "innocent" / "new.yaml"),))
        assert Place.OWN in seen.of(Word(str(work / "own" / "new.yaml")))

    def test_deleting_a_link_is_not_deleting_what_it_leads_to(self, work: Path) -> None:
        assert Place.SYSTEM not in self.seen(work).of(Word("etc"), follow=False)

    def test_two_dots_behind_a_link_lead_where_the_file_system_says(self, work: Path) -> None:
        assert Place.SYSTEM in self.seen(work).of(Word("etc/../usr/x"))

    def test_links_in_a_circle_are_no_trouble(self, work: Path) -> None:
        (work / "work" / "a").symlink_to("b")
        (work / "work" / "b").symlink_to("a")
        assert Place.PROJECT in self.seen(work).of(Word("a/x"))

    def test_look_ups_are_bounded_and_renewed_for_the_next_command(self, work: Path) -> None:
        seen = self.seen(work)
        for n in range(400):
            seen.of(Word(f"f{n}"))
        assert Place.SYSTEM not in seen.of(Word("etc/passwd"))
        assert Place.SYSTEM in seen.again().of(Word("etc/passwd"))

    def test_nothing_is_looked_up_where_links_are_not_ours(self, work: Path) -> None:
        assert Place.SYSTEM not in self.seen(work).away().of(Word(str(work / "work" / "etc" / "passwd")))


@pytest.mark.parametrize(
    "spelling", ["/dev/usb/lp0", "/dev/input/event0", "/dev/i2c-1", "/dev/kvm", "/dev/lp0"]
)
def test_what_is_in_dev_and_no_disk_is_the_systems(spelling: str) -> None:
    assert at(spelling).places == {Place.SYSTEM}


def test_a_model_is_no_start_up_file_and_a_path_file_of_python_is() -> None:
    assert at("model.pth").places == {Place.PROJECT}
    assert Place.STARTUP in at("/usr/lib/python3/dist-packages/x.pth")


def test_a_pattern_for_a_top_directory_says_nothing_about_what_is_deep_in_it() -> None:
    assert Place.ROOT in at("/s*")
    assert Place.ROOT not in at("/s*/www/shop")


def test_too_many_patterns_could_be_anywhere() -> None:
    seen = places()
    for n in range(400):
        seen.of(word(f".a{n}*"))
    assert Place.UNKNOWN in seen.of(word(".ss*/x"))
    assert Place.SECRET in seen.again().of(word(".ss*/x"))


def test_where_unknown_text_comes_from_changes_nothing() -> None:
    marked = Word(gap(frozenset(Mark)) + "/" + STAR)
    assert places().of(marked) == places().of(word("…/*"))


_PARTS = st.sampled_from(
    [
        "/",
        "//",
        "..",
        ".",
        "~",
        "etc",
        "home",
        "dev",
        ".ssh",
        "id_rsa",
        "*",
        "?",
        "[",
        "]",
        "…",
        "\0",
        "\\",
        "C:",
        "é",
        "",
    ]
)
_ANY_WORD = st.lists(_PARTS, max_size=12).map("".join).map(word)


@given(_ANY_WORD, _ANY_WORD, st.booleans(), st.booleans())
def test_every_word_is_somewhere(path: Word, cwd: Word, follow: bool, whole: bool) -> None:
    for seen in (places(), Places(), places().away(), Places(home=HOME, cwd=os.sep)):
        assert seen.of(path, cwd, follow=follow, whole=whole).places


@given(_ANY_WORD)
def test_dots_and_doubled_slashes_change_nothing(path: Word) -> None:
    doubled = Word(path.replace("/", "/./"))
    if not path.startswith("\\") and ":" not in path and "\\" not in path:
        assert places().of(doubled).places == places().of(path).places


@given(st.lists(st.sampled_from(["/", "a", "etc", "..", ".", "x y"]), max_size=10).map("/".join))
def test_a_known_path_is_resolved_as_the_library_would(path: str) -> None:
    resolved = Places(links=False).of(Word(f"/{path}")).path
    assert resolved == os.path.normpath(f"/{path}").replace("//", "/")


@given(
    st.lists(
        st.sampled_from(["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[a-c]"]), min_size=1, max_size=6
    ).map("".join),
    st.text("abcd", min_size=1, max_size=7),
)
def test_a_pattern_fits_the_names_that_a_shell_would_match(pattern: str, name: str) -> None:
    shown = Word("".join(_SHOWN.get(c, c) for c in pattern))
    assert fits(shown, name) == fnmatchcase(name, pattern)


def test_a_pattern_matches_no_leading_dot_that_is_not_written() -> None:
    assert not fits(word("*"), ".ssh")
    assert not fits(word("?ssh"), ".ssh")
    assert fits(word(".s*"), ".ssh")
    assert fits(word("…ssh"), ".ssh")
