"""A run that survives an interruption: it is saved on the way, and goes on from there."""

from pathlib import Path

from posterity.arguments import COUNT
from posterity.federation.checkpoint import check_saveable, save_checkpoint
from posterity.federation.run import Callback, Goal, Run


def advance_safely(run: Run, goal: Goal, path: Path, every: int, callback: Callback | None) -> Run:
    """Up to its goal, saving to the checkpoint on the way."""
    COUNT.check(every=every)
    check_saveable(run)
    latest = run
    try:
        while not goal.reached(latest):
            latest = goal.step(latest)
            if callback is not None:
                callback(latest)
            if latest.state.step % every == 0:
                save_checkpoint(latest, path)
    finally:
        if latest is not run:  # a first step that failed leaves no file to be in the way
            save_checkpoint(latest, path)
    return latest
