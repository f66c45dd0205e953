"""Programs that carry a command to another machine or another user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shellverdict.shell.inner.generic import command, standard_input
from shellverdict.shell.inner.nouns import Inner, as_typed, joined
from shellverdict.shell.inner.options import read, spec
from shellverdict.shell.runs import Run
from shellverdict.shell.words import Word

__all__ = ["READERS"]

_SSH = spec(
    "-B= -b= -c= -D= -E= -e= -F= -I@binary -i= -J= -L= -l= -m= -O= -o= -P= -p= -Q! -R= -S= -V! -W= -w= "
    "-4 -6 -A -a -C -f -G -g -K -k -M -N -n -q -s -T -t -v -X -x -Y -y"
)


_SSH_RUNS = ("proxycommand", "localcommand", "knownhostscommand", "pkcs11provider", "remotecommand")


def _ssh(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _SSH)
    if reading.quits:
        return
    yield from _ssh_settings(reading.values("-o"))
    operands = reading.operands[1:]
    again = read(operands, _SSH)  # ssh takes options behind the host too
    yield from _ssh_settings(again.values("-o"))
    if again.operands:
        yield Inner(code=joined(again.operands), through="ssh", more_operands=run.more_operands)
    elif reading.operands:
        yield from standard_input(run, "sh", "ssh")


def _ssh_settings(settings: Sequence[Word]) -> Iterator[Inner]:
    for setting in settings:
        key, _, value = setting.replace("=", " ", 1).strip().partition(" ")
        if key.lower() in _SSH_RUNS and value.strip().lower() not in ("", "none"):
            through = "ssh" if key.lower() == "remotecommand" else "ssh-option"
            yield Inner(code=as_typed(value.strip()), through=through)


_SU = spec(
    "-c>sh --command>sh -s= --shell= -g= --group= -G= --supp-group= -w= --whitelist-environment= -u= --user= "
    "--session-command>sh -l -m -p -f -P -T --login --preserve-environment"
)


def _su(run: Run) -> Iterator[Inner]:
    """`su [-] [user] [-c code]`; runuser with -u takes a command instead."""
    reading = read([word for word in run.argv[1:] if word != "-"], _SU, stop=False)
    if reading.quits:
        return
    codes = reading.values("-c", "--command", "--session-command")
    for code in codes:
        yield Inner(code=as_typed(code), through=run.name)
    if reading.values("-u", "--user"):
        yield from command(run, read(run.argv[1:], _SU).operands, run.name)
    elif not codes:
        yield from standard_input(run, "sh", run.name)


_ANSIBLE = spec(
    "-m= --module-name= -a= --args= -i= --inventory= -l= --limit= -u= --user= -c= --connection= -T= "
    "--timeout= -f= --forks= -e= --extra-vars= -t= --tree= -M= --module-path= -B= -P= --private-key= "
    "--key-file= --become-user= --become-method= --vault-id= --vault-password-file= -b -C! --check! "
    "--list-hosts! --syntax-check! -k -K -o -v -D"
)


_ANSIBLE_SHELLS = frozenset({"shell", "command", "raw", "win_shell", "win_command", "script", "expect"})


def _ansible(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _ANSIBLE, stop=False)
    module = next(reversed(reading.values("-m", "--module-name")), Word("command"))
    if reading.quits or module.rpartition(".")[2] not in _ANSIBLE_SHELLS:
        return
    for code in reading.values("-a", "--args"):
        yield Inner(code=as_typed(_without_settings(code)), through="ssh")


def _without_settings(code: str) -> str:
    """`chdir=/tmp cmd="rm x"`: the module's own settings stand before or around the command."""
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


def _az(run: Run) -> Iterator[Inner]:
    """`az vm run-command invoke --scripts "…"`."""
    words = run.argv[1:]
    if "run-command" in words and "--scripts" in words:
        for word in words[words.index(Word("--scripts")) + 1 :]:
            if word.startswith("-"):
                return
            yield Inner(code=as_typed(word), through="ssh")


def _salt(run: Run) -> Iterator[Inner]:
    """`salt '*' cmd.run 'code'`."""
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word in ("cmd.run", "cmd.shell", "cmd.run_all", "cmd.script"):
            for code in words[place + 1 :]:
                yield Inner(code=as_typed(code), through="ssh")
            return


def _aws(run: Run) -> Iterator[Inner]:
    """`aws ssm send-command --parameters commands=…` and `aws ecs execute-command --command …`."""
    words = run.argv[1:]
    for place, word in enumerate(words[:-1]):
        if word == "--command" and "execute-command" in words:
            yield Inner(code=as_typed(words[place + 1]), through="docker")
        elif word == "--parameters" and "send-command" in words:
            text = words[place + 1].partition("commands")[2].lstrip("\"=: []'")
            yield Inner(code=as_typed(text.rstrip("\"']}{ ")), through="ssh")


def _socat(run: Run) -> Iterator[Inner]:
    """Addresses `EXEC:` and `SYSTEM:` run a command."""
    for word in run.argv[1:]:
        kind, colon, rest = word.partition(":")
        if colon and kind.upper() in ("EXEC", "SYSTEM", "SHELL"):
            yield Inner(code=as_typed(rest.partition(",")[0]), through="socat")


_NETCAT = spec(
    "-e= --exec= -c= --sh-exec= -p= -s= -w= -i= -q= -x= -X= -g= -G= -o= -T= -I= -O= -P= -V= --lua-exec@lua"
)


def _netcat(run: Run) -> Iterator[Inner]:
    """`nc -e program`, `ncat -c code`: what they run is the other side's to use."""
    reading = read(run.argv[1:], _NETCAT, stop=False)
    for code in reading.values("-e", "--exec", "-c", "--sh-exec"):
        yield Inner(code=as_typed(code), through="nc")


READERS: Mapping[str, Callable[[Run], Iterator[Inner]]] = MappingProxyType(
    {
        "ssh": _ssh,
        "slogin": _ssh,
        "su": _su,
        "runuser": _su,
        "sg": _su,
        "ansible": _ansible,
        "salt": _salt,
        "salt-ssh": _salt,
        "salt-call": _salt,
        "aws": _aws,
        "socat": _socat,
        "az": _az,
        "nc": _netcat,
        "ncat": _netcat,
        "netcat": _netcat,
    }
)
