"""Commands whose help lists their options in sections."""

from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any

import click

__all__ = ["SectionedCommand"]


class SectionedCommand(click.Command):
    """A command of many options: its help has a heading for each kind of them."""

    def __init__(
        self, *arguments: Any, sections: Mapping[str, Container[str]], **options: Any
    ) -> None:
        """Take parameters by name for each heading. The last one has all others."""
        super().__init__(*arguments, **options)
        self._sections = sections

    def section_of(self, parameter: click.Parameter) -> str:
        """Return the heading over an option."""
        found = [title for title, names in self._sections.items() if parameter.name in names]
        return found[0] if found else [*self._sections][-1]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        parts: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            # Arguments are in the usage.
            if record is not None and isinstance(parameter, click.Option):
                parts[self.section_of(parameter)].append(record)
        for title in self._sections:
            with formatter.section(title):
                formatter.write_dl(parts[title])
