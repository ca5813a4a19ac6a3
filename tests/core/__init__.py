"""Tests of the pure decision core."""
