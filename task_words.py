"""The word lists of the task generator, and what the names in an instruction mean: apps, shops, sites.

    label_of("Google Photos")      # 'Photos', as its icon and its row in Settings say
    host_of("Home Depot")          # 'homedepot.com'
"""

from __future__ import annotations

import re


def _list(text: str) -> list[str]:
    return [" ".join(value.split()) for value in text.split(",") if value.strip()]


_GOOGLE = "com.google.android."
PACKAGES = {  # label -> package
    "Chrome": "com.android.chrome", "Google": _GOOGLE + "googlequicksearchbox",
    "YouTube": _GOOGLE + "youtube", "Maps": _GOOGLE + "apps.maps",
    "Play Store": "com.android.vending", "Settings": "com.android.settings",
    "Clock": _GOOGLE + "deskclock", "Calendar": _GOOGLE + "calendar", "Gmail": _GOOGLE + "gm",
    "Contacts": _GOOGLE + "contacts", "Files": _GOOGLE + "apps.nbu.files", "Photos": _GOOGLE + "apps.photos",
    "Camera": "com.android.camera2", "Calculator": _GOOGLE + "calculator",
    "Messages": _GOOGLE + "apps.messaging", "YT Music": _GOOGLE + "apps.youtube.music",
    "Amazon Alexa": "com.amazon.dee.app", "Amazon Music": "com.amazon.mp3",
    "Amazon Prime Video": "com.amazon.avod.thirdpartyclient",
    "Amazon Shopping": "com.amazon.mShop.android.shopping",
    "Facebook": "com.facebook.katana", "Instagram": "com.instagram.android", "Lyft": "me.lyft.android",
    "Netflix": "com.netflix.mediaclient", "Pandora": "com.pandora.android",
    "Play Books": _GOOGLE + "apps.books", "Play Movies": _GOOGLE + "videos", "Play Music": _GOOGLE + "music",
    "Spotify": "com.spotify.music", "Twitter": "com.twitter.android", "Uber": "com.ubercab"}
ALIASES = {"sms": "Messages", "gallery": "Photos", "downloads": "Files", "music": "YT Music",
           "amazon prime music": "Amazon Music"}
_LABELS = {label.lower(): label for label in PACKAGES}


def label_of(name: str) -> str:
    """The label under an app's icon; the name itself for an app that is not known."""
    for key in (name.lower(), name.lower().removeprefix("google ")):
        if key in ALIASES or key in _LABELS:
            return ALIASES.get(key) or _LABELS[key]
    return name


def host_of(shop: str) -> str:
    return re.sub(r"\W", "", shop).lower() + ".com"


# What a slot may match, where not anything.
_SHOPS = ["eBay", "Sephora", "Amazon", "Walmart", "Costco", "Newegg"]
_STORES = ["Home Depot", "Lowes", "Best Buy", "Costco", "Walmart"]
_SITES = _list("""Reddit, eBay, Amazon, Walmart, Costco, Newegg, Sephora, Target, IKEA, Wikipedia, Etsy,
    Zillow, Yelp, Expedia, Quora, Tumblr, Imgur, Airbnb, Kayak, Wayfair, Nike, Zappos, Macys, Nordstrom""")
SLOTS = {"host": r"[\w-]+(?:\.[\w-]+)+", "site": "|".join(_SITES), "hour": "1[0-2]|0?[1-9]", "half": "am|pm",
         "rooms": r"\d+", "tab": r"(?:(?:incognito|private)\s*)?(?:tab|window)", "wanted": "on|off",
         "mail": "(?:gmail|e-?mail|mail)s?", "shop": "eBay|Sephora|Amazon|Walmart|Costco|Newegg|Home Depot|"
         "Lowe['’]?s|Best Buy|Target",
         "when": r"to(?:day|night|morrow)|yesterday|right now|now|this \w+|last \w+",
         "office": r"president|prime minister|king|queen|chancellor",
         "period": r".*(?:week|month)", "span": r".*(?:week|month)['’]?s?"}

_BRANDS = _list("""LG, Samsung, Sony, TCL, Vizio, Hisense, Panasonic, Philips, Sharp, Toshiba, Dell,
    Asus, Acer, Lenovo, HP, Bose, JBL, Canon, Nikon, Garmin, Dyson, Fitbit, Motorola, Nokia, Xiaomi""")
