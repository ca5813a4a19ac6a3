"""Reads, checks and reports. Imports nothing of this project, opens no socket, reads no clock."""
