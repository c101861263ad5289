"""The AHC058 judge: plan 500 turns of a production chain so that as many apples as possible are there at the end."""
