"""Transports of letters; the machine sends again what gets lost on the way."""
