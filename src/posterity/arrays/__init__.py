"""Arrays of NumPy and of JAX, and functions that work with both."""
