"""A run that survives an interruption: it is saved on the way, and goes on from there."""

from posterity.arguments import COUNT
from posterity.errors import UsageError
from posterity.federation.checkpoint import Checkpoint
from posterity.federation.run import Callback, Goal, Run
from posterity.interrupts import deferred


def advance_safely(
    checkpoint: Checkpoint, goal: Goal, every: int, callback: Callback | None
) -> Run:
    """What is kept, taken up to its goal, and saved on the way.

    Ctrl-C or SIGTERM ends it once the step is done and saved; Ctrl-C again ends it at once.

    Raises:
        UsageError: if what is kept is beyond the last step.
        KeyboardInterrupt, Terminated: if it was interrupted.
    """
    COUNT.check(every=every)
    latest = checkpoint.run
    _check_not_beyond(latest, goal.steps)

    def save() -> None:
        if latest is not checkpoint.run:  # a first step that failed leaves no file behind
            checkpoint.save(latest)

    with deferred() as interrupts, interrupts.rescued_by(save):
        while not goal.reached(latest):
            interrupts.check()
            latest = goal.step(latest, callback)
            if latest.state.step % every == 0:
                save()
    interrupts.check()
    return latest


def _check_not_beyond(run: Run, steps: int) -> None:
    if run.state.step > steps:
        raise UsageError(
            found=f"steps = {steps}, and a checkpoint with {run.state.step} {run.schedule.unit}",
            expected="as many as the checkpoint has made, or more",
            fix="Raise steps, or remove the checkpoint to begin anew.",
        )
