"""Tests of the agent's client."""
