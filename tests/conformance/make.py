"""Makes the conformance files, which stay as they are while the format has its version.

``python tests/conformance/make.py`` writes the files of the present format, and ``expected.json``,
whose means and deviations are computed here from natural parameters by NumPy alone.
"""

import json
from pathlib import Path

import numpy as np

import posterity
from posterity import Beta, DiagonalGaussian, Gaussian, Ledger

HERE = Path(__file__).parent
FACTORS = {  # by file: the prior, and the natural parameters that each site adds
    "gaussian": (
        Gaussian(np.array([0.5, 0.0]), np.array([[0.01, 0.0], [0.0, 0.25]])),
        {
            "north": Gaussian(np.array([3.0, 1.0]), np.array([[5.0, 1.0], [1.0, 2.0]])),
            "süd": Gaussian(np.array([1.0, -1.0]), np.array([[2.0, 0.5], [0.5, -0.1]])),
        },
    ),
    "diagonal": (
        DiagonalGaussian(np.zeros(3), np.array([1.0, 0.25, 4.0])),
        {"a": DiagonalGaussian(np.array([1.0, -2.0, 0.1]), np.array([3.0, 0.5, 1e-3]))},
    ),
    "beta": (Beta(0.0, 0.0), {"coin 1": Beta(7.0, 2.0), "coin 2": Beta(0.0, 3.0)}),
    "prior": (Beta(1.0, 2.0), {}),
}
NAMES = {"gaussian": ["age", "dose (mg)"], "diagonal": ["x", "y", "z"], "beta": ["p"]}


def summed(name):
    prior, factors = FACTORS[name]
    laws = [prior, *factors.values()]
    if isinstance(prior, Beta):
        a, b = (
            1 + sum(float(getattr(law, f"{which}_minus_one")) for law in laws) for which in "ab"
        )
        return [a / (a + b)], [(a * b / (a + b + 1)) ** 0.5 / (a + b)]
    linear, precision = (
        sum(np.asarray(getattr(law, field)) for law in laws)
        for field in ("precision_mean", "precision")
    )
    covariance = np.linalg.inv(precision) if precision.ndim == 2 else np.diag(1 / precision)
    return (covariance @ linear).tolist(), np.sqrt(np.diag(covariance)).tolist()


def ledger(name):
    prior, factors = FACTORS[name]
    made = Ledger(prior.named(NAMES[name]) if name in NAMES else prior)
    made = made.extend(factors, independent=True)
    if name == "gaussian":  # who was forgotten is remembered, without a factor
        made = made.update("west", factors["north"]).forget("west")
    return made


def main():
    expected = {}
    for name, (_, factors) in FACTORS.items():
        posterity.save(ledger(name), HERE / f"{name}.safetensors", provenance={"of": "conformance"})
        mean, sd = summed(name)
        labels = NAMES.get(name, ["z0"])
        expected[name] = {"sites": sorted(factors), "names": labels, "mean": mean, "sd": sd}
    good = (HERE / "gaussian.safetensors").read_bytes()
    (HERE / "refused-format.safetensors").write_bytes(
        good.replace(b'\\"format\\":2', b'\\"format\\":9')
    )
    (HERE / "refused-short.safetensors").write_bytes(good[:200])
    (HERE / "refused-altered.safetensors").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    text = json.dumps({"format": 2, "files": expected}, indent=2, ensure_ascii=False)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
