"""`toolfold completion`: print a shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from toolfold.cli.app import app

INSTALL_COMMANDS = {
    "bash": 'eval "$(toolfold completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(toolfold completion zsh)"    # in ~/.zshrc',
    "fish": "toolfold completion fish > ~/.config/fish/completions/toolfold.fish",
}


@click.command(
    "completion",
    epilog="\b\n" + "\n".join(INSTALL_COMMANDS.values()),
    help="Print the completion script for your shell. The lines below install it.",
)
@click.argument("shell", type=click.Choice(list(INSTALL_COMMANDS)))
def command(shell: str) -> None:
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.ClickException(
            f"completion for {shell} is not supported by the installed version of click"
        )
    click.echo(completion_class(app, {}, "toolfold", "_TOOLFOLD_COMPLETE").source())
