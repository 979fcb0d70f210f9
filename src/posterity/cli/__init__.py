"""The command line: one file a verb, which registers its command when it is imported."""

from posterity.cli import (  # noqa: F401
    demo,
    diff,
    distill,
    federate,
    federation,
    fit,
    forget,
    fuse,
    inspect,
    predict,
    pursue,
    reporting,
    show,
    site,
    tables,
    verify,
)
from posterity.cli.app import app, main
from posterity.cli.failures import DEBUG, printable

__all__ = ["DEBUG", "app", "main", "printable"]
