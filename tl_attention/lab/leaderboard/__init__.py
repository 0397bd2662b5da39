"""This room packs submissions for the class leaderboard, and runs and judges them under its contract."""
