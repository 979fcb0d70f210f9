"""Mixtures grown by maximum entropy, and learning task after task."""
