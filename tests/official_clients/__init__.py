"""Tests with the official client: its scenarios run in processes of their own, one per version."""
