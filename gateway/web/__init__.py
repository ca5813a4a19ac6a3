"""The HTTP door: limits, routes and the one map from errors to status codes."""
