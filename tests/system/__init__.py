"""Scenes with real processes, real files and real kills."""
