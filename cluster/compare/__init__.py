"""`pickaxe compare`: paired runs over methods and seeds, and what they say."""
