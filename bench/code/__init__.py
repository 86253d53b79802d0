"""The code at fault of each defect, and the mended version beside it: rebuilt in our own words."""
