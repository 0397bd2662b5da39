"""This room says what is computed, as plain data: sizes, dtype, mask, features and tiles, the variant, and the cards."""
