"""Common to the couriers of all engines: how they find the agent whose letters they carry."""

import os
from pathlib import Path

from posterity.errors import UsageError

SITE = "POSTERITY_SITE"
"""The variable that names a site's folder, in the environment in which an engine was started."""
SERVER = "server"
"""The member whose letters are carried where the engine's own server is."""


def agent_here() -> Path | None:
    """The socket of the agent at this machine; None if the environment names no site."""
    folder = os.environ.get(SITE)
    return None if folder is None else Path(folder) / "site.sock"


def no_agent(name: str) -> UsageError:
    """The error where a letter comes to a machine whose environment names no site."""
    return UsageError(
        found=f"no {SITE} in the environment of the engine at {name!r}",
        expected="the folder of the site whose letters it carries",
        fix=f"Start the engine there by: {SITE}=FOLDER COMMAND",
    )
