"""What a user types: the values that options accept, and the name, help and default of each option."""
