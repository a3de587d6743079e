"""Groups of commands that list when nothing is said, and show one thing when it is named."""

from __future__ import annotations

from typing import Any

import click

_TAKE_VALUE = {"--url", "--schema", "--ticks"}


class Listing(click.Group):
    """``GROUP`` is ``GROUP list``, ``GROUP NAME`` is ``GROUP show NAME``; anything else is a subcommand."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **{"subcommand_metavar": "[NAME] | COMMAND [ARGS]...", **words})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((place for place, word in enumerate(args) if not word.startswith("-")), None)
        while first is not None and first > 0 and args[first - 1] in _TAKE_VALUE:
            first = next((place for place in range(first + 1, len(args)) if not args[place].startswith("-")), None)
        if first is None and not {"--help", "-h"} & set(args):
            args = ["list", *args]
        elif first is not None and args[first] in self.commands:
            args = [args[first], *args[:first], *args[first + 1 :]]  # its options may stand before it
        elif first is not None:
            args = ["show", *args]
        return super().parse_args(ctx, args)
