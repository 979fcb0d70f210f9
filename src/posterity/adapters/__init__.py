"""Other libraries' fitted models as families, and back; each is imported only when used."""
