"""Tests of the JavaScript verifier in verifier/js/."""
