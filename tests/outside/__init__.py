"""Checks by tools that are not ours."""