_BRANDED = _list("TV, laptop, camera, phone, speaker, tablet, headphones, monitor, projector, soundbar")
_SERIES = _list("""logitech g910, logitech g903, logitech g933, logitech g502, logitech g pro, logitech
    mx master, bose soundsport free, bose soundlink, bose soundlink mini, bose quietcomfort 35, beats
    solo 3, beats studio, razer blade, razer blackwidow, razer deathadder, razer kraken, razer huntsman,
    razer thresher, razer nari, razer viper, asus zenbook, asus rog, asus vivobook, acer predator, acer
    nitro, acer swift, dell xps, dell alienware, dell inspiron, alienware aurora, alienware area 51,
    lenovo thinkpad, lenovo yoga, lenovo legion, lg ultragear, lg gram, macbook, macbook air, macbook
    pro, macbook pro 13 inch, macbook pro 15 inch, imac, mac mini, ipad pro, apple airpods, apple
    airpods pro, apple watch, corsair k70, corsair void, corsair scimitar, jbl flip 4, jbl charge 4, jbl
    tune, sony walkman, sony bravia, usb-a, usb-b, usb-c, usb-a to usb-b, usb-c to usb-a, usb-c to
    usb-b, usb-c hub, hdmi cable, hdmi to vga, duracell triple a, rayovac triple a, energizer triple a,
    panasonic triple a, sony triple a, sony headphones, canon printer, canon powershot, epson printer,
    brother printer, nikon coolpix, gopro hero, fitbit charge, fitbit versa, garmin fenix, garmin
    forerunner, kindle, kindle paperwhite, roku stick, roku ultra, chromecast, fire stick, google nest,
    ring doorbell, philips hue, sandisk ultra, sandisk extreme, seagate backup, samsung evo, samsung
    galaxy, samsung galaxy tab, western digital passport, kingston fury, nvidia shield, xbox controller,
    xbox series x, playstation 5, nintendo switch, oculus quest, hp pavilion, hp spectre, hp envy, msi
    stealth, surface pro, surface laptop, pixel buds, pixel phone, anker charger, anker soundcore,
    sennheiser momentum, steelseries arctis, hyperx cloud, blue yeti, elgato stream deck, netgear
    nighthawk, tp-link router, instant pot, dyson airwrap, dyson vacuum, roomba, keurig coffee maker,
    nespresso vertuo, kitchenaid mixer, vitamix blender, ninja blender""")
_SPORTS = _list("""running shoes, yoga mat, tennis racket, camping tent, sleeping bag, water bottle,
    desk lamp, office chair, electric kettle, air fryer, toaster oven, rice cooker, board game, bath
    towel""")

