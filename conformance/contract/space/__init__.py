"""The planned space: its dimensions, the covering arrays over them, and one check per row."""
