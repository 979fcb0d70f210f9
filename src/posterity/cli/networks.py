"""Options of commands that are about networks."""

from typing import Annotated

import typer

Likelihood = Annotated[
    str | None,
    typer.Option(
        metavar="[categorical|bernoulli|gaussian]",
        help="What a network's outputs mean; classes if left out.",
    ),
]
