"""Whether a finished run was silently wrong: its records held against dated facts about known wrong results."""
