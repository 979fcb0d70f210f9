"""Run the story in the folder that is named, or else in ``posterity-story``."""

import sys
from pathlib import Path

from examples.story import tell

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "posterity-story")
folder.mkdir(parents=True, exist_ok=True)
steps = tell(folder, print)
seconds = sum(step["seconds"] for step in steps)
print(f"\n{len(steps)} steps in {seconds:.0f} s. Their files are in the folder {folder}.")
