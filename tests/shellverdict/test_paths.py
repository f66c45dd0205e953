"""Where a path is, however it is spelled."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellverdict.paths import PathClassifier, PathInfo, PathKind
from shellverdict.paths.patterns import could_match
from shellverdict.shell.words import ANY, CLOSE, GAP, OPEN, STAR, Taint, Word, unknown_word

HOME, WORK = "/home/ann", "/home/ann/work/shop"
OWN = ("/home/ann/.config/toolfold/config.yaml", f"{WORK}/toolfold.lock", "/home/ann/.hooks")

_SHOWN = {"*": STAR, "?": ANY, "[": OPEN, "]": CLOSE, "…": GAP}


def word(shown: str) -> Word:
    """A word as people write it, `…` for what is not known."""
    return Word("".join(_SHOWN.get(c, c) for c in shown))


def places() -> PathClassifier:
    return PathClassifier(home=HOME, cwd=WORK, users=frozenset({"ann"}), protected=OWN, follow_links=False)


def at(shown: str, cwd: str = ".", **how: bool) -> PathInfo:
    return places().classify(word(shown), word(cwd), **how)


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
    assert PathKind.ROOT in at(spelling)


@pytest.mark.parametrize("spelling", ["…/", "…/*", "……/", "/…", "…/.*"])
def test_a_gap_that_may_be_empty_could_be_the_root(spelling: str) -> None:
    assert PathKind.ROOT in at(spelling).kinds_if_empty


@pytest.mark.parametrize("spelling", ["…", "…/build", "build/…", "x…/"])
def test_a_gap_with_a_name_beside_it_could_not_be_the_root(spelling: str) -> None:
    assert PathKind.ROOT not in at(spelling).kinds_if_empty | at(spelling).kinds


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
    assert PathKind.HOME in at(spelling)


@pytest.mark.parametrize("spelling", ["~/work", "~/Documents/*", "~/.cache", "/home/bob/x", "/root/x"])
def test_what_is_in_a_home_is_not_the_home(spelling: str) -> None:
    assert PathKind.INSIDE_HOME in at(spelling)
    assert PathKind.HOME not in at(spelling)


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
    assert {PathKind.SYSTEM, PathKind.SYSTEM_ROOT} <= at(spelling).kinds


@pytest.mark.parametrize(
    "spelling", ["/etc/passwd", "/usr/local/bin/x", "/etc/…", "/var/log/auth.log", "/opt/a/b"]
)
def test_what_is_in_the_system_is_not_its_top(spelling: str) -> None:
    assert PathKind.SYSTEM in at(spelling)
    assert PathKind.SYSTEM_ROOT not in at(spelling)


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
    assert PathKind.DEVICE in at(spelling)


@pytest.mark.parametrize(
    "spelling", ["/dev/null", "/dev/stdout", "/dev/tty", "/dev/fd/3", "/dev/zero", "/proc/self/fd/1"]
)
def test_plain_streams_are_no_devices(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.STREAM}


@pytest.mark.parametrize(
    "spelling", ["/tmp/x", "/tmp", "/var/tmp/x", "/dev/shm/x", "/private/tmp/x", "/private/var/folders/x"]
)
def test_temporary_directories_are_not_the_system(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.TEMP}


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
    assert PathKind.SECRET in at(spelling)


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
    assert PathKind.SECRET not in at(spelling)


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
    assert PathKind.STARTUP in at(spelling)


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
    assert PathKind.AGENT in at(spelling)


@pytest.mark.parametrize("spelling", ["src/agent.py", "docs/mcp.md", "docs/agents/index.md"])
def test_what_is_written_about_agents_is_not_their_configuration(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.PROJECT}


@pytest.mark.parametrize(
    "spelling", ["CLAUDE.md", "pkg/AGENTS.md", ".pre-commit-config.yaml", ".github/CODEOWNERS"]
)
def test_what_checks_changes_or_instructs_agents_is_a_guard_of_the_project(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.PROJECT, PathKind.GUARD}


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
    assert PathKind.OWN in at(spelling)


@pytest.mark.parametrize(
    "spelling", ["toolfold.py", "src", "*.py", "~/.config/other", "…/config.yaml", "hooks"]
)
def test_other_files_are_not_the_runtimes_own(spelling: str) -> None:
    assert PathKind.OWN not in at(spelling)


def test_deleting_what_is_above_the_runtimes_own_files_reaches_them() -> None:
    assert PathKind.OWN in at("~/.config", recursive=True)
    assert PathKind.OWN not in at("~/.config")


@pytest.mark.parametrize("spelling", ["src", "./src/../x", ".", f"{WORK}/src", "src/*.py", "build/…", "~+/x"])
def test_what_is_in_the_sessions_directory_is_the_project(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.PROJECT}


def test_a_directory_changed_into_counts() -> None:
    assert PathKind.SYSTEM in at("passwd", "/etc")
    assert PathKind.ROOT in at("*", "/")
    assert PathKind.HOME in at("*", "~")
    assert at("x", "src").kinds == {PathKind.PROJECT}
    assert PathKind.UNKNOWN in at("x", "…")
    assert PathKind.HOME in at("..", "..")


@pytest.mark.parametrize("spelling", ["*", "./*", "src/*", ".*", "?*", "[!.]*", "*.*"])
def test_a_pattern_for_all_there_is_means_everything(spelling: str) -> None:
    assert at(spelling).covers_everything


@pytest.mark.parametrize("spelling", ["*.pyc", "a*", "src", "…", "*/x", "test_*"])
def test_a_pattern_for_some_does_not_mean_everything(spelling: str) -> None:
    assert not at(spelling).covers_everything


def test_deleting_the_sessions_directory_or_one_above_it_means_everything() -> None:
    for spelling in (".", "./", "..", WORK, f"{WORK}/src/.."):
        assert at(spelling, recursive=True).covers_everything
        assert not at(spelling).covers_everything
    assert not at("src", recursive=True).covers_everything
    assert PathClassifier().classify(Word("."), recursive=True).covers_everything


def test_a_session_in_the_system_or_a_home_has_no_project() -> None:
    assert PathKind.SYSTEM in PathClassifier(cwd="/etc", follow_links=False).classify(Word("passwd"))
    assert PathKind.HOME in PathClassifier(home=HOME, cwd=HOME, follow_links=False).classify(word("*"))
    assert PathKind.ROOT in PathClassifier(cwd="/", follow_links=False).classify(word("*"))


@pytest.mark.parametrize(
    "cwd", ["/opt/shop", "/usr/src/app", "/var/www/shop", "/srv/shop", "/tmp/shop", "/root/shop"]
)
def test_a_session_may_work_where_people_keep_projects(cwd: str) -> None:
    assert PathClassifier(cwd=cwd, follow_links=False).classify(Word("src/a.py")).kinds == {PathKind.PROJECT}


def test_without_a_known_directory_relative_paths_are_the_project_and_what_is_above_is_outside() -> None:
    nowhere = PathClassifier()
    assert nowhere.classify(Word("src")).kinds == {PathKind.PROJECT}
    assert nowhere.classify(Word("../src")).kinds == {PathKind.OUTSIDE}
    assert nowhere.classify(Word("~")).kinds == {PathKind.HOME}
    assert nowhere.classify(Word("~/..")).kinds == {PathKind.HOME}


def test_another_machine_has_the_usual_places_and_none_of_ours() -> None:
    away = places().for_other_machine()
    assert PathKind.SYSTEM in away.classify(Word("/etc"))
    assert PathKind.OWN not in away.classify(Word(OWN[0]))


class TestLinks:
    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        (tmp_path / "work").mkdir()
        (tmp_path / "own").mkdir()
        (tmp_path / "work" / "etc").symlink_to("/etc")
        (tmp_path / "work" / "innocent").symlink_to(tmp_path / "own")
        return tmp_path

    def seen(self, work: Path) -> PathClassifier:
        return PathClassifier(
            home="/home/ann", cwd=str(work / "work"), protected=(str(work / "own" / "rules.yaml"),)
        )

    def test_a_link_is_followed_to_the_system(self, work: Path) -> None:
        assert PathKind.SYSTEM in self.seen(work).classify(Word("etc/passwd"))
        assert PathKind.SYSTEM_ROOT in self.seen(work).classify(word("etc/*"))

    def test_a_link_is_followed_to_own_files_that_do_not_exist_yet(self, work: Path) -> None:
        assert PathKind.OWN in self.seen(work).classify(Word("innocent/rules.yaml"))
        assert PathKind.OWN in self.seen(work).classify(Word("x/../innocent/rules.yaml"))

    def test_own_files_behind_a_link_are_own_by_their_real_name(self, work: Path) -> None:
        seen = PathClassifier(
            cwd=str(work / "work"), protected=(str(work / "work" / "innocent" / "new.yaml"),)
        )
        assert PathKind.OWN in seen.classify(Word(str(work / "own" / "new.yaml")))

    def test_deleting_a_link_is_not_deleting_what_it_leads_to(self, work: Path) -> None:
        assert PathKind.SYSTEM not in self.seen(work).classify(Word("etc"), follow_link=False)

    def test_two_dots_behind_a_link_lead_where_the_file_system_says(self, work: Path) -> None:
        assert PathKind.SYSTEM in self.seen(work).classify(Word("etc/../usr/x"))

    def test_links_in_a_circle_are_no_trouble(self, work: Path) -> None:
        (work / "work" / "a").symlink_to("b")
        (work / "work" / "b").symlink_to("a")
        assert PathKind.PROJECT in self.seen(work).classify(Word("a/x"))

    def test_look_ups_are_bounded_and_renewed_for_the_next_command(self, work: Path) -> None:
        seen = self.seen(work)
        for n in range(400):
            seen.classify(Word(f"f{n}"))
        assert PathKind.SYSTEM not in seen.classify(Word("etc/passwd"))
        assert PathKind.SYSTEM in seen.with_fresh_limits().classify(Word("etc/passwd"))

    def test_nothing_is_looked_up_where_links_are_not_ours(self, work: Path) -> None:
        assert PathKind.SYSTEM not in self.seen(work).for_other_machine().classify(
            Word(str(work / "work" / "etc" / "passwd"))
        )


@pytest.mark.parametrize(
    "spelling", ["/dev/usb/lp0", "/dev/input/event0", "/dev/i2c-1", "/dev/kvm", "/dev/lp0"]
)
def test_what_is_in_dev_and_no_disk_is_the_systems(spelling: str) -> None:
    assert at(spelling).kinds == {PathKind.SYSTEM}


def test_a_model_is_no_start_up_file_and_a_path_file_of_python_is() -> None:
    assert at("model.pth").kinds == {PathKind.PROJECT}
    assert PathKind.STARTUP in at("/usr/lib/python3/dist-packages/x.pth")


def test_a_pattern_for_a_top_directory_says_nothing_about_what_is_deep_in_it() -> None:
    assert PathKind.ROOT in at("/s*")
    assert PathKind.ROOT not in at("/s*/www/shop")


def test_too_many_patterns_could_be_anywhere() -> None:
    seen = places()
    for n in range(400):
        seen.classify(word(f".a{n}*"))
    assert PathKind.UNKNOWN in seen.classify(word(".ss*/x"))
    assert PathKind.SECRET in seen.with_fresh_limits().classify(word(".ss*/x"))


def test_where_unknown_text_comes_from_changes_nothing() -> None:
    marked = Word(unknown_word(frozenset(Taint)) + "/" + STAR)
    assert places().classify(marked) == places().classify(word("…/*"))


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
def test_every_word_is_somewhere(path: Word, cwd: Word, follow_link: bool, recursive: bool) -> None:
    for seen in (
        places(),
        PathClassifier(),
        places().for_other_machine(),
        PathClassifier(home=HOME, cwd=os.sep),
    ):
        assert seen.classify(path, cwd, follow_link=follow_link, recursive=recursive).kinds


@given(_ANY_WORD)
def test_dots_and_doubled_slashes_change_nothing(path: Word) -> None:
    doubled = Word(path.replace("/", "/./"))
    if not path.startswith("\\") and ":" not in path and "\\" not in path:
        assert places().classify(doubled).kinds == places().classify(path).kinds


@given(st.lists(st.sampled_from(["/", "a", "etc", "..", ".", "x y"]), max_size=10).map("/".join))
def test_a_known_path_is_resolved_as_the_library_would(path: str) -> None:
    resolved = PathClassifier(follow_links=False).classify(Word(f"/{path}")).path
    assert resolved == os.path.normpath(f"/{path}").replace("//", "/")


@given(
    st.lists(
        st.sampled_from(["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[a-c]"]), min_size=1, max_size=6
    ).map("".join),
    st.text("abcd", min_size=1, max_size=7),
)
def test_a_pattern_fits_the_names_that_a_shell_would_match(pattern: str, name: str) -> None:
    shown = Word("".join(_SHOWN.get(c, c) for c in pattern))
    assert could_match(shown, name) == fnmatchcase(name, pattern)


def test_a_pattern_matches_no_leading_dot_that_is_not_written() -> None:
    assert not could_match(word("*"), ".ssh")
    assert not could_match(word("?ssh"), ".ssh")
    assert could_match(word(".s*"), ".ssh")
    assert could_match(word("…ssh"), ".ssh")
