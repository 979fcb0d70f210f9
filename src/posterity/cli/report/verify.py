"""What a receipt claims, all of which holds."""

from typing import Any

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> str:
    """What the receipt shows, in words, and a line a claim."""
    names = ", ".join(map(printable, data["sites"]))
    kind = "exactly" if data["exact"] else "not exactly"
    headline = f"The receipt holds: {names} forgotten {kind}, {printable(data['time'])}."
    claims = (f"  {claim}" for claim in data["claims"])
    return "\n".join([headline, "", printable(data["statement"]), "", *claims])