LISTS = {
    "country": _list("""Argentina, Austria, Australia, Bangladesh, Belgium, Bolivia, Brazil, Bulgaria,
        Cambodia, Cameroon, Canada, Chile, China, Colombia, Croatia, Cuba, Denmark, Ecuador, Egypt,
        England, Estonia, Ethiopia, Finland, France, Germany, Ghana, Greece, Guyana, Hungary, Iceland,
        India, Indonesia, Ireland, Israel, Italy, Jamaica, Japan, Jordan, Kenya, Latvia, Lebanon,
        Malaysia, Mexico, Mongolia, Morocco, Myanmar, Nepal, Nigeria, Norway, Pakistan, Panama,
        Paraguay, Peru, Poland, Portugal, Romania, Senegal, Serbia, Singapore, South Korea, Spain,
        Suriname, Sweden, Switzerland, Taiwan, Thailand, Tunisia, Turkey, Uganda, Uruguay, Venezuela,
        Vietnam, Zambia, the Bahamas, the Dominican Republic, the Netherlands, the Philippines, the
        United Kingdom, the United States, Trinidad and Tobago"""),
    "city": _list("""Amsterdam, Athens, Atlanta, Austin, Baltimore, Bangkok, Barcelona, Beijing, Berlin,
        Bogota, Boston, Brussels, Budapest, Buenos Aires, Cairo, Calgary, Charlotte, Chicago, Cleveland,
        Copenhagen, Dallas, Delhi, Denver, Detroit, Dubai, Dublin, Florence, Geneva, Hamburg, Hanoi,
        Helsinki, Hong Kong, Honolulu, Houston, Istanbul, Johannesburg, Kyoto, Las Vegas, Lima, Lisbon,
        London, Los Angeles, Madrid, Manila, Melbourne, Mexico City, Miami, Milan, Montreal, Moscow,
        Mumbai, Munich, Nairobi, Nashville, New Orleans, New York, Orlando, Oslo, Paris, Philadelphia,
        Phoenix, Portland, Prague, Rio de Janeiro, Rome, Sacramento, San Diego, San Francisco, San Jose,
        Santiago, Seattle, Seoul, Singapore, Stockholm, Sydney, Tampa, Tokyo, Toronto, Vancouver,
        Vienna, Warsaw, Washington DC, Zurich"""),
    "currency": _list("""Euro, British Pound, Japanese Yen, Swiss Franc, Chinese Yuan, Indian Rupee,
        Mexican Peso, Brazilian Real, Canadian Dollar, Australian Dollar, South Korean Won, Danish
        Krone, Swedish Krona, Thai Baht, Polish Zloty, Turkish Lira, Egyptian Pound, Chilean Peso,
        Hungarian Forint, Israeli Shekel, Czech Koruna"""),
    "thing": _list("""the sun, the moon, the earth, the universe, the Eiffel tower, the Pacific ocean,
        Jupiter, Mars, a tiger, a lion, a giraffe, a dinosaur, a blue whale, a polar bear, a brown bear,
        a gorilla, a kangaroo, a penguin, an elephant, an ostrich, a crocodile, a rhino, a hippo, a
        panda, a moose, a dolphin, a walrus"""),
    "old_thing": _list("""the earth, the sun, the moon, the universe, the Eiffel tower, the White House,
        the Great Wall"""),
    "far_thing": _list("the moon, the sun, Mars, Venus, Jupiter, Saturn, Neptune, the north pole"),
    "mover": _list("""light, sound, a car, a train, a plane, a jet, a rocket, a bicycle, a skateboard, a
        tiger, a cheetah, a horse, a falcon, a rabbit, a snail, a shark, a motorcycle, a submarine, a
        helicopter, a greyhound, an antelope, an ostrich, a tornado, a satellite"""),
    "office": ["president", "prime minister"],
    "device": _list("computer, phone, laptop, desktop, tablet, TV, watch, iPad"),
    "rooms": ["1", "2", "3", "4"],
    "headline": _list("""the US, the US president, the US dollar, the US economy, the US stock market,
        the election, the Olympics, the weather, the world cup, the housing market, electric cars, oil
        prices, the space station, climate change, the royal family, the oceans, the stock exchange, the
        film awards"""),
    "when": _list("""today, this week, this weekend, this morning, this afternoon, this evening, this
        month, right now"""),
    "science": _list("""space, space science, space exploration, space technology, astronomy,
        astrophysics, cosmology, planetary science, tech, biology, medicine, chemistry, robotics,
        genetics, physics, geology, economics"""),
    "field": _list("""tech, technology, sports, business, science, music, fashion, travel, gaming,
        health, football"""),
    "cuisine": _list("""BBQ, Chinese, French, Greek, Indian, Italian, Japanese, Korean, Mexican, Thai,
        Spanish, Turkish, Ethiopian, Lebanese, Vietnamese, Peruvian, Cuban, Moroccan, German, Polish,
        sushi, seafood, pizza, burger, vegetarian, vegan, steak, ramen, noodle, taco"""),
    "chain": _list("""Burger King, Cheesecake Factory, Chick-fil-A, Chipotle, Denny's, Domino's, Five
        Guys, IHOP, In-N-Out, McDonalds, Olive Garden, Panera, Papa John's, Papa Murphy's, Pizza Hut,
        Red Lobster, Starbucks, Subway, Taco Bell, Wendy's, Arby's, Sonic, Popeyes, Shake Shack, Dairy
        Queen, Panda Express, Outback, Applebee's, Chili's, Waffle House, Texas Roadhouse, Jersey
        Mike's, Krispy Kreme, Little Caesars"""),
    "gadget": [f"{brand} {kind}" for brand in _BRANDS for kind in _BRANDED][::3] + _list("""new iPhone,
        new iPad, Galaxy phone, iPhone 8, Apple watch, Nintendo Switch, new Kindle, Pixel phone, new
        Macbook, Dyson vacuum"""),
    "tool": _list("""12' ladder, 2x4x8 board, cordless drill, table saw, leaf blower, snow blower, lawn
        mower, chainsaw, paint roller, tool box, garden hose, wheelbarrow, pressure washer, ceiling fan,
        bathroom sink, patio heater, workbench, air compressor, hedge trimmer, shop vacuum, step stool,
        door knob, water heater, extension cord"""),
    "appliance": _list("""refrigerators, dishwashers, washing machines, dryers, microwaves, ovens, air
        conditioners, freezers, vacuum cleaners, coffee makers, blenders, toasters, heaters, grills,
        fans, mattresses"""),
    "brand": _BRANDS,
    "beach": ["beach " + thing for thing in _list("""hat, bag, towel, sandals, blanket, chair, cooler,
        tote, tent, umbrella, ball, dress, cart, mat, pillow, shirt, wagon, hammock, canopy, radio""")],
    "cosmetic": _list("""mascara, blush, eyeliner, eyeshadow, lipstick, lipgloss, foundation, bronzer,
        highlighter, perfume, nail polish, skincare product, hair product, concealer, face mask, hair
        dryer, moisturizer, sunscreen, lip balm, body lotion, setting spray, hair brush, face serum, eye
        cream, cologne, shampoo, makeup bag, toner"""),
    "furniture": _list("""sofa, armchair, coffee table, bookcase, floor lamp, bed frame, dining table,
        wardrobe, desk, nightstand, rug, mirror, bar stool, recliner, dresser, futon, bench, ottoman,
        sideboard, bunk bed, shelf"""),
    "place": [f"good {dish} place" for dish in _list("""pizza, burger, sushi, ramen, taco, breakfast,
        sandwich, pancake, noodle, steak, dessert, brunch, curry, kebab, falafel, waffle, salad, bagel,
        donut, dumpling""")],
    "places": [f"{how} {dish} restaurants" for how in ("good", "top rated", "the best", "5 star")
               for dish in _list("sushi, pizza, burger, seafood, Italian, Greek, Thai, Mexican, Indian")
               ] + _list("""coffee shops, vegetarian restaurants, book shops, gas stations, parking garages,
        art galleries, flower shops, bakeries, bike rentals, dog parks, swimming pools, climbing gyms, music
        venues, car washes, public libraries"""),
    "spot": _list("""grocery store, electronics store, Apple Store, AT&T Store, Best Buy, Burger King,
        Chipotle, Home Depot, IKEA, JCPenney, Lowe's, Macy's, McDonalds, Nordstrom, Sprint Store,
        Starbucks, Subway, T-Mobile Store, Target, Verizon Store, Walmart, Costco, Walgreens, CVS,
        Trader Joe's, Whole Foods, Safeway, Kroger, Petco, Staples, Dunkin, Taco Bell, Pizza Hut, post
        office, hospital, pharmacy, gas station, library, bank, museum, train station, airport, park,
        hardware store, book store, pet store, toy store, shoe store, bakery, gym, cinema, laundromat"""),
    "opening": _list("now, today, tomorrow, late"),
    "artist": _list("""Adele, Ariana Grande, Beyonce, Billie Eilish, Bruno Mars, Coldplay, Demi Lovato,
        Drake, Dua Lipa, Ed Sheeran, Elton John, Foo Fighters, Green Day, Harry Styles, Imagine Dragons,
        Justin Bieber, Katy Perry, Kendrick Lamar, Lady Gaga, Lana Del Rey, Lorde, Madonna, Maroon 5,
        Miley Cyrus, Muse, Nicki Minaj, Olivia Rodrigo, Pharrell, Queen, Radiohead, Rihanna, Rosalia,
        Sam Smith, Selena Gomez, Shakira, Shawn Mendes, Sia, Stromae, Taylor Swift, The Weeknd, Usher,
        Zara Larsson"""),
    "channel": _list("""the BBC, the New York Times, the Wall Street Journal, the Washington Post, the
        Huffington Post, the Guardian, the Economist, the Verge, GameSpot, GameSpot News, GameSpot
        Reviews, GameSpot Trailers, GameTrailers, GameXplain, Gameranx, Game Informer, IGN, Kotaku,
        Polygon, Eurogamer, Veritasium, Vsauce, Numberphile, Vox, Wired, CNET, Engadget, Linus Tech
        Tips, Marques Brownlee, Bon Appetit, Tasty, National Geographic, NASA, Crash Course"""),
    "tune": _list("""music, jazz, rock music, classical music, piano music, country music, blues, hip
        hop, disco, folk songs, relaxing music, guitar solos, salsa, opera, movie soundtracks, reggae,
        techno, love songs"""),
    "store_app": _list("""Amazon, CNN, Calendar, ESPN, Facebook, Google, Instagram, Lyft, News, Pandora,
        Reddit, Spotify, Starbucks, Twitter, Uber, Weather, Wikipedia, Yahoo, Yelp, eBay, Airbnb,
        Audible, Booking, Canva, Discord, Dropbox, Duolingo, Etsy, Evernote, Expedia, Fitbit, Hulu,
        IKEA, Kayak, LinkedIn, Netflix, Outlook, PayPal, Peloton, Pinterest, Quora, Shazam, Signal,
        Skype, Slack, Snapchat, SoundCloud, Strava, Target, Telegram, TikTok, Trello, Tumblr, Twitch,
        Venmo, Vimeo, Viber, Walmart, Waze, WhatsApp, WeChat, Zillow, Zoom"""),
    "hour": [str(hour) for hour in range(1, 13)], "half": ["am", "pm"],
    "setting_app": _list("""Amazon Alexa, Amazon Music, Amazon Prime Video, Amazon Shopping, Facebook,
        Google Chrome, Google Maps, Google Photos, Google Play Books, Google Play Movies, Google Play
        Music, Google Play Store, Instagram, Lyft, Netflix, Pandora, Spotify, Twitter, Uber, YouTube,
        Calculator, Calendar, Camera, Clock, Contacts, Files, Gmail, Messages"""),
    "own_app": _list("""calculator, calendar, camera, clock, contacts, downloads, files, gallery, music,
        settings, SMS, play store, Google play store, Chrome, Gmail, Google, Maps, Messages, Photos,
        YouTube, Netflix, Spotify, Facebook, Instagram, Twitter, Uber, Lyft, Pandora, Amazon Shopping,
        Amazon Music, Amazon Alexa"""),
    "wanted": ["on", "off"],
    "tab": _list("tab, window, incognito tab, incognito window, private tab, private window"),
    "mail": _list("email, gmail, mail, emails, e-mail"),
    "period": _list("""the rest of the week, the rest of the month, this week, this month, the week, the
        month, the whole week, the whole month"""),
    "span": _list("""this week's, this month's, the week's, the month's, this whole week's, this whole
        month's"""),
    "shop": ["eBay", "Amazon", "Walmart"], "short_shop": _SHOPS, "store": _STORES,
    "shop_host": _list("""bestbuy.com, costco.com, ebay.com, newegg.com, walmart.com, sephora.com,
        homedepot.com, lowes.com, amazon.com"""),
    "host": _list("""bestbuy.com, costco.com, ebay.com, newegg.com, walmart.com, sephora.com,
        homedepot.com, lowes.com, amazon.com, reddit.com, target.com, ikea.com, nike.com, zappos.com,
        wayfair.com, etsy.com, macys.com, nordstrom.com, kohls.com, gap.com, petco.com, staples.com,
        overstock.com, gamestop.com, rei.com, asos.com, zara.com, adidas.com, puma.com, lego.com,
        wikipedia.org, yelp.com, zillow.com, expedia.com, kayak.com, airbnb.com, booking.com, quora.com,
        imdb.com, imgur.com, tumblr.com, pinterest.com, medium.com, github.com, weather.com, espn.com,
        cnn.com, bbc.com, nytimes.com, npr.org, nasa.gov, mit.edu, stanford.edu, craigslist.org,
        tripadvisor.com, netflix.com, hulu.com, spotify.com, soundcloud.com, dell.com, hp.com,
        lenovo.com, samsung.com, sony.com, bose.com, logitech.com, razer.com, corsair.com, asus.com,
        acer.com, microcenter.com, bhphotovideo.com, adorama.com, chewy.com, cvs.com, walgreens.com,
        kroger.com, safeway.com, instacart.com, doordash.com"""),
    "site": _SITES,
    "product": _SERIES + _SPORTS,
}
OPEN = frozenset(_list("""country, city, currency, thing, old_thing, far_thing, mover, headline,
    science, field, cuisine, chain, gadget, tool, appliance, brand, beach, cosmetic, furniture, place,
    places, spot, artist, channel, tune, host, site, product"""))
