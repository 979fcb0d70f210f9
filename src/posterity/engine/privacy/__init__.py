"""What a federation reveals of its sites' records, made less, accounted for and tested."""
