"""Tools for hosts of the Model Context Protocol: over HTTP at the gateway, over stdio with an agent's profile."""
