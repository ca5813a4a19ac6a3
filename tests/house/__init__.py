"""The rules of the house as tests: imports, budgets, lock files, words, documents."""
