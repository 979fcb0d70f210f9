"""Federations between organisations: durable sites, signed messages, auditable logs."""
