"""This room says what is computed, as plain data: sizes, dtype, mask, features, tiles, the variant and the cards."""
