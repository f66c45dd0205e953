"""Recognise commands that print shell code for `eval`, such as `direnv hook bash` or `ssh-agent`.

They are common in start-up files (`eval "$(direnv hook bash)"`) and print only the settings of a tool that is
already installed. Their output is therefore treated as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shellverdict.shell.runs import ProgramRun

__all__ = ["is_shell_setup_command"]

_ANY_ARGUMENTS = frozenset({"*"})

_SETUP_COMMANDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "direnv": frozenset({"hook", "export", "stdlib"}),
        "ssh-agent": _ANY_ARGUMENTS,
        "gpg-agent": _ANY_ARGUMENTS,
        "keychain": _ANY_ARGUMENTS,
        "pyenv": frozenset({"init", "virtualenv-init"}),
        "rbenv": frozenset({"init"}),
        "nodenv": frozenset({"init"}),
        "goenv": frozenset({"init"}),
        "jenv": frozenset({"init"}),
        "phpenv": frozenset({"init"}),
        "plenv": frozenset({"init"}),
        "nodebrew": frozenset({"init"}),
        "brew": frozenset({"shellenv"}),
        "starship": frozenset({"init", "completions"}),
        "zoxide": frozenset({"init"}),
        "atuin": frozenset({"init", "gen-completions"}),
        "mise": frozenset({"activate", "env", "hook-env", "completion", "completions"}),
        "rtx": frozenset({"activate", "env"}),
        "fnm": frozenset({"env", "completions"}),
        "thefuck": _ANY_ARGUMENTS,
        "opam": frozenset({"env", "config"}),
        "conda": frozenset({"shell.bash", "shell.zsh", "shell.fish", "shell.posix", "shell.powershell"}),
        "mamba": frozenset({"shell", "shell.bash", "shell.zsh"}),
        "micromamba": frozenset({"shell"}),
        "dircolors": _ANY_ARGUMENTS,
        "gdircolors": _ANY_ARGUMENTS,
        "minikube": frozenset({"docker-env", "podman-env", "completion"}),
        "docker-machine": frozenset({"env"}),
        "luarocks": frozenset({"path"}),
        "register-python-argcomplete": _ANY_ARGUMENTS,
        "register-python-argcomplete3": _ANY_ARGUMENTS,
        "activate-global-python-argcomplete": _ANY_ARGUMENTS,
        "lesspipe": _ANY_ARGUMENTS,
        "lesspipe.sh": _ANY_ARGUMENTS,
        "resize": _ANY_ARGUMENTS,
        "tset": _ANY_ARGUMENTS,
        "mcfly": frozenset({"init"}),
        "navi": frozenset({"widget"}),
        "fzf": frozenset({"--bash", "--zsh", "--fish"}),
        "oh-my-posh": frozenset({"init"}),
        "carapace": _ANY_ARGUMENTS,
        "hub": frozenset({"alias"}),
        "gh": frozenset({"completion"}),
        "vault": frozenset({"--completion"}),
        "npm": frozenset({"completion"}),
        "pnpm": frozenset({"completion", "env"}),
        "pip": frozenset({"completion"}),
        "pipx": frozenset({"completions"}),
        "poetry": frozenset({"completions", "env"}),
        "uv": frozenset({"generate-shell-completion"}),
        "uvx": frozenset({"--generate-shell-completion"}),
        "rustup": frozenset({"completions"}),
        "just": frozenset({"--completions"}),
        "ng": frozenset({"completion"}),
        "locale": _ANY_ARGUMENTS,
        "env-update": _ANY_ARGUMENTS,
        "perl": frozenset({"-Mlocal::lib", "-I"}),
        "tmuxifier": frozenset({"init"}),
        "sdk": frozenset({"env"}),
        "stack": frozenset({"--bash-completion-script"}),
        "basher": frozenset({"init"}),
        "swiftenv": frozenset({"init"}),
        "asdf": frozenset({"exec", "completion"}),
        "aactivator": frozenset({"init"}),
        "vcpkg": frozenset({"env"}),
        "xdg-user-dirs": _ANY_ARGUMENTS,
        "fasd": _ANY_ARGUMENTS,
        "jump": frozenset({"shell"}),
        "scmpuff": frozenset({"init"}),
        "complete": _ANY_ARGUMENTS,
    }
)
_COMPLETION_COMMANDS = frozenset({"completion", "completions", "shell-completion", "generate-completion"})
_SHELL_NAMES = frozenset({"bash", "zsh", "fish", "sh", "posix", "powershell", "pwsh", "elvish", "nu", "-"})


def is_shell_setup_command(run: ProgramRun) -> bool:
    """Return True if a program only prints well-known shell code that sets up a tool, as `ssh-agent` does."""
    if not run.argv:
        return False
    operands = run.argv[1:]
    wanted = _SETUP_COMMANDS.get(run.name, frozenset())
    if wanted is _ANY_ARGUMENTS or any(word in wanted for word in operands[:3]):
        return _has_no_command(run)
    return len(operands) >= 2 and operands[0] in _COMPLETION_COMMANDS and operands[1] in _SHELL_NAMES


def _has_no_command(run: ProgramRun) -> bool:
    """Return True if the arguments contain no command to run: `ssh-agent -s`, but not `ssh-agent bash`."""
    if run.name in ("ssh-agent", "gpg-agent"):
        return all(word[:1] == "-" for word in run.argv[1:] if word not in ("-a", "-t"))
    return "exec" not in run.argv[1:2]
