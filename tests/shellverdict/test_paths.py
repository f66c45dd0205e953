"""Paths are classified correctly in every spelling, through links, and before they exist."""

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
from tests.cases import check_cases

HOME, WORK = "/home/ann", "/home/ann/work/shop"
PROTECTED = ("/home/ann/.config/toolfold/config.yaml", f"{WORK}/toolfold.lock", "/home/ann/.hooks")

_SPECIAL_CHARACTERS = {"*": STAR, "?": ANY, "[": OPEN, "]": CLOSE, "…": GAP}


def word(text: str) -> Word:
    """Build a word from readable text: `…` is unknown text, `*?[]` are wildcards."""
    return Word("".join(_SPECIAL_CHARACTERS.get(c, c) for c in text))


def make_classifier() -> PathClassifier:
    return PathClassifier(
        home=HOME, cwd=WORK, users=frozenset({"ann"}), protected=PROTECTED, follow_links=False
    )


def classify_text(text: str, cwd: str = ".", **options: bool) -> PathInfo:
    return make_classifier().classify(word(text), word(cwd), **options)


@check_cases(
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
def test_root_directory_is_recognized_in_every_spelling(spelling: str) -> None:
    assert PathKind.ROOT in classify_text(spelling)


@check_cases("spelling", ["…/", "…/*", "……/", "/…", "…/.*"])
def test_path_that_is_the_root_if_its_unknown_part_is_empty_is_classified_as_possibly_root(
    spelling: str,
) -> None:
    assert PathKind.ROOT in classify_text(spelling).kinds_if_empty


@check_cases("spelling", ["…", "…/build", "build/…", "x…/"])
def test_path_with_unknown_text_and_a_known_name_is_not_classified_as_root(spelling: str) -> None:
    assert PathKind.ROOT not in classify_text(spelling).kinds_if_empty | classify_text(spelling).kinds


@check_cases(
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
def test_home_directory_is_recognized_in_every_spelling(spelling: str) -> None:
    assert PathKind.HOME in classify_text(spelling)


@check_cases("spelling", ["~/work", "~/Documents/*", "~/.cache", "/home/bob/x", "/root/x"])
def test_path_inside_a_home_directory_is_not_classified_as_the_home_directory_itself(spelling: str) -> None:
    assert PathKind.INSIDE_HOME in classify_text(spelling)
    assert PathKind.HOME not in classify_text(spelling)


@check_cases(
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
def test_top_level_system_directories_are_classified_as_system(spelling: str) -> None:
    assert {PathKind.SYSTEM, PathKind.SYSTEM_ROOT} <= classify_text(spelling).kinds


@check_cases("spelling", ["/etc/passwd", "/usr/local/bin/x", "/etc/…", "/var/log/auth.log", "/opt/a/b"])
def test_path_inside_a_system_directory_is_not_classified_as_top_level_system_directory(
    spelling: str,
) -> None:
    assert PathKind.SYSTEM in classify_text(spelling)
    assert PathKind.SYSTEM_ROOT not in classify_text(spelling)


@check_cases(
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
def test_disk_paths_are_classified_as_devices(spelling: str) -> None:
    assert PathKind.DEVICE in classify_text(spelling)


@check_cases(
    "spelling", ["/dev/null", "/dev/stdout", "/dev/tty", "/dev/fd/3", "/dev/zero", "/proc/self/fd/1"]
)
def test_dev_null_dev_tty_and_standard_streams_are_classified_as_streams_and_not_as_disks(
    spelling: str,
) -> None:
    assert classify_text(spelling).kinds == {PathKind.STREAM}


@check_cases(
    "spelling", ["/tmp/x", "/tmp", "/var/tmp/x", "/dev/shm/x", "/private/tmp/x", "/private/var/folders/x"]
)
def test_temporary_directories_are_not_classified_as_system_directories(spelling: str) -> None:
    assert classify_text(spelling).kinds == {PathKind.TEMP}


@check_cases(
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
def test_files_such_as_private_keys_are_classified_as_secrets_by_their_names(spelling: str) -> None:
    assert PathKind.SECRET in classify_text(spelling)


@check_cases(
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
def test_ordinary_files_are_not_classified_as_secrets(spelling: str) -> None:
    assert PathKind.SECRET not in classify_text(spelling)


@check_cases(
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
def test_shell_startup_files_are_recognized_by_name(spelling: str) -> None:
    assert PathKind.STARTUP in classify_text(spelling)


@check_cases(
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
def test_agent_configuration_files_are_recognized_by_name(spelling: str) -> None:
    assert PathKind.AGENT in classify_text(spelling)


@check_cases("spelling", ["src/agent.py", "docs/mcp.md", "docs/agents/index.md"])
def test_ordinary_files_about_agents_are_not_classified_as_agent_configuration(spelling: str) -> None:
    assert classify_text(spelling).kinds == {PathKind.PROJECT}


@check_cases("spelling", ["CLAUDE.md", "pkg/AGENTS.md", ".pre-commit-config.yaml", ".github/CODEOWNERS"])
def test_claude_md_and_pre_commit_config_are_classified_as_files_that_guide_or_check_agents(
    spelling: str,
) -> None:
    assert classify_text(spelling).kinds == {PathKind.PROJECT, PathKind.GUARD}


@check_cases(
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
def test_files_of_toolfold_are_recognized_in_every_spelling(spelling: str) -> None:
    assert PathKind.OWN in classify_text(spelling)


@check_cases("spelling", ["toolfold.py", "src", "*.py", "~/.config/other", "…/config.yaml", "hooks"])
def test_ordinary_files_are_not_classified_as_files_of_toolfold(spelling: str) -> None:
    assert PathKind.OWN not in classify_text(spelling)


def test_parent_of_the_toolfold_directory_is_classified_as_toolfold_files_for_recursive_operations() -> None:
    assert PathKind.OWN in classify_text("~/.config", recursive=True)
    assert PathKind.OWN not in classify_text("~/.config")


@check_cases("spelling", ["src", "./src/../x", ".", f"{WORK}/src", "src/*.py", "build/…", "~+/x"])
def test_paths_in_the_working_directory_are_classified_as_project_paths(spelling: str) -> None:
    assert classify_text(spelling).kinds == {PathKind.PROJECT}


def test_relative_path_is_classified_according_to_the_working_directory() -> None:
    assert PathKind.SYSTEM in classify_text("passwd", "/etc")
    assert PathKind.ROOT in classify_text("*", "/")
    assert PathKind.HOME in classify_text("*", "~")
    assert classify_text("x", "src").kinds == {PathKind.PROJECT}
    assert PathKind.UNKNOWN in classify_text("x", "…")
    assert PathKind.HOME in classify_text("..", "..")


@check_cases("spelling", ["*", "./*", "src/*", ".*", "?*", "[!.]*", "*.*"])
def test_glob_patterns_such_as_star_are_classified_as_all_files_of_a_directory(spelling: str) -> None:
    assert classify_text(spelling).covers_everything


@check_cases("spelling", ["*.pyc", "a*", "src", "…", "*/x", "test_*"])
def test_glob_patterns_that_match_some_files_are_not_classified_as_all_files_of_a_directory(
    spelling: str,
) -> None:
    assert not classify_text(spelling).covers_everything


def test_recursive_operation_on_the_working_directory_is_classified_as_covering_all_files() -> None:
    for spelling in (".", "./", "..", WORK, f"{WORK}/src/.."):
        assert classify_text(spelling, recursive=True).covers_everything
        assert not classify_text(spelling).covers_everything
    assert not classify_text("src", recursive=True).covers_everything
    assert PathClassifier().classify(Word("."), recursive=True).covers_everything


def test_working_directory_such_as_etc_the_home_directory_or_the_root_is_not_treated_as_a_project() -> None:
    assert PathKind.SYSTEM in PathClassifier(cwd="/etc", follow_links=False).classify(Word("passwd"))
    assert PathKind.HOME in PathClassifier(home=HOME, cwd=HOME, follow_links=False).classify(word("*"))
    assert PathKind.ROOT in PathClassifier(cwd="/", follow_links=False).classify(word("*"))


@check_cases("cwd", ["/opt/shop", "/usr/src/app", "/var/www/shop", "/srv/shop", "/tmp/shop", "/root/shop"])
def test_working_directory_below_common_project_directories_is_classified_as_a_project(cwd: str) -> None:
    assert PathClassifier(cwd=cwd, follow_links=False).classify(Word("src/a.py")).kinds == {PathKind.PROJECT}


def test_relative_paths_are_classified_as_project_paths_if_the_working_directory_is_unknown() -> None:
    classifier = PathClassifier()
    assert classifier.classify(Word("src")).kinds == {PathKind.PROJECT}
    assert classifier.classify(Word("../src")).kinds == {PathKind.OUTSIDE}
    assert classifier.classify(Word("~")).kinds == {PathKind.HOME}
    assert classifier.classify(Word("~/..")).kinds == {PathKind.HOME}


def test_toolfold_paths_on_another_machine_are_not_classified_as_protected() -> None:
    remote = make_classifier().for_other_machine()
    assert PathKind.SYSTEM in remote.classify(Word("/etc"))
    assert PathKind.OWN not in remote.classify(Word(PROTECTED[0]))


class TestLinks:
    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        (tmp_path / "work").mkdir()
        (tmp_path / "own").mkdir()
        (tmp_path / "work" / "etc").symlink_to("/etc")
        (tmp_path / "work" / "innocent").symlink_to(tmp_path / "own")
        return tmp_path

    def make_classifier(self, work: Path) -> PathClassifier:
        return PathClassifier(
            home="/home/ann", cwd=str(work / "work"), protected=(str(work / "own" / "rules.yaml"),)
        )

    def test_path_through_a_symbolic_link_into_a_system_directory_is_classified_as_system(
        self, work: Path
    ) -> None:
        assert PathKind.SYSTEM in self.make_classifier(work).classify(Word("etc/passwd"))
        assert PathKind.SYSTEM_ROOT in self.make_classifier(work).classify(word("etc/*"))

    def test_path_to_a_new_file_through_a_link_to_the_toolfold_directory_is_a_toolfold_path(
        self, work: Path
    ) -> None:
        assert PathKind.OWN in self.make_classifier(work).classify(Word("innocent/rules.yaml"))
        assert PathKind.OWN in self.make_classifier(work).classify(Word("x/../innocent/rules.yaml"))

    def test_target_of_a_symbolic_link_in_a_protected_path_is_protected_too(self, work: Path) -> None:
        classifier = PathClassifier(
            cwd=str(work / "work"), protected=(str(work / "work" / "innocent" / "new.yaml"),)
        )
        assert PathKind.OWN in classifier.classify(Word(str(work / "own" / "new.yaml")))

    def test_deleting_a_symbolic_link_is_not_classified_as_deleting_its_target(self, work: Path) -> None:
        assert PathKind.SYSTEM not in self.make_classifier(work).classify(Word("etc"), follow_link=False)

    def test_dot_dot_after_a_symbolic_link_is_resolved_to_the_parent_of_the_link_target(
        self, work: Path
    ) -> None:
        assert PathKind.SYSTEM in self.make_classifier(work).classify(Word("etc/../usr/x"))

    def test_path_through_circular_symbolic_links_is_classified_as_a_project_path(self, work: Path) -> None:
        (work / "work" / "a").symlink_to("b")
        (work / "work" / "b").symlink_to("a")
        assert PathKind.PROJECT in self.make_classifier(work).classify(Word("a/x"))

    def test_symbolic_link_is_not_followed_after_too_many_paths_in_one_command(self, work: Path) -> None:
        classifier = self.make_classifier(work)
        for n in range(400):
            classifier.classify(Word(f"f{n}"))
        assert PathKind.SYSTEM not in classifier.classify(Word("etc/passwd"))
        assert PathKind.SYSTEM in classifier.with_fresh_limits().classify(Word("etc/passwd"))

    def test_symbolic_links_of_this_machine_are_not_followed_in_paths_of_other_machines(
        self, work: Path
    ) -> None:
        assert PathKind.SYSTEM not in self.make_classifier(work).for_other_machine().classify(
            Word(str(work / "work" / "etc" / "passwd"))
        )


@check_cases("spelling", ["/dev/usb/lp0", "/dev/input/event0", "/dev/i2c-1", "/dev/kvm", "/dev/lp0"])
def test_device_files_that_are_not_disks_are_classified_as_system_files(spelling: str) -> None:
    assert classify_text(spelling).kinds == {PathKind.SYSTEM}


def test_pth_file_is_classified_as_a_startup_file_only_in_site_packages() -> None:
    assert classify_text("model.pth").kinds == {PathKind.PROJECT}
    assert PathKind.STARTUP in classify_text("/usr/lib/python3/dist-packages/x.pth")


def test_wildcard_directly_below_the_root_is_classified_as_root_unless_a_path_component_follows() -> None:
    assert PathKind.ROOT in classify_text("/s*")
    assert PathKind.ROOT not in classify_text("/s*/www/shop")


def test_path_with_a_glob_is_classified_as_unknown_after_too_many_globs_in_one_command() -> None:
    classifier = make_classifier()
    for n in range(400):
        classifier.classify(word(f".a{n}*"))
    assert PathKind.UNKNOWN in classifier.classify(word(".ss*/x"))
    assert PathKind.SECRET in classifier.with_fresh_limits().classify(word(".ss*/x"))


def test_classification_of_a_path_does_not_depend_on_the_origin_of_its_unknown_text() -> None:
    marked = Word(unknown_word(frozenset(Taint)) + "/" + STAR)
    assert make_classifier().classify(marked) == make_classifier().classify(word("…/*"))


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
def test_any_word_is_classified_as_at_least_one_kind_of_path(
    path: Word, cwd: Word, follow_link: bool, recursive: bool
) -> None:
    for classifier in (
        make_classifier(),
        PathClassifier(),
        make_classifier().for_other_machine(),
        PathClassifier(home=HOME, cwd=os.sep),
    ):
        assert classifier.classify(path, cwd, follow_link=follow_link, recursive=recursive).kinds


@given(_ANY_WORD)
def test_path_with_extra_dot_components_is_classified_like_the_path_without_them(path: Word) -> None:
    doubled = Word(path.replace("/", "/./"))
    if not path.startswith("\\") and ":" not in path and "\\" not in path:
        assert make_classifier().classify(doubled).kinds == make_classifier().classify(path).kinds


@given(st.lists(st.sampled_from(["/", "a", "etc", "..", ".", "x y"]), max_size=10).map("/".join))
def test_known_path_is_normalized_like_os_path_normpath(path: str) -> None:
    resolved = PathClassifier(follow_links=False).classify(Word(f"/{path}")).path
    assert resolved == os.path.normpath(f"/{path}").replace("//", "/")


@given(
    st.lists(
        st.sampled_from(["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[a-c]"]), min_size=1, max_size=6
    ).map("".join),
    st.text("abcd", min_size=1, max_size=7),
)
def test_glob_pattern_in_a_path_matches_the_same_names_as_pythons_fnmatch(pattern: str, name: str) -> None:
    text = Word("".join(_SPECIAL_CHARACTERS.get(c, c) for c in pattern))
    assert could_match(text, name) == fnmatchcase(name, pattern)


def test_wildcard_does_not_match_a_file_name_with_a_leading_dot() -> None:
    assert not could_match(word("*"), ".ssh")
    assert not could_match(word("?ssh"), ".ssh")
    assert could_match(word(".s*"), ".ssh")
    assert could_match(word("…ssh"), ".ssh")
