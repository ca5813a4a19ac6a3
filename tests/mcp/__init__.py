"""Tests of the Model Context Protocol: the core by itself, the door with a foreign client, the bridge as a process."""
