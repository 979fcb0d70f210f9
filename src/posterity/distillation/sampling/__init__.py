"""Markov chains that follow stochastic gradients: noise, step sizes, kernels."""
