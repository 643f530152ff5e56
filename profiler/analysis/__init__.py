"""What one recording says: families and phases of ops, exclusive times, the summary."""
