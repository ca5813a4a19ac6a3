"""Reads a whole ledger: its source, its chain and tree, and what lies between its entries."""
