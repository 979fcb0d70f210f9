"""Stochastic-gradient Markov chain Monte Carlo."""
