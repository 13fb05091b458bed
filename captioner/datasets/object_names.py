"""Words that name objects: COCO's eighty categories, their plurals and what captions call them instead.

A name that captions mostly use for something else is left out: "orange" is a colour before it is a fruit, "glass" and
"glasses" are windows and spectacles, "board", "computer" and "screen" could be any of two or three categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Synonyms in the singular, beside the category's own name; plurals are made of them. A comma ends a name.
_SYNONYMS = {
    "person": """man, woman, boy, girl, child, kid, baby, toddler, people, guy, lady, gentleman, teenager, teen,
        player, skier, snowboarder, skateboarder, surfer, rider, biker, bicyclist, cyclist, motorcyclist, batter,
        catcher, pitcher, umpire, referee, climber, hiker, runner, skater, swimmer, dancer, worker, policeman, officer,
        fireman, firefighter, soldier, chef, waiter, waitress, bride, groom, mother, father, son, daughter, brother,
        sister, friend, student, tourist, pedestrian, passenger, spectator, crowd, couple, family, racer, wrestler,
        cowboy, goalie, jockey, cheerleader, photographer, musician, infant, athlete, golfer, kayaker,
        fisherman, businessman, bystander, onlooker""",
    "bicycle": "bike, mountain bike",
    "car": "jeep, suv, taxi, taxi cab, minivan, sedan, automobile, police car, race car, sports car",
    "motorcycle": "motorbike, motor bike, dirt bike, dirtbike, moped, motor scooter, motor cycle",
    "airplane": "plane, aeroplane, jet, airliner, jetliner, biplane, air plane, seaplane",
    "bus": "school bus, tour bus, city bus, double decker, minibus",
    "train": "locomotive, steam engine, passenger train, freight train, subway train",
    "truck": "pickup, pickup truck, fire truck, firetruck, fire engine, semi truck, tow truck, dump truck",
    "boat": "ship, canoe, kayak, sailboat, rowboat, motorboat, speedboat, ferry, yacht, raft, tugboat, sail boat",
    "traffic light": "stoplight, stop light, traffic signal",
    "fire hydrant": "hydrant",
    "stop sign": "",
    "parking meter": "",
    "bench": "park bench",
    "bird": """duck, goose, seagull, gull, pigeon, parrot, owl, eagle, hawk, pelican, swan, flamingo, penguin, crow,
        peacock, ostrich, heron, dove, rooster, hen, sparrow, parakeet""",
    "cat": "kitten, kitty",
    "dog": """puppy, pup, hound, greyhound, poodle, terrier, retriever, labrador, beagle, collie, bulldog, pitbull,
        dachshund, chihuahua, dalmatian, doberman, husky, rottweiler, spaniel, sheepdog, corgi, pug, german shepherd""",
    "horse": "pony, foal, stallion, mare, colt",
    "sheep": "lamb, ram, ewe",
    "cow": "bull, calf, cattle, ox",
    "elephant": "",
    "bear": "polar bear, grizzly bear, brown bear, black bear, bear cub",
    "zebra": "",
    "giraffe": "",
    "backpack": "rucksack, knapsack, back pack",
    "umbrella": "parasol",
    "handbag": "purse, hand bag",
    "tie": "necktie, bow tie, bowtie",
    "suitcase": "luggage, briefcase, suit case",
    "frisbee": "flying disc",
    "skis": "",
    "snowboard": "snow board",
    "sports ball": "ball, soccer ball, tennis ball, beach ball",
    "kite": "",
    "baseball bat": "bat",
    "baseball glove": "baseball mitt, catcher 's mitt, mitt",
    "skateboard": "skate board",
    "surfboard": "surf board, boogie board",
    "tennis racket": "racket, racquet, tennis racquet",
    "bottle": "water bottle, wine bottle, beer bottle",
    "wine glass": "wineglass",
    "cup": "mug, coffee cup, teacup, coffee mug",
    "fork": "",
    "knife": "",
    "spoon": "",
    "bowl": "",
    "banana": "",
    "apple": "",
    "sandwich": "hamburger, burger, cheeseburger",
    "orange": "",
    "broccoli": "",
    "carrot": "",
    "hot dog": "hotdog, corn dog, chili dog",
    "pizza": "",
    "donut": "doughnut",
    "cake": "cupcake, birthday cake, wedding cake, cheesecake",
    "chair": "armchair, arm chair, recliner, lawn chair, high chair",
    "couch": "sofa, loveseat, love seat",
    "potted plant": "plant, houseplant, house plant, flower pot",
    "bed": "bunk bed",
    "dining table": "table, kitchen table, dinner table, coffee table, picnic table",
    "toilet": "",
    "tv": "television, tv set, television set, flat screen",
    "laptop": "laptop computer, notebook computer, macbook",
    "mouse": "computer mouse",
    "remote": "remote control, game controller, wii remote, wii controller, controller",
    "keyboard": "computer keyboard",
    "cell phone": "cellphone, phone, smartphone, mobile phone, smart phone, iphone",
    "microwave": "microwave oven",
    "oven": "stove, stove top, stovetop",
    "toaster": "toaster oven",
    "sink": "",
    "refrigerator": "fridge",
    "book": "",
    "clock": "",
    "vase": "",
    "scissors": "pair of scissors",
    "teddy bear": "stuffed bear, stuffed animal, teddy, stuffed toy, plush bear",
    "hair drier": "hair dryer, hairdryer, blow dryer, blow drier",
    "toothbrush": "tooth brush",
}  # fmt: skip
CATEGORIES = tuple(_SYNONYMS)
_ANIMALS = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
_IRREGULAR = {
    "person": "persons", "man": "men", "woman": "women", "child": "children", "people": "people", "sheep": "sheep",
    "policeman": "policemen", "fireman": "firemen", "fisherman": "fishermen", "businessman": "businessmen",
    "gentleman": "gentlemen", "goose": "geese", "calf": "calves", "ox": "oxen", "knife": "knives", "mouse": "mice",
    "skis": "skis", "scissors": "scissors", "cattle": "cattle", "luggage": "luggage",
}  # fmt: skip
# Things that are called after an object, whose names hold its name.
_MISLEADING = """train station, train stations, train track, train tracks, train yard, train car, train cars, bus stop,
    bus stops, bus station, toilet paper, dog house, bird house, bird feeder, bird bath, cat food, dog food, car seat,
    car park, car door, phone booth, phone booths, book shelf, book shelves, book case, table cloth, bed room, cup cake,
    hot tub, bear statue, oven mitt, oven mitts, man made, horse shoe, horse shoes,
    orange juice, apple juice, cake pan, pizza oven, pizza box, pizza pan, toy car, toy train, toy truck, toy boat,
    couple of, truck bed, tie dye, tie dyed"""
# Left out although they are categories' own names, see above.
_AMBIGUOUS = ("orange",)


@dataclass(frozen=True, slots=True)
class Mention:
    """One name of an object in a caption: words `start` up to `end`, which is left out, and the category they name."""

    start: int
    end: int
    category: str


def find_mentions(words: Sequence[str]) -> list[Mention]:
    """Return the objects that a caption's words name, in order; the longest name counts ("teddy bear" is no bear)."""
    words = [word.lower() for word in words]
    found: list[Mention] = []
    place = 0
    while place < len(words):
        for length in range(min(_LONGEST, len(words) - place), 0, -1):
            name = tuple(words[place : place + length])
            if name in _NAMES:
                category = _NAMES[name]
                if category is not None:
                    found.append(Mention(place, place + length, category))
                place += length
                break
        else:
            place += 1
    return found


def _plural(name: str) -> str:
    """Return the plural of a name, which is that of its last word."""
    first, space, last = name.rpartition(" ")
    if last in _IRREGULAR:
        return f"{first}{space}{_IRREGULAR[last]}"
    if last.endswith("y") and last[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if last.endswith(("s", "x", "ch", "sh")) else f"{name}s"


def _list_names() -> dict[tuple[str, ...], str | None]:
    """Return the category of each name, as its words; None for what misleads."""
    names: dict[tuple[str, ...], str | None] = {}
    for category, synonyms in _SYNONYMS.items():
        for name in (category, *(" ".join(synonym.split()) for synonym in synonyms.split(",") if synonym.strip())):
            for form in {name, _plural(name)} - set(_AMBIGUOUS):
                names[tuple(form.split())] = category
                if category in _ANIMALS:
                    names[tuple(f"baby {form}".split())] = category  # not a person beside an animal
    for name in _MISLEADING.split(","):
        names[tuple(name.split())] = None
    return names


_NAMES = _list_names()
_LONGEST = max(map(len, _NAMES))
