"""Programs that carry a command somewhere else: another machine, another user, a terminal, a later time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from toolfold.approval.shell.inner.generic import command, follow, script, standard_input
from toolfold.approval.shell.inner.nouns import STANDARD_INPUT, Inner, as_typed, joined
from toolfold.approval.shell.inner.options import read, spec
from toolfold.approval.shell.inner.programs import programs
from toolfold.approval.shell.runs import Run
from toolfold.approval.shell.words import Word

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


_SCRIPT = spec("-c>sh --command>sh -E= --echo= -I= -O= -B= -T= -m= -o= -t? -q -a -e -f -r --quiet --return")


def _script(run: Run) -> Iterator[Inner]:
    """util-linux takes code by -c; BSD takes a command behind the file."""
    reading = read(run.argv[1:], _SCRIPT, stop=False)
    if reading.quits:
        return
    codes = reading.values("-c", "--command")
    for code in codes:
        yield Inner(code=as_typed(code), through="script")
    if not codes:
        yield from command(run, read(run.argv[1:], _SCRIPT).operands[1:], "script")


_FLOCK = spec("-c>sh --command>sh -w= --timeout= --wait= -E= --conflict-exit-code= -s -x -e -u -n -o -F -v")


def _flock(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _FLOCK)
    if reading.quits:
        return
    behind = read(reading.operands[1:], _FLOCK)
    codes = (*reading.values("-c", "--command"), *behind.values("-c", "--command"))
    for code in codes:
        yield Inner(code=as_typed(code), through="flock")
    if not codes:
        yield from command(run, behind.operands, "flock")


_WATCH = spec(
    "-n= --interval= -q= --equexit= -s= --shotsdir= -x --exec -d? -b -c -C -e -g -p -r -t -w --differences?"
)


def _watch(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _WATCH)
    if reading.quits or not reading.operands:
        return
    if reading.has("-x", "--exec"):
        yield from command(run, reading.operands, "watch")
    else:
        yield Inner(code=joined(reading.operands), through="watch", more_operands=run.more_operands)


def _capsh(run: Run) -> Iterator[Inner]:
    """Everything behind `--` or `==` is handed to bash."""
    for place, word in enumerate(run.argv):
        if word in ("--", "=="):
            yield Inner(argv=(Word("bash"), *run.argv[place + 1 :]), through="capsh")
            return


_BWRAP_TWO = frozenset(
    [
        "--ro-bind",
        "--bind",
        "--dev-bind",
        "--bind-try",
        "--ro-bind-try",
        "--dev-bind-try",
        "--symlink",
        "--setenv",
        "--file",
        "--bind-data",
        "--ro-bind-data",
        "--chmod",
        "--remount-ro",
        "--overlay",
    ]
)
_BWRAP_ONE = frozenset(
    [
        "--chdir",
        "--unsetenv",
        "--proc",
        "--dev",
        "--tmpfs",
        "--dir",
        "--mqueue",
        "--lock-file",
        "--sync-fd",
        "--seccomp",
        "--uid",
        "--gid",
        "--hostname",
        "--args",
        "--argv0",
        "--exec-label",
        "--file-label",
        "--block-fd",
        "--userns",
        "--userns2",
        "--pidns",
        "--info-fd",
        "--json-status-fd",
        "--cap-add",
        "--cap-drop",
        "--perms",
        "--size",
        "--add-seccomp-fd",
        "--userns-block-fd",
        "--overlay-src",
    ]
)


def _bwrap(run: Run) -> Iterator[Inner]:
    words, at = run.argv[1:], 0
    while at < len(words) and words[at].startswith("--"):
        if words[at] in ("--", "--help", "--version"):
            at += 1 if words[at] == "--" else len(words)
            break
        at += 3 if words[at] in _BWRAP_TWO else 2 if words[at] in _BWRAP_ONE else 1
    yield from command(run, words[at:], "bwrap")


_PERF = spec(
    "-e= --event= -F= -p= -t= -C= -c= -o= -i= -r= -I= -x= -G= --call-graph= -m= -u= -D= -a -g -d -v -q -s -n"
)
_PERF_RUNS = frozenset({"stat", "record", "trace", "top", "mem", "c2c", "lock", "sched", "kmem", "ftrace"})


def _perf(run: Run) -> Iterator[Inner]:
    words = run.argv[1:]
    if not words or words[0] not in _PERF_RUNS:
        return
    operands = read(words[1:], _PERF).operands
    if operands[:1] == (Word("record"),):
        operands = read(operands[1:], _PERF).operands
    yield from command(run, operands, "perf")


_TMUX = spec("-c= -f= -L= -S= -T= -2 -C -D -l -N -u -v -V!")
_TMUX_NEW = spec("-c= -e= -f= -F= -n= -s= -t= -x= -y= -l= -p= -b -A -d -D -E -P -X -h -v -k -a -Z -I")
_TMUX_SEND = spec("-c= -N= -t= -F -H -K -l -M -R -X")
_TMUX_RUN = spec("-c= -d= -t= -b -C")
_TMUX_OPENS = frozenset(
    [
        "new-session",
        "new",
        "new-window",
        "neww",
        "split-window",
        "splitw",
        "respawn-pane",
        "respawnp",
        "respawn-window",
        "respawnw",
        "display-popup",
        "popup",
    ]
)
_TMUX_RUNS = frozenset(["run-shell", "run", "if-shell", "if", "pipe-pane", "pipep"])


def _tmux(run: Run) -> Iterator[Inner]:
    words = read(run.argv[1:], _TMUX).operands
    for part in _parts(words):
        yield from _tmux_command(part)


def _parts(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    begin = 0
    for place, word in enumerate(words):
        if word in (";", "\\;"):
            yield words[begin:place]
            begin = place + 1
    yield words[begin:]


def _tmux_command(words: Sequence[Word]) -> Iterator[Inner]:
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in _TMUX_OPENS:
        operands = read(rest, _TMUX_NEW).operands
        if operands:
            yield Inner(code=joined(operands), through="tmux")
    elif name in _TMUX_RUNS:
        for word in read(rest, _TMUX_RUN).operands:
            yield Inner(code=as_typed(word), through="tmux")
    elif name in ("send-keys", "send"):
        yield from _typed_keys(read(rest, _TMUX_SEND).operands)


_KEYS = frozenset({"Enter", "C-m", "KPEnter", "C-j"})


def _typed_keys(words: Sequence[Word]) -> Iterator[Inner]:
    """Keys are typed one after another without blanks between words; Enter ends a line."""
    text = "".join("\n" if word in _KEYS else {"Space": " ", "Tab": "\t"}.get(word, word) for word in words)
    if text.strip():
        yield Inner(code=as_typed(text), through="tmux")


_SCREEN = spec(
    "-c= -e= -h= -p= -S= -s= -t= -T= -U -A -a -d -D -m -O -q -r? -R? -x? -L -l -v! -wipe! -ls! -list! -X:"
)


def _screen(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _SCREEN)
    if reading.quits:
        return
    if not reading.has("-X"):
        yield from command(run, reading.operands, "screen")
    elif reading.operands[:1] == (Word("stuff"),):
        typed = " ".join(reading.operands[1:])
        for key in ("\\n", "\\r", "\\015", "\\012", "^M", "^J"):
            typed = typed.replace(key, "\n")
        yield Inner(code=as_typed(typed), through="screen")
    elif reading.operands[:1] in ((Word("exec"),), (Word("screen"),)):
        yield from command(run, reading.operands[1:], "screen")


_CRONTAB = spec("-u= -l! -r! -e! -i -s -n -c= -T! -x= -V!")


def _crontab(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _CRONTAB, stop=False)
    if reading.quits:
        return
    if reading.operands and reading.operands[0] not in STANDARD_INPUT:
        yield Inner(source="file", file=reading.operands[0], language="crontab", through="crontab")
    else:
        yield from standard_input(run, "crontab", "crontab")


_MAKE = spec(
    "-C= --directory= -f@make --file@make --makefile@make -I= --include-dir= -j? --jobs? -l? "
    "--load-average? -o= --old-file= -W= --what-if= -O? --eval>make -E>make -n! --dry-run! --just-print! "
    "--recon! -q! --question! -v! -p -B -d -e -i -k -r -R -s -S -t -w"
)


def _make(run: Run) -> Iterator[Inner]:
    """Options that give rules, and variables whose values are shell code in the end (SHELL, CC…)."""
    reading = read(run.argv[1:], _MAKE, stop=False)
    if reading.quits:
        return
    for code in reading.values("--eval", "-E"):
        yield Inner(code=as_typed(code), language="make")
    for file in reading.values("-f", "--file", "--makefile"):
        yield from script(run, (file,), "make", "")
    for word in reading.operands:
        name, equals, value = word.partition("=")
        if equals and ("$(shell" in value or name.rstrip(":+?!") in ("SHELL", "MAKE")):
            yield Inner(code=as_typed(value), language="make-value", through="make")


_LD = spec(
    "--library-path= --inhibit-rpath= --audit@binary --preload@binary --argv0= --list! --verify! "
    "--list-tunables!"
)


def _loader(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _LD)
    if reading.quits:
        return
    for file in reading.values("--audit", "--preload"):
        yield Inner(source="file", file=file, language="binary", through="ld.so")
    yield from command(run, reading.operands, "ld.so")


_ENTR = spec("-a -c -d -n -p -r -s -x -z")


def _entr(run: Run) -> Iterator[Inner]:
    reading = read(run.argv[1:], _ENTR)
    if reading.has("-s"):
        yield Inner(code=joined(reading.operands), through="entr")
    else:
        words = tuple(Word("./\ufdd0") if word == "/_" else word for word in reading.operands)
        yield from command(run, words, "entr")


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


def _agent(run: Run) -> Iterator[Inner]:
    """`ssh-agent command`; without one it only prints."""
    reading = read(run.argv[1:], spec("-a= -E= -O= -P= -t= -c -D -d -k! -s"))
    if not reading.quits:
        yield from command(run, reading.operands, "ssh-agent")


def _terminal(run: Run) -> Iterator[Inner]:
    """Terminals take a command behind `--`, `-e` or `-x`."""
    words = run.argv[1:]
    for place, word in enumerate(words):
        if word in ("--", "-e", "-x", "--execute", "--command"):
            yield from command(run, words[place + 1 :], run.name)
            if word in ("-e", "--command") and len(words) > place + 1 and " " in words[place + 1]:
                yield Inner(code=as_typed(words[place + 1]), through=run.name)
            return
        if word.startswith("--command="):
            yield Inner(code=as_typed(word.partition("=")[2]), through=run.name)


def _apt(run: Run) -> Iterator[Inner]:
    """apt's and dpkg's settings that are commands to run before or after."""
    settings = read(run.argv[1:], spec("-o= --option= -c= -t= -a="), stop=False).values("-o", "--option")
    for setting in (
        *settings,
        *(w for w in run.argv[1:] if w.startswith(("--pre-invoke=", "--post-invoke="))),
    ):
        name, _, value = setting.partition("=")
        if "invoke" in name.lower() or name.lower().startswith(("dpkg::pre-install", "dir::bin")):
            yield Inner(code=as_typed(value), through=run.name)


def _az(run: Run) -> Iterator[Inner]:
    """`az vm run-command invoke --scripts "…"`."""
    words = run.argv[1:]
    if "run-command" in words and "--scripts" in words:
        for word in words[words.index(Word("--scripts")) + 1 :]:
            if word.startswith("-"):
                return
            yield Inner(code=as_typed(word), through="ssh")


def _rpm(run: Run) -> Iterator[Inner]:
    """`rpm --eval '%(command)'`."""
    yield from follow(run, programs()["rpm"], "rpm")
    for word in run.argv[1:]:
        if "%(" in word:
            yield Inner(code=as_typed(word.partition("%(")[2].rstrip(")")), through="rpm")


_FZF_RUNS = re.compile(
    r"\b(?:execute|execute-silent|execute-multi|reload|reload-sync|become|preview|transform)[\[({:~!@#$%^&*;/|](.*)"
)


def _fzf(run: Run) -> Iterator[Inner]:
    """`--preview code`, and `--bind key:execute(code)`."""
    yield from follow(run, programs()["fzf"], "fzf")
    for word in run.argv[1:]:
        if found := _FZF_RUNS.search(word):
            yield Inner(code=as_typed(found[1].rstrip(")]}")), through="fzf")


def _less(run: Run) -> Iterator[Inner]:
    """`less +!command` (and `more`, `most`): what stands behind + is typed at the start."""
    for word in run.argv[1:]:
        if word == "--":
            return
        if word.startswith("+") and "!" in word:
            yield Inner(code=as_typed(word.partition("!")[2]), through="less")


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


def _netcat(run: Run) -> Iterator[Inner]:
    """`nc -e program`, `ncat -c code`: what they run is the other side's to use."""
    reading = read(run.argv[1:], _NETCAT, stop=False)
    for code in reading.values("-e", "--exec", "-c", "--sh-exec"):
        yield Inner(code=as_typed(code), through="nc")


