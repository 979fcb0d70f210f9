"""Where a posterior's table went."""

from typing import Any

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> str:
    """One line, or two."""
    lines = [f"Wrote {data['parameters']} parameters to {printable(data['output'])}"]
    if data["covariance"] is not None:
        lines.append(f"Wrote their covariance to {printable(data['covariance'])}")
    return "\n".join(lines)
