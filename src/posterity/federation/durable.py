"""A run that survives an interruption: it is saved on the way, and goes on from there."""

from pathlib import Path

from posterity.arguments import COUNT, NATURAL
from posterity.federation.checkpoint import check_saveable, save_checkpoint
from posterity.federation.run import Callback, Run


def advance_safely(run: Run, steps: int, path: Path, every: int, callback: Callback | None) -> Run:
    """Up to step number ``steps``, saving to the checkpoint on the way."""
    COUNT.check(every=every)
    NATURAL.check(steps=steps)
    check_saveable(run)
    latest = run
    try:
        while latest.state.step < steps:
            latest = latest.advance(1, callback=callback)
            if latest.state.step % every == 0:
                save_checkpoint(latest, path)
    finally:
        if latest is not run:  # a first step that failed leaves no file to be in the way
            save_checkpoint(latest, path)
    return latest
