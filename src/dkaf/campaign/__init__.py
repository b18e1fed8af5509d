"""Searches that last: ask and tell on one pool, kept in one file."""
