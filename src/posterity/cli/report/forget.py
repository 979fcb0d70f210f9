"""Who was forgotten, and how exactly."""

from typing import Any

from posterity.cli.failures import printable


def text(data: dict[str, Any]) -> str:
    """Three lines."""
    if data["exact"]:
        how = "Exact: the posterior is, to the last bit, that of a ledger that never saw them."
    elif not data["refined"]:
        how = "Not exact: the factors that stay were fitted in their company. Refine by --config."
    elif data["distance"] is None:
        how = "Not exact: nobody knows by how much going on would change it."
    else:
        how = f"Not exact: going on would change it by about {data['distance']:.2g} nats."
    return (
        f"Forgot {', '.join(map(printable, data['sites']))}; {len(data['left'])} sites are left.\n"
        f"{how}\nWrote the ledger to {printable(data['output'])}, "
        f"the receipt to {printable(data['receipt'])}"
    )
