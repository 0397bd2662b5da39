"""What one step can change about a schedule: its neighbours, and random walks."""
