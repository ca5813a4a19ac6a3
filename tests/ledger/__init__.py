"""Tests of the sequencer, the tree and the receipts."""
