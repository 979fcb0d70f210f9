"""G-FVL: figures 3, 4 and 5 of gong2021."""
