"""Noise on natural parameters: what privacy costs four hospitals."""
