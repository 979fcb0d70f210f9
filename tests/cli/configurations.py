"""Two federations as files describe them."""

CONJUGATE = """
seed = 3
[sites]
east = "east.csv"
north = "north.npz"
south = "south.npz"
[model]
kind = "gamma-poisson"
[prior]
family = "Gamma"
shape = 2
rate = 1.0
[schedule]
kind = "gossip"
graph = "ring"
steps = 30
[output]
file = "shared.safetensors"
"""
COUNTS = {"north": [3, 0, 2], "south": [5, 5], "east": [1, 2, 0, 4]}
LOGISTIC = """
[sites]
a = "a.csv"
b = "b.csv"
c = "c.csv"
[model]
kind = "logistic-regression"
[prior]
file = "prior.safetensors"
[schedule]
steps = 2
[output]
file = "coupled.safetensors"
"""
NETWORK = LOGISTIC.replace(
    'kind = "logistic-regression"', 'kind = "network"\nwidth = 3\nlikelihood = "bernoulli"'
).replace('file = "prior.safetensors"', "variance = 1.0")
