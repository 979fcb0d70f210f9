"""One formula, two homes: arrays of NumPy and of JAX, and the functions that serve both."""
