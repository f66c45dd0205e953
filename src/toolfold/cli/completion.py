"""`toolfold completion`: the script that teaches a shell to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from toolfold.cli.app import app

WHERE = {
    "bash": 'eval "$(toolfold completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(toolfold completion zsh)"    # in ~/.zshrc',
    "fish": "toolfold completion fish > ~/.config/fish/completions/toolfold.fish",
}


@click.command(
    "completion",
    epilog="\b\n" + "\n".join(WHERE.values()),
    help="Print the completion script for your shell.",
)
@click.argument("shell", type=click.Choice(list(WHERE)))
def command(shell: str) -> None:
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"completion for {shell} is not supported here")
    click.echo(found(app, {}, "toolfold", "_TOOLFOLD_COMPLETE").source())
