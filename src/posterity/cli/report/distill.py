"""What a student is, and how close it is to its teacher."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> RenderableType:
    """Whose student, of which size, how close, and why not closer."""
    student, status = data["student"], data["status"]
    went_on = f", from {data['resumed']:,} on" if data["resumed"] else ""
    split = ", split" if student["split"] else ""
    what = f"{student['network']}, {student['likelihood']}{split}, {student['weights']:,} weights"
    gap = "an unknown number of" if status["left"] is None else f"{status['left']:.2g}"
    told = f"The student has {status['state']}: {gap} nats from its teacher, "
    lines = [f"{told}{status['tolerance']:.2g} allowed.", *map(_sentence, status["reasons"])]
    found = Text("\n".join(lines), style="" if status["state"] == "converged" else "red")
    parts: list[RenderableType] = [
        f"Distilled {printable(data['teacher'])} in {data['steps']:,} steps{went_on}.",
        f"Student: {what}.",
        found,
    ]
    if status["temperature"] is not None:
        parts.append(f"Temperature of the chains: {status['temperature']:.3f}; it should be 1.")
    if data["plot"] is not None:
        parts.append(f"Drew how it closed in, in {printable(data['plot'])}")
    return Group(*parts, f"Wrote the student to {printable(data['output'])}")


def _sentence(reason: str) -> str:
    return printable(f"{reason[:1].upper()}{reason[1:]}.")
