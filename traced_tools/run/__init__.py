"""What the parts of one run share."""
