"""What is computed: sizes, dtype and mask of one attention forward, and how it is cut into tiles. Plain data."""
