"""Tests of the key tools."""
