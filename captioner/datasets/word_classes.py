"""Classes of the words that captions are made of: a list written for captions of photographs, and rules for the rest.

A word has one class whatever it stands beside: of the classes it could have, the one it has most often in captions
("a man plays" rather than "two plays", "an orange shirt" rather than "an orange"). Good for averages over thousands of
words, not for parsing a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from captioner.datasets.vocabulary import SPECIALS

# Words in their base form. Nouns without the plurals that the rules below undo, verbs in the infinitive and in the
# forms that no rule makes of it.
_LISTS = {
    "article": "a an the",
    "preposition": """
        about above across after against along alongside amid amidst among amongst around as at atop before behind
        below beneath beside between beyond by despite down during except for from in inside into like near next of
        off on onto opposite out outside over past per than through throughout to toward towards under underneath
        until up upon via with within without""",
    "conjunction": """
        although and because but if nor or so that though when where whether which while whilst who whom whose""",
    "pronoun": """
        all another any anyone anything both bunch each every everyone everything few he her herself him himself his
        how i it its itself lots many me more most much my no none nothing oneself other others our plenty several she
        some somebody someone something their them themselves there these they this those us we what you your""",
    "verb": """
        'd 'll 'm 're 've am appear approach are argue ate attach attack attempt balance bark bathe be been began
        begin being bend bent bite bitten blew blow blur bought bounce break bring broke broken brought build built
        buy call came camp can carry catch caught celebrate chase check cheer chew chose climb cling collide come
        compete consist contain converse cook could cover crash crawl cross crouch cuddle cut cycle dance decorate did
        died dig display dive do does done dove drank draw drawn drew dribble drive driven drove dunk dying eat eaten
        embrace enjoy enter examine exit explore extend fall feature fed feed fell felt fetch fight fill flee flew
        flip float flown fly follow fought found gallop gather gave gaze get give given glide go gon gone got gotten
        grab graze grew grin grind grown had hang has have having held help hid hidden hike hit hold hop hug hung
        include inspect is jog juggle jump keep kept kick kiss kneel knelt knock know known laid lain land laugh
        launch lay lead lean leap leapt leave led lent let lick lie lies lift listen live load look lost love lying
        made make march may meet met might mount move must need observe operate overlook paid paint participate pass
        peer perform pet pick picnic pitch place play point pose pour practice pray prepare press prop protect pull
        push put raise ram ran rang reach read receive reflect relax repair rest retrieve ridden ride rise rode roll
        run said sang sat say see seem seen sell serve sew shake shaken share shone shook shoot shot should show shown
        sing sip sit skate ski skip skydive sleep slept slid slip smile smoke sniff soar sold sort speak sped spent
        spin splash spoke spray spread sprint spun squat squint stack stalk stand stare steer stood stop stretch
        strike stroll strum stuck study sunbathe sung sunk surf surround swam swat swept swim swum swung tackle take
        taken talk taught tend threw throw thrown tied told took tore torn toss touch tow travel trek trot try tug
        tumble turn twirl tying unload use vault wade wait wakeboard walk wan wander want was wash watch waterski wear
        went were whisper wield will win wipe woke won wore work worn would wound wrap wrestle write written wrote
        yawn yell zip""",
    "adverb": """
        abreast adrift again ahead airborne almost aloft alone already also always anywhere apart aside astride awake
        away backward backwards barefoot downhill downward downwards else even ever everywhere far forward forwards
        headfirst here indoors instead just maybe mid mid-air midair n't nearby never not now often once only onstage
        outdoors overhead perhaps quite rather sideways sometimes somewhere soon still then together too twice
        underwater uphill upright upside upside-down upward upwards very well yet""",
    "number": """
        double dozen eight eleven fifteen fifth fifty first five forty four fourth half hundred nine one pair second
        seven single six ten third thirteen thirty thousand three triple twelve twenty two""",
    "colour": """
        aqua beige black blond blonde blue bluish bronze brown brunette color colored colorful colour coloured
        colourful copper cream gold golden gray green grey khaki lavender lime magenta maroon monochrome multi-colored
        multicolor multicolored navy neon orange pink purple rainbow red reddish redheaded silver tan teal tricolor
        turquoise violet white whitish yellow""",
    "adjective": """
        african aged american antique asian asleep assorted athletic bad baked bald bare barren bearded beautiful best
        better big blurred blurry brick bright busy calm camouflage cardboard carpeted casual cement certain checkered
        chinese chopped chubby clean clear close cloudless cloudy cluttered cold complete concrete cooked cotton
        covered crashing cross-country crowded curly cute dark dead deep delicious denim different dirty distant
        dressed dry eastern elderly electric electronic empty enormous enough entire excited extra fake fallen fancy
        fast fat female fenced fine flat floral flowered fluffy fluorescent foggy foreign formal fresh fried frozen
        full funny furnished furry fuzzy german giant good grand granite grassy great grilled haired hairy handsome
        happy hard heavy high hind hollow homeless hooded horizontal hot huge icy identical indian indoor inflatable
        injured interesting japanese knit large larger leafy leather left lined lit little lively local lone long
        loose loud low lower lush main male marble masked massive matching medium merry messy metal middle-aged
        military modern muddy multiple murky muscular naked narrow natural neat new nice northern nude numbered odd
        old old-fashioned older open opposing ornate outdoor overcast own painted parked partial patterned paved plaid
        plain plastic playful pointy polka porcelain pregnant pretty professional protective public quick quiet raw
        ready real rear reflective right ripe rocky rough round royal rubber rural rusty sad safe same sandy scenic
        seated separate serious shaggy shallow sharp sheer shiny shirtless short silly similar simple sized skimpy
        skinned skinny sliced slow small smaller smooth snowy soft solid southern special spiky spotted square
        stainless steel steep strange striped stuffed stylish sunny tall tasty tattooed teenage thick thin tidy tight
        tiled tiny tired topless traditional uniformed unique unusual upper urban various vast vertical vintage
        visible warm western wet whole wide wild wooded wooden wool woolen young younger""",
    "person": """
        acrobat adult army artist athlete audience baby baker band barber bartender bather batman batter bicyclist
        biker boarder boater bowler boxer boy bride brother businessman businesswoman bystander cameraman captain
        catcher cheerleader chef child children class climber clown coach commuter competitor contestant cop couple
        cowboy crew crowd customer cyclist dad dancer daughter diver doctor driver drummer elder entourage family fan
        farmer father fielder figure firefighter fireman fisherman friend gentleman girl goalie golfer grandfather
        grandma grandmother grandpa groom group guard guest guitarist guy gymnast handler herder hiker hitter human
        hunter husband individual infant instructor jockey juggler jumper kayaker kid king lad lady leader lover
        magician maid man member men model mom monk mother motorcyclist musician neighbor nun nurse obama officer
        onlooker opponent owner paddler parent participant passenger pedestrian people performer person photographer
        pilot pirate pitcher player police policeman priest prince princess protester protestor quarterback queen
        racer referee reporter rider rollerblader rower runner sailor santa scout server shopper sibling singer sister
        skateboarder skater skier snowboarder soldier son spectator spiderman squad student sumo sunbather surfer
        swimmer teacher team teammate teen teenager toddler tourist trainer troop twin umpire vendor visitor volunteer
        waiter waitress wife winner woman women worker workman wrestler youngster youth""",
    "animal": """
        alligator alpaca animal antelope ape beagle bear bee bird bison boar buffalo bull bulldog bunny butterfly calf
        camel canine cat cattle cheetah chicken chihuahua collie corgi cow crab crane crocodile crow dachshund
        dalmatian deer doberman dog doggy dolphin donkey dragonfly duck eagle elephant elk feline fish flamingo flock
        foal fox frog gazelle geese giraffe goat goose gorilla greyhound gull hamster hawk hen herd heron hog horse
        hound husky insect kangaroo kitten kitty lab labrador lamb leopard lion litter lizard llama mice monkey moose
        mouse mule mutt ostrich otter owl ox panda parrot peacock pelican penguin pig pigeon pitbull pony poodle pug
        pup puppy rabbit rat retriever rooster rottweiler seagull seal setter shark sheep sheepdog shepherd snake
        spaniel spider squirrel swan terrier tiger turkey turtle whale wolf zebra""",
    "object": """
        accordion advertisement aeroplane aircraft airliner airplane amplifier anchor ankle antler apple apron arm art
        attire atv awning axe backpack bacon badge bag bagel ball balloon banana bandage bandana bandanna banner bar
        barbecue barbell barrel barrier bars basket bat bathtub bbq bead beak beam bean beard bed beer bell belly belt
        bench berry beverage bib bicycle bike bikini bin binoculars biplane blanket bleacher bleachers blender blind
        block blouse bmx board boat bobsled body boogie book bookshelf boot booth bottle boulder bouquet bow bowl box
        bracelet branch bread breakfast briefcase broccoli brush bubble bucket bumper bun bundle burger bus bush
        button cab cabinet cable cactus cage cake camera candle candy cannon canoe canopy cap cape car card cardigan
        carpet carriage carrot cart case cell cello cellphone cereal chain chair chalk chandelier checkerboard cheek
        cheese chest chin chocolate chopstick chopsticks cigarette clock cloth clothes clothing cloud coat coffee coin
        collar comb computer cone confetti container controller cookie cooler cord corn costume couch counter
        countertop crate crayon crown cup cupboard cupcake curtain cushion daisy debris decoration desk dessert device
        diaper dice dinner disc dish dishwasher disk dispenser doll donut door dough doughnut drawer drawing dreadlock
        dreadlocks dress drier drink drum dryer dumbbell dust ear earphone earring egg elbow engine equipment eye
        fabric face faucet feather feeder feet fern ferry figurine finger fire fireplace firework fireworks flag flame
        flipper flour flower flute foam foliage food foot forehead fork fountain frame fridge fries frisbee frosting
        fruit fur furniture garbage gate gear gift glass glasses glider glove goggles gourd gown graffiti grape grill
        guitar gun hair hairdryer ham hamburger hammer hammock hand handbag handle handlebar handlebars harmonica
        harness hat hay head headband headlight headphones headscarf headset heater hedge helicopter helmet hinge hip
        hole hood hoodie hoof hook hoop horn hose hotdog hula hurdle hydrant icing image innertube instrument ipod
        item jacket jar jeans jeep jersey jet juice kayak keg ketchup kettle keyboard kilt kimono kite knee knife
        knives knob ladder ladle lamp lamppost lantern lap laptop laser lawnmower leaf leash leaves leg legging lei
        lemon letter lettuce lever license lid lifejacket light lighter lip lipstick loaf locomotive log lollipop
        lotion luggage lunch machine magazine makeup mane mango map marker marshmallow mask mast mat material mattress
        meal meat medal megaphone menu meter microphone microwave milk minivan mirror mohawk money monitor motorbike
        motorboat motorcycle mouth mower muffin mug mural muscle mushroom mustard muzzle napkin neck necklace net
        newspaper noodle nose note oar object obstacle olive onion ornament outfit outlet oven overalls pacifier
        paddle painting pajamas palm pan pancake pant pants paper parachute parasol parka pasta pastry patch paw peach
        pear pedal pen pencil pepper petal phone photo photograph piano pickup picture pie piece pigtail pigtails pile
        pillow pinata pine pineapple pipe pitchfork pizza plane plant plate platter plow plug pocket pole ponytail
        popcorn popsicle post poster pot potato present pretzel print printer puck pumpkin purse puzzle rack racket
        racquet radiator raft rag rail refrigerator remote ribbon rice rigging ring robe robot rock rod rollerblade
        rollerblades rope rose rubbish rug sail sailboat salad sandal sandwich sauce saucer sausage saw saxophone
        scaffold scarf scissors scooter screen scrub sculpture seat seed seesaw shade shawl sheet shelf shelves ship
        shirt shoe shorts shoulder shovel shower shrimp shrub sign sink skateboard skillet skin skirt skis skull sled
        sleeve slice slide snack sneaker snorkel snowball snowboard snowmobile snowsuit soap sock soda sofa soup
        spatula speaker sponge spoon spoonful spot sprinkler squirt stair statue steak stem stick stocking stomach
        stone stool stove straw strawberry streetlight string stripe stroller structure stump sucker suit suitcase
        sunflower sunglasses surfboard sushi suv sweater sweatshirt swimsuit swing swingset switch sword syrup t-shirt
        table tablet tag tail tank tarp tattoo taxi tea teapot teddy tee teeth telephone telescope television tent
        thigh thread thumb ticket tie tights tile tinsel tire tissue toast toaster toe toilet tomato tongs tongue
        tooth toothbrush toothpaste topping torch towel toy tractor trailer train tram trampoline trash tray tree
        tricycle tripod trolley trombone trophy truck trumpet trunk trunks tshirt tub tuba tube tulip turban tusk tutu
        tuxedo tv umbrella unicycle uniform van vase vegetable vehicle veil vent vest video vine violin waffle wagon
        waist wallet washer watchband watermelon wave weed weight wetsuit wheel wheelchair whisker whistle wig
        windshield wine wing wire wreath wrench wrist yacht yarn""",
    "place": """
        afternoon air airport aisle alley america amusement apartment arcade arch archway area arena auditorium autumn
        backdrop background backyard bakery balcony bank barbershop barn base bathroom bay beach bedroom boardwalk
        bridge building cabin cafe campground campsite canal canyon carnival castle cave ceiling center centre china
        church cinema city cityscape classroom clearing cliff club coast column construction corner cornfield corral
        corridor cottage country countryside course court courtyard cove creek crop crossing crosswalk curb dawn day
        daytime deck deli desert diamond dining dirt dock doorstep doorway downtown driveway dune dusk earth
        embankment enclosure entrance evening facade factory fairground farm fence field floor fog footpath foreground
        forest fort freeway gallery garage garden gateway glacier grass grassland gravel greenery grocery ground gym
        gymnasium half-pipe halfpipe hallway handrail harbor harbour highway hill hillside home horizon hospital hotel
        house hut ice igloo infield intersection island japan jetty jungle kitchen lagoon lake lakeside landscape lane
        lawn ledge library lobby london lot lounge mall marina market marsh meadow median miami mist monument moon
        morning motel mound mountain mountainside mountaintop mud museum neighborhood neighbourhood night nightclub
        nighttime ocean office oklahoma orchard outfield overpass park pasture path pathway patio pavement peak pier
        pillar pit plantation planter platform playground plaza pond pool porch port powder prairie pub puddle quay
        racetrack railing railroad railway rain ramp ranch rapid rapids reef restaurant ridge rink river riverbank
        road roadside roadway rodeo roof rooftop room route runway salon sand savanna scene school sea seashore
        seaside season setting shack shadow shed shop shore shoreline sidewalk site skatepark sky skyline skyscraper
        slope snow snowbank snowdrift space spring stable stadium stage staircase stairs stall star station step steps
        store stream street subway summer sun sunlight sunrise sunset sunshine supermarket surface swamp tarmac temple
        terrain theater theatre tower town track tracks trail trailhead tunnel underbrush underpass valley velodrome
        village vineyard walkway wall warehouse water waterfall waterside waterway weather wetland wharf wheat
        whitewater window windowsill winter woodland woods world yard york zoo""",
    "abstract": """
        action adventure agility amount angle array arts assortment attention back baseball basketball birthday bit
        bottom boxing business celebration ceremony championship christmas close-up closeup collection competition
        concert contest control conversation cricket curve demonstration design direction distance drill edge end
        event exercise expression fashion festival flight football formation front fun game gesture goal golf
        gymnastics halloween handstand height hockey hour job journey karate kind layer lesson level life line logo
        martial match message middle motion motocross music name number parade part party pattern peace performance
        position process protest race rally range reflection routine row rugby rush safety selection sequence series
        set shape side silhouette size soccer softball speed sport sports stance stunt style task tennis time top tour
        tournament traffic training trick trip type vacation variety view volleyball war way wedding wheelie word
        writing yoga""",
}  # fmt: skip
_KNOWN = {word: name for name, words in _LISTS.items() for word in words.split()}
OTHER = "other"
CLASSES = (*_LISTS, OTHER)
# "jumps" and "matches", "puppies", "knives": of nouns and of verbs alike.
_PLURALS = (("ies", ("y", "ie")), ("ves", ("f", "fe", "ve")), ("es", ("", "e")), ("s", ("",)))
_INFLECTED = frozenset({"verb", "person", "animal", "object", "place", "abstract"})
_ENDINGS = {
    "verb": ("ing", "ed"),
    "adverb": ("ly", "wards"),
    "person": ("man", "men", "woman", "women", "boarder", "boarders", "ist", "ists", "biker", "bikers"),
    "adjective": ("ful", "less", "ous", "ish", "able", "ern", "ic"),
}

# Classes that hold a sentence together, and words of the other classes that say next to nothing of a picture.
_FORM_CLASSES = ("article", "preposition", "conjunction", "pronoun", "adverb")
_EMPTY_WORDS = """
    'd 'll 'm 're 's 've am are be been being can could did do does done get gets getting go goes going gon got had has
    have having is may might must seem seems should wan was were will would area back background bottom edge end
    foreground front group kind left lot middle number one other part right scene set shot side top type view way
    picture photo image another"""
_EMPTY = frozenset(_EMPTY_WORDS.split())


def word_class(word: str) -> str:
    """Return the class of a word, one of CLASSES; "other" where neither the list nor a rule knows it."""
    word = word.lower()
    if word in _KNOWN:
        return _KNOWN[word]
    if word[:1].isdigit():
        return "number"
    first, hyphen, last = word.rpartition("-")
    if hyphen and first and last:
        # "snow-covered" and "fast-moving" say what something is like; "ski-lift" is a lift.
        return "adjective" if last.endswith(("ed", "ing")) else word_class(last)
    base = _base(word)
    return _KNOWN[base] if base else _by_ending(word)


def _base(word: str) -> str | None:
    """Return the listed word that this one is a plural or a form of, if there is one."""
    for ending, replacements in _PLURALS:
        if word.endswith(ending):
            for replacement in replacements:
                base = word.removesuffix(ending) + replacement
                if _KNOWN.get(base) in _INFLECTED:
                    return base
    return None


def _by_ending(word: str) -> str:
    """Return the class that the end of a word suggests."""
    for name, endings in _ENDINGS.items():
        if len(word) > 4 and word.endswith(endings):
            return name
    return OTHER


def is_content(word: str) -> bool:
    """Tell whether a lower-case word says something of the image by itself."""
    return (
        word_class(word) not in _FORM_CLASSES and word not in _EMPTY and any(character.isalnum() for character in word)
    )


def content_groups(words: Sequence[str]) -> list[int]:
    """Return a number of each word: above 0 and shared with its plural for a content word, 0 for others and markers."""
    groups: dict[str, int] = {}
    return [
        groups.setdefault(_singular(word), len(groups) + 1) if word not in SPECIALS and is_content(word) else 0
        for word in words
    ]


def _singular(word: str) -> str:
    """Return the word that this one is a plural or a form of, where the list has it."""
    return word if word in _KNOWN else _base(word) or word
