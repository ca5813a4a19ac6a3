"""Tests, one sub-package for each package, plus the rules of the house."""
