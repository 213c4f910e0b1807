"""Pictures, tables and pages of `pickaxe lab`."""
