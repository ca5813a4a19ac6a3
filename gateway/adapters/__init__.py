"""Receipts in the words of other tools. What comes out is weaker than what went in: it rests on the exporter's word.

The exporter checked a receipt with its own pins and says so under a key of its own. The ledger's keys, its witnesses
and the agent's signed request are not in what these tools check. Source: docs/protocol.md 35; docs/adr/0041.
"""
