"""The recording format: locate files, scan and read them, write them."""
