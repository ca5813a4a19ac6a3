"""The bench runs, and what it prints can be so. No test looks at a clock."""
