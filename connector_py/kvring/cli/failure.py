"""How a command says that it cannot do what it was asked to."""

from typing import IO, Any

import click

from kvring.cli.output import printable

__all__ = ["Failure", "PartialSuccess", "WrongArguments"]


class Failure(click.ClickException):
    """Ends a command with sentences on standard error, each with the command's name before it."""

    def __init__(self, *sentences: str) -> None:
        """Take the sentences."""
        super().__init__("\n".join(sentences))
        self.sentences = sentences
        context = click.get_current_context(silent=True)
        self.command = context.command_path if context is not None else "kvring"

    def show(self, file: IO[Any] | None = None) -> None:
        """Print them."""
        for sentence in self.sentences:
            # A sentence may quote what somebody else has written.
            for number, line in enumerate(sentence.split("\n")):
                shown = printable(line) if number else f"{self.command}: {printable(line)}"
                click.echo(shown, err=file is None, file=file)


class WrongArguments(Failure):
    """The same for arguments that do not fit."""

    exit_code = 2


class PartialSuccess(Failure):
    """The same where a part is done, and the sentences tell of the rest."""

    exit_code = 4
