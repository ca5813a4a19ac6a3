"""Keeps what was decided: the store contract and its engines."""
