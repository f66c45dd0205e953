"""Commands and code that programs such as sudo, find or sh run in turn."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from shellverdict.shell.inner import InnerCommand, find_inner_commands
from shellverdict.shell.inner.program_tables import load_programs
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.words import GAP, Word
from tests.cases import check_cases
from tests.thorough import try_examples


def find_inner(line: str, stdin: str | None = None) -> tuple[InnerCommand, ...]:
    words = [Word(word) for word in shlex.split(line)]
    name = Word(words[0].rpartition("/")[2])
    given_in = None if stdin is None else TextStream(Word(stdin))
    return find_inner_commands(ProgramRun(argv=(name, *words[1:]), path=words[0], stdin=given_in))


def find_commands(line: str, stdin: str | None = None) -> list[str]:
    return [" ".join(each.argv) for each in find_inner(line, stdin) if each.argv is not None]


def find_code(line: str) -> list[tuple[str, str]]:
    return [(each.language, each.code) for each in find_inner(line) if each.code is not None]


@check_cases(
    "wrapper",
    [
        "sudo",
        "sudo -u root",
        "sudo -EHn --user=root --",
        "sudo --us root",
        "sudo A=1 B=2",
        "doas -u root",
        "env",
        "env -i A=1",
        "env -u B -C /tmp A=1",
        "nice -n 19",
        "nice -19",
        "ionice -c3",
        "ionice -c 2 -n 7",
        "chrt -f 10",
        "taskset -c 0",
        "nohup",
        "setsid -w",
        "timeout 10",
        "timeout -s KILL -k 5 5s",
        "timeout --signal=KILL 5s",
        "stdbuf -oL",
        "stdbuf -o L -e 0",
        "time -p",
        "command",
        "command -p",
        "builtin",
        "exec -a name",
        "busybox",
        "strace -f -o log",
        "ltrace -S",
        "valgrind --leak-check=full",
        "perf stat -e cycles",
        "perf record -g --",
        "unshare -m",
        "unshare --map-root-user -f",
        "nsenter -t 1 -m",
        "nsenter --target 1 --mount",
        "chroot /mnt",
        "setpriv --reuid=0",
        "setpriv --reuid 0",
        "pkexec --user root",
        "systemd-run --wait -p A=1",
        "systemd-inhibit --what=sleep",
        "chpst -u root",
        "s6-setuidgid nobody",
        "dbus-run-session --",
        "xvfb-run -a -s '-screen 0'",
        "firejail --net=none",
        "bwrap --ro-bind / / --dev /dev --",
        "proot -r root",
        "fakeroot",
        "caffeinate -i",
        "arch -x86_64",
        "flock /tmp/lock",
        "flock -n /tmp/lock",
        "sshpass -p secret",
        "docker exec -it -u 0 web",
        "docker -H tcp://h exec web",
        "docker run --rm -v /:/host --privileged debian",
        "docker container run -it debian",
        "podman run -e A=1 --name x debian",
        "docker compose -f a.yml exec web",
        "docker-compose run --rm web",
        "kubectl exec pod --",
        "kubectl -n prod exec pod -c app --",
        "kubectl exec -it -n prod pod --",
        "oc exec pod --",
        "lxc exec box --",
        "machinectl shell box",
        "npx -y",
        "npm exec --",
        "pnpm exec",
        "yarn exec",
        "poetry run",
        "pipenv run",
        "uv run --with x",
        "hatch run",
        "conda run -n base",
        "bundle exec",
        "direnv exec .",
        "dotenv run --",
        "op run --env-file=.env --",
        "aws-vault exec prod --",
        "chamber exec a b --",
        "doppler run --",
        "infisical run --",
        "runuser -u root --",
        "gdb --args",
        "git bisect run",
        "/lib64/ld-linux-x86-64.so.2",
        "screen -dm",
        "screen -S name -d -m",
    ],
)
def test_command_run_by_a_wrapper_such_as_sudo_env_or_nice_is_found_after_the_wrapper_options(
    wrapper: str,
) -> None:
    assert "rm -rf /x" in find_commands(f"{wrapper} rm -rf /x")


@check_cases(
    ("line", "code"),
    [
        ("env -S 'rm -rf /'", "rm -rf /"),
        ("env --split-string='rm -rf /'", "rm -rf /"),
        ("su -c 'rm -rf /'", "rm -rf /"),
        ("su - root -c 'rm -rf /'", "rm -rf /"),
        ("script -qc 'rm -rf /' /dev/null", "rm -rf /"),
        ("watch -n1 rm -rf /", "rm -rf /"),
        ("flock /tmp/l -c 'rm -rf /'", "rm -rf /"),
        ("ssh host rm -rf /", "rm -rf /"),
        ("ssh -p 22 -i key root@h 'rm -rf /'", "rm -rf /"),
        ("ssh host -p 22 rm -rf /", "rm -rf /"),
        ("ssh -o ProxyCommand='rm -rf /' h", "rm -rf /"),
        ("ssh -oProxyCommand='rm -rf /' h", "rm -rf /"),
        ("vagrant ssh -c 'rm -rf /'", "rm -rf /"),
        ("gcloud compute ssh vm --command 'rm -rf /'", "rm -rf /"),
        ("fly ssh console -C 'rm -rf /'", "rm -rf /"),
        ("tmux new-session -d 'rm -rf /'", "rm -rf /"),
        ("tmux send-keys -t a 'rm -rf /' Enter", "rm -rf /\n"),
        ("npx -c 'rm -rf /'", "rm -rf /"),
        ("nix-shell -p hello --run 'rm -rf /'", "rm -rf /"),
        ("hyperfine 'rm -rf /'", "rm -rf /"),
        ("ansible all -m shell -a 'rm -rf /'", "rm -rf /"),
        ("parallel rm -rf ::: /", "rm -rf /"),
        ("parallel ::: 'rm -rf /'", "rm -rf /"),
        ("rsync -e 'rm -rf /' a b:", "rm -rf /"),
        ("rsync --rsync-path='rm -rf /' a b:", "rm -rf /"),
        ("tar xf a --to-command='rm -rf /'", "rm -rf /"),
        ("tar cf a b --checkpoint=1 --checkpoint-action=exec='rm -rf /'", "rm -rf /"),
        ("tar cf a -I 'rm -rf /' b", "rm -rf /"),
        ("tar cIf 'rm -rf /' a b", "rm -rf /"),
        ("zip x.zip f -T -TT 'rm -rf /'", "rm -rf /"),
        ("sort --compress-program='rm -rf /' f", "rm -rf /"),
        ("split --filter 'rm -rf /' f", "rm -rf /"),
        ("rg --pre 'rm -rf /' x", "rm -rf /"),
        ("less '+!rm -rf /' f", "rm -rf /"),
        ("man -P 'rm -rf /' ls", "rm -rf /"),
        ("git -c core.pager='rm -rf /' log", "rm -rf /"),
        ("git -c core.sshCommand='rm -rf /' fetch", "rm -rf /"),
        ("git -c alias.x='!rm -rf /' x", "rm -rf /"),
        ("git config --global alias.x '!rm -rf /'", "rm -rf /"),
        ("git rebase -i --exec 'rm -rf /' HEAD~2", "rm -rf /"),
        ("git submodule foreach --recursive 'rm -rf /'", "rm -rf /"),
        ("git filter-branch --tree-filter 'rm -rf /' HEAD", "rm -rf /"),
        ("git difftool -x 'rm -rf /'", "rm -rf /"),
        ("trap 'rm -rf /' EXIT", "rm -rf /"),
        ("eval rm '-rf /'", "rm -rf /"),
        ("export PAGER='rm -rf /'", "rm -rf /"),
        ("env PAGER='rm -rf /' git log", "rm -rf /"),
        ("socat TCP:h:1 EXEC:'rm -rf /',pty", "rm -rf /"),
        ("nc h 1 -e 'rm -rf /'", "rm -rf /"),
    ],
)
def test_shell_code_passed_as_an_argument_to_a_program_is_found(line: str, code: str) -> None:
    assert ("sh", code) in find_code(line)


@check_cases(
    "line",
    [
        "sh -c X",
        "bash -ec X",
        "bash -c -e X",
        "bash --norc -c X",
        "bash -euo pipefail -c X",
        "bash -O extglob -c X",
        "bash +x -c X",
        "bash -c -- X",
        "zsh -ic X",
        "dash -c X a b",
        "ksh -c X",
        "/bin/ash -c X",
    ],
)
def test_code_passed_to_a_shell_with_option_c_is_found_among_other_options(line: str) -> None:
    assert find_code(line) == [("sh", "X")]


@check_cases(
    ("line", "language"),
    [
        ("python3 -c X", "python"),
        ("python3.12 -Bc X", "python"),
        ("python -W ignore -X dev -c X", "python"),
        ("perl -e X", "perl"),
        ("perl -pi -e X f", "perl"),
        ("perl -lne X f", "perl"),
        ("perl -l012ne X f", "perl"),
        ("perl -MFile::Path -E X", "perl"),
        ("ruby -ne X", "ruby"),
        ("node -e X", "node"),
        ("node -pe X", "node"),
        ("node --eval=X", "node"),
        ("deno eval X", "node"),
        ("bun -e X", "node"),
        ("php -r X", "php"),
        ("lua5.4 -e X", "lua"),
        ("Rscript -e X", "r"),
        ("julia -e X", "julia"),
        ("osascript -e X", "osascript"),
        ("pwsh -NoProfile -Command X", "powershell"),
        ("powershell -ep bypass -c X", "powershell"),
        ("fish -c X", "fish"),
        ("gawk -F, X f", "awk"),
        ("sed -n X f", "sed"),
        ("sed -i.bak -e X f", "sed"),
        ("vim -es -c X", "vim"),
        ("ex -sc X", "vim"),
        ("vim +X", "vim"),
        ("emacs --batch --eval X", "elisp"),
        ("psql prod -c X", "sql:postgres"),
        ("psql -cX", "sql:postgres"),
        ("mysql -uroot -psecret -e X db", "sql:mysql"),
        ("mariadb --execute=X", "sql:mysql"),
        ("sqlite3 -header a.db X", "sql:sqlite"),
        ("mongosh --eval X", "mongo"),
        ("gdb -batch -ex X", "gdb"),
        ("expect -c X", "expect"),
        ("make --eval=X", "make"),
    ],
)
def test_language_of_code_passed_as_an_argument_is_determined_by_the_program_and_the_option(
    line: str, language: str
) -> None:
    assert (language, "X") in find_code(line)


@check_cases(
    "line",
    [
        "sudo -l",
        "sudo --version",
        "sudo -V",
        "bash --version",
        "bash -n script.sh",
        "xargs --help",
        "command -v shutdown",
        "docker ps",
        "docker run hello-world",
        "docker compose logs -f web",
        "kubectl get deploy",
        "git status",
        "git log --grep='reset --hard'",
        "git commit -m 'rm -rf /'",
        "git config user.name Dev",
        "git config --get alias.x",
        "tmux ls",
        "tar czf a.tgz b",
        "find . -name rm",
        "find . -name '*-exec*'",
        "fd -e py",
        "rg 'rm -rf' .",
        "psql -l",
        "ssh host",
        "python3 -m pytest",
        "crontab -l",
        "npm run lint",
        "make -n all",
        "make test",
        "bash",
        "python3",
        "sh -s",
    ],
)
def test_commands_that_start_no_other_program_have_no_inner_commands(line: str) -> None:
    assert find_inner(line) == ()


def test_script_that_an_interpreter_runs_is_found_in_a_file_argument_or_on_standard_input() -> None:
    assert find_inner("bash x.sh a") == (
        InnerCommand(source="file", file=Word("x.sh"), arguments=(Word("a"),)),
    )
    assert find_inner("bash -s -- a", "code") == (InnerCommand(source="stdin", arguments=(Word("a"),)),)
    assert find_inner("python3 -", "code") == (InnerCommand(source="stdin", language="python"),)
    assert find_inner("sh", "code") == (InnerCommand(source="stdin"),)
    assert find_inner("source /dev/stdin", "code") == (InnerCommand(source="stdin"),)
    assert find_inner("crontab -", "x") == (
        InnerCommand(source="stdin", language="crontab", wrapper="crontab"),
    )
    assert find_inner("bash --rcfile evil.rc -i") == (InnerCommand(source="file", file=Word("evil.rc")),)
    assert find_inner("source .venv/bin/activate") == (
        InnerCommand(source="file", file=Word(".venv/bin/activate")),
    )


def test_find_exec_placeholder_is_replaced_by_the_paths_that_find_can_match() -> None:
    assert find_commands(r"find /var -name x -exec rm {} \;") == [f"rm /var/x /var/{GAP}"]
    assert find_commands(r"find /var -name 'x*' -exec rm {} \;") == [f"rm /var/{GAP}"]
    assert find_commands("find /a /b -exec rm {} + -execdir wc {} +") == [
        f"rm /a/{GAP} /b/{GAP}",
        f"wc /a/{GAP} /b/{GAP}",
    ]
    assert find_commands(r"find . -exec sh -c 'rm {}' \;") == [f"sh -c rm ./{GAP}"]
    assert all(each.has_unknown_operands for each in find_inner(r"find . -exec rm {} \;"))


def test_xargs_command_receives_known_standard_input_as_arguments() -> None:
    assert find_commands("xargs rm -rf", "/ '/a b'\n") == ["rm -rf / /a b"]
    assert find_commands("xargs -0 -I{} rm {}", "/etc\0/usr\0") == ["rm /etc", "rm /usr"]
    assert find_commands("xargs rm -rf", GAP) == ["rm -rf"]
    assert find_inner("xargs rm")[0].has_unknown_operands
    assert not find_inner("xargs rm", "x")[0].has_unknown_operands


def test_shell_with_unknown_operands_is_treated_as_reading_code_from_standard_input() -> None:
    waiting = ProgramRun(argv=(Word("sh"), Word("-c")), has_unknown_operands=True)
    assert find_inner_commands(waiting) == (InnerCommand(source="stdin"),)


def test_programs_in_pager_variables_and_libraries_in_ld_preload_are_found_as_inner_commands() -> None:
    run = ProgramRun(
        argv=(Word("git"), Word("log")),
        env_assignments={"PAGER": Word("less -R"), "LD_PRELOAD": Word("./evil.so")},
    )
    assert [each.code or each.file for each in find_inner_commands(run)] == ["less -R", "./evil.so"]


def test_base64_encoded_powershell_command_is_decoded() -> None:
    assert find_code("powershell -enc SQBFAFgA") == [("powershell", "IEX")]
    assert find_code("powershell -enc !") == [("powershell", GAP)]


def test_search_for_inner_commands_raises_no_exception_for_any_known_program() -> None:
    for name in load_programs():
        find_inner_commands(ProgramRun(argv=(Word(name), Word("--help"))))
        find_inner_commands(ProgramRun(argv=(Word(name), Word("a"), Word("b"), Word("c"))))


_PROGRAM_NAMES = sorted(
    {
        *load_programs(),
        "sh",
        "bash",
        "ssh",
        "git",
        "find",
        "xargs",
        "parallel",
        "python3",
        "vim",
        "tar",
        "make",
        "tmux",
    }
)
_WORDS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=6),
    st.text(alphabet="-+=ceEsxonf/;{}:!" + GAP, max_size=6),
    st.sampled_from(
        ["--", "-c", "-e", "-exec", "run", "exec", "config", ":::", "-I", "{}", "-o", "--eval", "foreach"]
    ),
)


@try_examples(300)
@given(
    st.sampled_from(_PROGRAM_NAMES),
    st.lists(_WORDS, max_size=6),
    st.one_of(st.none(), st.text(max_size=20)),
    st.booleans(),
)
def test_search_for_inner_commands_in_arbitrary_arguments_raises_no_exception(
    name: str, words: list[str], text: str | None, more: bool
) -> None:
    stdin = None if text is None else TextStream(Word(text))
    run = ProgramRun(argv=(Word(name), *map(Word, words)), stdin=stdin, has_unknown_operands=more)
    assert isinstance(find_inner_commands(run), tuple)


def test_awk_variable_set_with_option_v_is_assigned_in_the_analyzed_awk_code() -> None:
    assert find_code("""awk -v c='rm "x"' 'BEGIN { system(c) }'""") == [
        ("awk", 'BEGIN { c = "rm \\"x\\"" }\nBEGIN { system(c) }'),
    ]


def test_shell_command_in_an_ext_transport_url_passed_to_git_clone_is_found() -> None:
    assert find_inner("git clone 'ext::sh -c rm% -rf% /' x")[0].argv == ("sh", "-c", "rm -rf /")


def test_unknown_option_of_a_wrapper_command_does_not_hide_the_wrapped_command() -> None:
    assert "rm -rf /" in find_commands("strace --no-such-option value rm -rf /")
    assert "rm -rf /" in find_commands("kubectl --no-such-option value exec pod -- rm -rf /")


def test_standard_input_of_sudo_or_chroot_without_a_command_is_treated_as_shell_code() -> None:
    assert find_inner("sudo -s", "rm -rf /") == (InnerCommand(source="stdin", wrapper="sudo"),)
    assert find_inner("chroot /mnt", "rm -rf /") == (InnerCommand(source="stdin", wrapper="chroot"),)
    assert find_inner("sudo -s") == ()


def test_docker_run_with_an_entrypoint_option_is_treated_as_running_the_entrypoint_program() -> None:
    assert find_commands("docker run --rm --entrypoint rm debian -rf /") == ["rm -rf /"]


def test_command_in_a_git_setting_passed_by_environment_variables_is_found() -> None:
    assigned = {
        "GIT_CONFIG_COUNT": Word("1"),
        "GIT_CONFIG_KEY_0": Word("core.pager"),
        "GIT_CONFIG_VALUE_0": Word("rm -rf /"),
    }
    found = find_inner_commands(ProgramRun(argv=(Word("git"), Word("log")), env_assignments=assigned))
    assert [each.code for each in found] == ["rm -rf /"]


def test_program_named_in_an_option_is_found_as_an_inner_command_unless_it_is_a_system_program() -> None:
    assert [each.file for each in find_inner("rg --pre ./evil.sh x")] == [None, "./evil.sh"]
    assert [each.file for each in find_inner("rg --pre /usr/bin/pdftotext x")] == [None]


def test_ld_library_path_counts_as_running_code_for_system_programs_but_not_project_programs() -> None:
    library = {"LD_LIBRARY_PATH": Word("./lib")}
    assert (
        find_inner_commands(ProgramRun(argv=(Word("app"),), path=Word("./app"), env_assignments=library))
        == ()
    )
    assert (
        len(find_inner_commands(ProgramRun(argv=(Word("ls"),), path=Word("ls"), env_assignments=library)))
        == 1
    )


def test_inner_commands_beyond_the_limit_are_replaced_by_one_unknown_command() -> None:
    found = find_inner("perl " + "-e x " * 1000)
    assert len(found) < 300
    assert found[-1].argv == (GAP,)
