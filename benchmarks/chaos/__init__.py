"""The kill campaign: runs whose processes are killed at random moments, again and again, and what became of them."""
