"""How letters travel; what gets lost on the way the machine sends again."""
