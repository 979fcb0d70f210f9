"""Continual learning on data that constants of features were not chosen on."""
