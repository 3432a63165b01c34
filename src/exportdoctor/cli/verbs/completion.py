"""`exportdoctor completion`: the completion script for a shell."""

from __future__ import annotations

import click

from exportdoctor.cli.options import CONTEXT
from exportdoctor.core.errors import ExitCode, UsageError


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script for SHELL, e.g.: eval "$(exportdoctor completion bash)"."""
    from click.shell_completion import get_completion_class

    from exportdoctor.cli.main import COMPLETION_VARIABLE, exportdoctor

    script = get_completion_class(shell)
    if script is None:
        raise UsageError(f"no completion for {shell}", hint="Shells: bash, zsh, fish")
    click.echo(script(exportdoctor, {}, "exportdoctor", COMPLETION_VARIABLE).source())
    return ExitCode.EXPORTS
