"""Tests of rules in Cedar, without a gateway."""
