"""The polyomino-packing judge: place every piece once, without overlap, in the smallest rectangle."""
