"""Campaigns over HTTP: for machines and, on a page, for people, over the same files. The extra `dkaf[serve]`."""
