"""The witness server: its rules, its memory, its door, and what it does when it is killed."""
