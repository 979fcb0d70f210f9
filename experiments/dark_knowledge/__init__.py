"""Bayesian Dark Knowledge: a posterior's predictive in one small network [korattikara2015]."""
