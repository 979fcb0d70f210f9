"""What a receipt claims, all of which holds."""

from typing import Any

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> str:
    """A line a claim."""
    names = ", ".join(map(printable, data["sites"]))
    kind = "exactly" if data["exact"] else "not exactly"
    headline = f"The receipt holds: {names} forgotten {kind}, {printable(data['time'])}."
    return "\n".join([headline, *(f"  {claim}" for claim in data["claims"])])
