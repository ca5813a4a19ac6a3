"""Checks by programs that are not ours: Go's sumdb, proofbundle, openssl."""