_NETCAT = spec(
    "-e= --exec= -c= --sh-exec= -p= -s= -w= -i= -q= -x= -X= -g= -G= -o= -T= -I= -O= -P= -V= --lua-exec@lua"
)

Reader = Callable[[Run], Iterator[Inner]]
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "ssh": _ssh,
        "slogin": _ssh,
        "su": _su,
        "runuser": _su,
        "sg": _su,
        "fzf": _fzf,
        "script": _script,
        "flock": _flock,
        "lckdo": _flock,
        "watch": _watch,
        "viddy": _watch,
        "capsh": _capsh,
        "bwrap": _bwrap,
        "perf": _perf,
        "tmux": _tmux,
        "byobu": _tmux,
        "screen": _screen,
        "crontab": _crontab,
        "make": _make,
        "gmake": _make,
        "bmake": _make,
        "ld.so": _loader,
        "entr": _entr,
        "ansible": _ansible,
        "less": _less,
        "more": _less,
        "most": _less,
        "salt": _salt,
        "salt-ssh": _salt,
        "salt-call": _salt,
        "aws": _aws,
        "socat": _socat,
        "ssh-agent": _agent,
        "apt": _apt,
        "apt-get": _apt,
        "aptitude": _apt,
        "dpkg": _apt,
        "az": _az,
        "rpm": _rpm,
        "gnome-terminal": _terminal,
        "xfce4-terminal": _terminal,
        "mate-terminal": _terminal,
        "lxterminal": _terminal,
        "terminator": _terminal,
        "tilix": _terminal,
        "x-terminal-emulator": _terminal,
        "urxvt": _terminal,
        "rxvt": _terminal,
        "st": _terminal,
        "nc": _netcat,
        "ncat": _netcat,
        "netcat": _netcat,
    }
)
