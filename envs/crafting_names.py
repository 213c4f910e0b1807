"""Readable names for the items of a crafting world: a material that stays with a thing, and the form that the thing has taken."""

from random import Random

_GATHERED = (
    "oak log",
    "pine log",
    "birch log",
    "flax stalk",
    "hemp stalk",
    "clay lump",
    "river sand",
    "field stone",
    "reed bundle",
    "wool tuft",
)
_MINED = ("copper ore", "iron ore", "tin ore", "silver ore", "cobalt ore", "zinc ore", "nickel ore", "lead ore")
_FORMS = (
    "plank",
    "rod",
    "strip",
    "block",
    "panel",
    "ring",
    "peg",
    "frame",
    "wheel",
    "crate",
    "hook",
    "plate",
    "wedge",
    "lamp",
    "chest",
    "gear",
    "bucket",
    "ladder",
)
_STATIONS = {"bench": "workbench", "furnace": "furnace"}


class Namer:
    """Hands out names, each once in a world."""

    def __init__(self, random: Random) -> None:
        self._gathered = random.sample(_GATHERED, len(_GATHERED))
        self._mined = random.sample(_MINED, len(_MINED))
        self._forms = random.sample(_FORMS, len(_FORMS))

    def source(self, verb: str) -> str:
        """Something that the land gives."""
        return (self._gathered if verb == "gather" else self._mined).pop()

    def crafted(self, first_input: str) -> str:
        """A thing made of `first_input`, which keeps its material: an oak log becomes an oak plank."""
        return f"{_material(first_input)} {self._forms.pop()}"

    def smelted(self, ore: str) -> str:
        """What a furnace makes of an ore."""
        return f"{_material(ore)} ingot"

    def built(self, kind: str, first_input: str) -> str:
        """A station, of which a world has one of a kind, or a tool."""
        return _STATIONS.get(kind) or f"{_material(first_input)} {kind}"


def _material(name: str) -> str:
    return name.partition(" ")[0]
