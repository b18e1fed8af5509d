"""Whole experiments: what they run, and how they are shown."""
