"""Rounds of MattAshman/pvi, run by an interpreter that has torch; its code is nowhere copied.

Arguments: the folder of its code, sites in an npz file, rounds, steps a visit. Prints JSON.
"""

import importlib.machinery
import json
import sys
import time
import types
from typing import Any

import numpy as np


class Absent(types.ModuleType):
    """Stands for `ray`, which the package imports and sequential servers do not use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda decorated: decorated


def main(folder: str, data: str, rounds: int, steps: int) -> dict[str, Any]:
    """CPU and wall seconds of each round, and the posterior after the last."""
    sys.path.insert(0, folder)
    sys.modules["ray"] = Absent("ray")
    sys.modules["ray"].__spec__ = importlib.machinery.ModuleSpec("ray", None)
    import torch
    from pvi.clients.base import Client
    from pvi.distributions.exponential_family_distributions import MeanFieldGaussianDistribution
    from pvi.distributions.exponential_family_factors import MeanFieldGaussianFactor
    from pvi.models.logistic_regression import LogisticRegressionModel
    from pvi.servers.sequential_server import SequentialServer

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    held = np.load(data)
    x, y = held["x"], held["y"]
    d = x.shape[-1]
    model = LogisticRegressionModel(include_bias=False, config={"D": d})
    nothing = lambda: {"np1": torch.zeros(d), "np2": torch.zeros(d)}
    config = {"epochs": steps, "batch_size": x.shape[1], "optimiser_params": {"lr": 0.05}}
    clients = [
        Client(
            data={"x": torch.tensor(own), "y": torch.tensor(labels)},
            model=model,
            t=MeanFieldGaussianFactor(nat_params=nothing()),
            config=dict(config),
        )
        for own, labels in zip(x, y, strict=True)
    ]
    standard = {"loc": torch.zeros(d), "scale": torch.ones(d)}
    prior = MeanFieldGaussianDistribution(std_params=standard, is_trainable=False)
    server = SequentialServer(
        model=model, p=prior, clients=clients, config={"max_iterations": rounds}
    )
    wall, cpu = [], []
    for _ in range(rounds):
        before, before_cpu = time.perf_counter(), time.process_time()
        server.tick()
        wall.append(time.perf_counter() - before)
        cpu.append(time.process_time() - before_cpu)
    mean = server.q.std_params["loc"].detach().numpy()
    return {"wall_s": wall, "cpu_s": cpu, "mean": mean.tolist()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
