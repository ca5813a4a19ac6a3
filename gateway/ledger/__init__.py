"""The book: the one writer, the tree, the receipts and the checkpoints."""
