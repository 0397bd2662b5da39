"""This package holds the contract of the class leaderboard, and a harness that runs submissions under it."""
