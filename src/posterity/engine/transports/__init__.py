"""Transports of letters. They may lose letters, since the machine sends them again."""
