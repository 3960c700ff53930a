"""Kills processes of runs at random moments, and keeps books on what that cost: `scripts/chaos`."""
