"""Federations between organisations: durable sites, signed messages, logs that auditors check."""
