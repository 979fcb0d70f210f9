"""Draws docs/images/terminal.svg: commands on the hospitals' tables, and what they print.

python -m examples.terminal
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from examples.story import HOSPITALS, STEPS, write_tables

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "terminal.svg"
WIDTH = 92
FILES = "fused.safetensors --site long-beach -o left.safetensors --receipt receipt.json"
SHOWN = (
    "fit hungary.csv --like cleveland.safetensors --drop-missing -o hungary.safetensors",
    "fuse *.safetensors -o fused.safetensors",
    f"forget {FILES}",
)
# rich's own template without the fonts that it would fetch from another site
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"
  role="img" aria-label="A hospital fits its table, four files are fused, one is forgotten">
  <style>
    .{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px; line-height: {line_height}px; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">{matrix}</g>
  </g>
</svg>
"""


def printed() -> list[tuple[str, str]]:
    """The commands that are shown, and what each prints."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        for step in STEPS[: len(HOSPITALS)]:
            step.run(folder).check_returncode()
        found = []
        for command in SHOWN:
            call = f'"{sys.executable}" -m posterity {command}'
            done = subprocess.run(
                call,
                shell=True,  # which puts names in the place of the pattern
                cwd=folder,
                env=os.environ | {"COLUMNS": str(WIDTH - 2)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, done.stdout
            found.append((f"posterity {command}", done.stdout.strip()))
        return found


def drawn(commands: list[tuple[str, str]]) -> str:
    """The picture of a terminal in which these commands were run."""
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    for command, output in commands:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in output.splitlines():
            style = "yellow" if line.startswith(("warning", "note")) else ""
            console.print(Text(line, style=style))
        console.print()
    return console.export_svg(
        title="posterity", theme=SVG_EXPORT_THEME, code_format=TEMPLATE, unique_id="posterity"
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(printed()), encoding="utf-8")
