"""How often defaults go wrong on ugly problems, and whether they say so."""
