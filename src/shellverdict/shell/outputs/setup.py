"""Commands that print shell code meant to be evaluated: hooks, completions, an agent's variables.

They are part of everyday start-up files (`eval "$(direnv hook bash)"`), print no more than settings of a tool
that is installed already, and are therefore taken for printing nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shellverdict.shell.runs import Run

__all__ = ["prints_shell_setup"]

_ANY = frozenset({"*"})

_PRINTERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "direnv": frozenset({"hook", "export", "stdlib"}),
        "ssh-agent": _ANY,
        "gpg-agent": _ANY,
        "keychain": _ANY,
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
        "thefuck": _ANY,
        "opam": frozenset({"env", "config"}),
        "conda": frozenset({"shell.bash", "shell.zsh", "shell.fish", "shell.posix", "shell.powershell"}),
        "mamba": frozenset({"shell", "shell.bash", "shell.zsh"}),
        "micromamba": frozenset({"shell"}),
        "dircolors": _ANY,
        "gdircolors": _ANY,
        "minikube": frozenset({"docker-env", "podman-env", "completion"}),
        "docker-machine": frozenset({"env"}),
        "luarocks": frozenset({"path"}),
        "register-python-argcomplete": _ANY,
        "register-python-argcomplete3": _ANY,
        "activate-global-python-argcomplete": _ANY,
        "lesspipe": _ANY,
        "lesspipe.sh": _ANY,
        "resize": _ANY,
        "tset": _ANY,
        "mcfly": frozenset({"init"}),
        "navi": frozenset({"widget"}),
        "fzf": frozenset({"--bash", "--zsh", "--fish"}),
        "oh-my-posh": frozenset({"init"}),
        "carapace": _ANY,
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
        "locale": _ANY,
        "env-update": _ANY,
        "perl": frozenset({"-Mlocal::lib", "-I"}),
        "tmuxifier": frozenset({"init"}),
        "sdk": frozenset({"env"}),
        "stack": frozenset({"--bash-completion-script"}),
        "basher": frozenset({"init"}),
        "swiftenv": frozenset({"init"}),
        "asdf": frozenset({"exec", "completion"}),
        "aactivator": frozenset({"init"}),
        "vcpkg": frozenset({"env"}),
        "xdg-user-dirs": _ANY,
        "fasd": _ANY,
        "jump": frozenset({"shell"}),
        "scmpuff": frozenset({"init"}),
        "complete": _ANY,
    }
)
_COMPLETION = frozenset({"completion", "completions", "shell-completion", "generate-completion"})
_SHELLS = frozenset({"bash", "zsh", "fish", "sh", "posix", "powershell", "pwsh", "elvish", "nu", "-"})


def prints_shell_setup(run: Run) -> bool:
    """Whether the run only prints the well-known settings of a tool for a shell to evaluate."""
    if not run.argv:
        return False
    operands = run.argv[1:]
    wanted = _PRINTERS.get(run.name, frozenset())
    if wanted is _ANY or any(word in wanted for word in operands[:3]):
        return _has_no_command(run)
    return len(operands) >= 2 and operands[0] in _COMPLETION and operands[1] in _SHELLS


def _has_no_command(run: Run) -> bool:
    """`ssh-agent command` and `asdf exec command` run something instead."""
    if run.name in ("ssh-agent", "gpg-agent"):
        return all(word[:1] == "-" for word in run.argv[1:] if word not in ("-a", "-t"))
    return "exec" not in run.argv[1:2]
