"""The class leaderboard: the contract that a submission meets, and a harness that runs one under it."""
