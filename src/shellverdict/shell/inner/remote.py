"""Find commands that ssh, su, docker exec and others run on another machine or as another user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import code_from_stdin, command_from_words
from shellverdict.shell.inner.inner_command import InnerCommand, join_words, to_literal
from shellverdict.shell.inner.option_spec import parse_options, parse_spec
from shellverdict.shell.runs import ProgramRun
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_SSH = parse_spec(
    "-B= -b= -c= -D= -E= -e= -F= -I@binary -i= -J= -L= -l= -m= -O= -o= -P= -p= -Q! -R= -S= -V! -W= -w= "
    "-4 -6 -A -a -C -f -G -g -K -k -M -N -n -q -s -T -t -v -X -x -Y -y"
)


_SSH_COMMAND_OPTIONS = (
    "proxycommand",
    "localcommand",
    "knownhostscommand",
    "pkcs11provider",
    "remotecommand",
)


def _read_ssh(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _SSH)
    if reading.runs_nothing:
        return
    yield from _read_ssh_settings(reading.values("-o"))
    operands = reading.operands[1:]
    again = parse_options(operands, _SSH)  # ssh also accepts options after the host
    yield from _read_ssh_settings(again.values("-o"))
    if again.operands:
        yield InnerCommand(
            code=join_words(again.operands), wrapper="ssh", has_unknown_operands=run.has_unknown_operands
        )
    elif reading.operands:
        yield from code_from_stdin(run, "sh", "ssh")


def _read_ssh_settings(settings: Sequence[Word]) -> Iterator[InnerCommand]:
    for setting in settings:
        key, _, value = setting.replace("=", " ", 1).strip().partition(" ")
        if key.lower() in _SSH_COMMAND_OPTIONS and value.strip().lower() not in ("", "none"):
            wrapper = "ssh" if key.lower() == "remotecommand" else "ssh-option"
            yield InnerCommand(code=to_literal(value.strip()), wrapper=wrapper)


_SU = parse_spec(
    "-c>sh --command>sh -s= --shell= -g= --group= -G= --supp-group= -w= --whitelist-environment= -u= --user= "
    "--session-command>sh -l -m -p -f -P -T --login --preserve-environment"
)


def _read_su(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code of `su [-] [user] [-c code]`, or the command of `runuser -u user command`."""
    reading = parse_options([word for word in run.argv[1:] if word != "-"], _SU, stop_at_operand=False)
    if reading.runs_nothing:
        return
    codes = reading.values("-c", "--command", "--session-command")
    for code in codes:
        yield InnerCommand(code=to_literal(code), wrapper=run.name)
    if reading.values("-u", "--user"):
        yield from command_from_words(run, parse_options(run.argv[1:], _SU).operands, run.name)
    elif not codes:
        yield from code_from_stdin(run, "sh", run.name)


_ANSIBLE = parse_spec(
    "-m= --module-name= -a= --args= -i= --inventory= -l= --limit= -u= --user= -c= --connection= -T= "
    "--timeout= -f= --forks= -e= --extra-vars= -t= --tree= -M= --module-path= -B= -P= --private-key= "
    "--key-file= --become-user= --become-method= --vault-id= --vault-password-file= -b -C! --check! "
    "--list-hosts! --syntax-check! -k -K -o -v -D"
)


_ANSIBLE_COMMAND_MODULES = frozenset(
    {"shell", "command", "raw", "win_shell", "win_command", "script", "expect"}
)


def _read_ansible(run: ProgramRun) -> Iterator[InnerCommand]:
    reading = parse_options(run.argv[1:], _ANSIBLE, stop_at_operand=False)
    module = next(reversed(reading.values("-m", "--module-name")), Word("command"))
    if reading.runs_nothing or module.rpartition(".")[2] not in _ANSIBLE_COMMAND_MODULES:
        return
    for code in reading.values("-a", "--args"):
        yield InnerCommand(code=to_literal(_strip_module_arguments(code)), wrapper="ssh")


def _strip_module_arguments(code: str) -> str:
    """Return the command in an ansible module's arguments, without arguments such as `chdir=/tmp`."""
    words = code.split(" ")
    while words and words[0].partition("=")[0] in (
        "chdir",
        "creates",
        "removes",
        "executable",
        "warn",
        "cmd",
    ):
        name, _, value = words[0].partition("=")
        if name == "cmd":
            return " ".join([value, *words[1:]])
        words = words[1:]
    return " ".join(words)


def _read_az(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code of `az vm run-command invoke --scripts "…"`."""
    words = run.argv[1:]
    if "run-command" in words and "--scripts" in words:
        for word in words[words.index(Word("--scripts")) + 1 :]:
            if word.startswith("-"):
                return
            yield InnerCommand(code=to_literal(word), wrapper="ssh")


def _read_salt(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code of `salt '*' cmd.run 'code'`."""
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word in ("cmd.run", "cmd.shell", "cmd.run_all", "cmd.script"):
            for code in words[place + 1 :]:
                yield InnerCommand(code=to_literal(code), wrapper="ssh")
            return


def _read_aws(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the code of `aws ssm send-command` and `aws ecs execute-command`."""
    words = run.argv[1:]
    for place, word in enumerate(words[:-1]):
        if word == "--command" and "execute-command" in words:
            yield InnerCommand(code=to_literal(words[place + 1]), wrapper="docker")
        elif word == "--parameters" and "send-command" in words:
            text = words[place + 1].partition("commands")[2].lstrip("\"=: []'")
            yield InnerCommand(code=to_literal(text.rstrip("\"']}{ ")), wrapper="ssh")


def _read_socat(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the commands in socat's `EXEC:` and `SYSTEM:` addresses."""
    for word in run.argv[1:]:
        kind, colon, rest = word.partition(":")
        if colon and kind.upper() in ("EXEC", "SYSTEM", "SHELL"):
            yield InnerCommand(code=to_literal(rest.partition(",")[0]), wrapper="socat")


_NETCAT = parse_spec(
    "-e= --exec= -c= --sh-exec= -p= -s= -w= -i= -q= -x= -X= -g= -G= -o= -T= -I= -O= -P= -V= --lua-exec@lua"
)


def _read_netcat(run: ProgramRun) -> Iterator[InnerCommand]:
    """Return the command that `nc -e` or `ncat -c` runs with input from another machine."""
    reading = parse_options(run.argv[1:], _NETCAT, stop_at_operand=False)
    for code in reading.values("-e", "--exec", "-c", "--sh-exec"):
        yield InnerCommand(code=to_literal(code), wrapper="nc")


READERS: Mapping[str, Callable[[ProgramRun], Iterator[InnerCommand]]] = MappingProxyType(
    {
        "ssh": _read_ssh,
        "slogin": _read_ssh,
        "su": _read_su,
        "runuser": _read_su,
        "sg": _read_su,
        "ansible": _read_ansible,
        "salt": _read_salt,
        "salt-ssh": _read_salt,
        "salt-call": _read_salt,
        "aws": _read_aws,
        "socat": _read_socat,
        "az": _read_az,
        "nc": _read_netcat,
        "ncat": _read_netcat,
        "netcat": _read_netcat,
    }
)
