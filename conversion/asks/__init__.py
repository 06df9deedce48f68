"""What a pod asks for: its amounts, its record of an earlier conversion, and the settings that apply to it."""
