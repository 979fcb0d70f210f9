"""What runs a computation: files, progress, interrupts, compiled programs, lazy imports."""
