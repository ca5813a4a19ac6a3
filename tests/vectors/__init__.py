"""Committed test vectors and their generator."""
