"""Benchmarks: one command, method and figures in the README beside this file."""
