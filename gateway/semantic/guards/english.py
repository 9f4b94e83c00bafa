"""English, as the guards know it.

A line is `kind token: word, word, two words`; without a token each word is its own, `numbers 0..` counts on. Sections:
`grammar` (these words also tell the language), `sense` (facts and synonyms), `openings` (phrases that mean this only where a
clause begins). `chaff` means nothing, `article` the same; `label` and `genitive` are prepositions; a kind may be two.
"""

ENGLISH = """
[grammar]
article: a, an, the, this, that, these, those, my, our
chaff: there, i, mine, be, am, is, are, been, being
words it: it, it's, its
words me: me, myself
words we: we, we're, we've
chaff: i'm, i've, that's, there's, here's, let's, got, and
chaff: which, what, what's, whats
chaff: please, thanks, thank, hello, hi, hey, kindly, just, really, actually, basically, ok, okay, also, then
chaff: e.g, i.e
words you: you
words your: your, yours
words they: they, them, their
words: us, he, she, him, her, his
asks why: why
asks when: when, when's
asks where: where, where's, wheres
asks who: who, whom, who's, whos
asks whose: whose
asks how: how, how's
tense past: was, were, ago
tense: did, had
tense do: do, does
tense have: have, has
tense future: will, shall, i'll, we'll, you'll
tense if: would, i'd
modality can: can, able
modality could: could
modality should: should, ought
modality must: must, required, necessary
modality may: may, allowed, permitted
modality might: might
negation: without, never, no, nor, neither, none, nothing, nobody, nowhere
negation not: not, cannot
negation+tense not+past: wasn't, weren't
negation+tense not+did: didn't
negation+tense not+had: hadn't
negation+tense not+have: haven't, hasn't
negation+tense not+do: don't, doesn't, dont, doesnt
negation+tense not+future: won't
negation+tense not+if: wouldn't
negation+modality not+can: can't, cant
negation+modality not+could: couldn't
negation+modality not+should: shouldn't
negation+modality not+must: mustn't
negation not: isn't, aren't, ain't, isnt
quantifiers all: all, every
quantifiers often: often, frequently
quantifiers: too, so, each, both, any, some, many, much, few, most, more, less, fewer, least, several, half, double
quantifiers: twice, once, or
quantifiers: always, sometimes, rarely, usually, exactly, almost, nearly, approximately, else, even, except
quantifiers: including, everyone
quantifiers only: only
label: in, on, at, within, to, from, into, onto, upon, by
label: with, than, as, like, about, over, under, above, below, between, against
label: for, during
label: while, through, via, across, if, unless, because, until, till, per, along, around, behind, beside, near
label: off, toward, towards
label: given, after, before, since, inside, outside, up, down, out
genitive of: of
[sense]
negation no-longer: no longer, not any longer, not anymore
chaff: to me, for me
asks how: how do i do that, how does that work, how do i do this, how does this work
label in: using
label instead: instead of, rather than
label out: out of
asks when: when do, when does
asks where: where do, where does
asks why: why do, why does
asks how: how do, how does, how do i, how can i, how do we, how can we, how should i, how would i, how to, how could i
asks how: how does one, how can one
modality must: have to, has to, need to, needs to, is required, is needed, are required, needed, required
modality can: possible to, be able to, able to
modality may: allowed to
asks+quantifiers how+many: number of
numbers 0..: zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve
numbers 13..: thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty
numbers 30: thirty
numbers 40: forty
numbers 50: fifty
numbers 60: sixty
numbers 70: seventy
numbers 80: eighty
numbers 90: ninety
numbers 100: hundred
numbers 1000: thousand
numbers: million, billion, trillion, dozen, quarter
numbers 1st: first
numbers 2nd: second
numbers 3rd: third
numbers 4th: fourth
numbers 5th: fifth
numbers 6th: sixth
numbers 7th: seventh
numbers 8th: eighth
numbers 9th: ninth
numbers 10th: tenth
dates: january, february, march, april, june, july, august, september, october, november, december
dates: monday, tuesday, wednesday, thursday, friday, saturday, sunday, today, tonight, tomorrow, yesterday, next
dates: last, previous
dates: morning, evening, noon, midnight, pm, weekend, q1, q2, q3, q4
dates now: now, current, currently, nowadays, at the moment, right now
units %: percent, per cent
opposites: increase, decrease, raise, lower, maximum, minimum, max, min, highest, lowest, enable, disable, open
opposites: close, win, lose
opposites: best, worst, cheap, expensive, upload, download, accept, decline, start, stop, import, export, push
opposites: pull, true, false
opposites: left, right, lock, unlock, ascending, descending, encrypt, decrypt, install, uninstall, safe, unsafe
opposites: legal, illegal
opposites: increasing, decreasing, longer, shorter, larger, smaller, bigger, higher, faster, slower, better
opposites: worse, old, new, young
opposites buy: buy, purchase
opposites sell: sell
words photo: photo, picture, photograph
words movie: movie, film
words car: car, automobile
words holiday: holiday, vacation
words luggage: luggage, baggage
words phone: phone, telephone, smartphone
words email: e-mail, email
words summary: summarize, summarise, summary, sum up
words big: big, large
words repair: repair, fix
words colour: colour, color
words recommend: recommend, suggest
words quick: quick, quickly, rapid, rapidly
words get: get, obtain
words begin: begin, commence
words doctor: doctor, physician
words ill: ill, sick
words child: child, kid, children
words database: database, db
words config: config, configuration
words app: app, application
words repo: repo, repository
words directory: directory, folder
words argument: argument, parameter
words delete: delete, remove, erase
words error: error, exception
words immediately: immediately, instantly, right away, at once, straight away
words answer: answer, reply
words world: world
words meaning: meaning, definition
words differ: difference, differ, different
words need: need, require
words organise: organise, organize
words analyse: analyse, analyze
words centre: centre, center

units usd: dollars, dollar
units eur: euros, euro
units gbp: pounds sterling
names US: united states of america, united states, usa, u.s, u.s.a
names UK: united kingdom, great britain, uk, u.k
names EU: european union, eu
words ww2: world war ii, world war two, second world war, wwii, ww2
words ww1: world war i, world war one, first world war, wwi, ww1
words+genitive recipe+: recipe for, recipes for
words+genitive substitute+: substitute for, replacement for
words+genitive price+: price for
words+genitive command+: command for
opposites disable: turn off, switch off, deactivate
opposites enable: turn on, switch on, activate
words job: job
words rent: rent
words tv: tv, television
words ad: ad, advertisement
words exam: exam, examination
words maths: maths, mathematics, math
words info: info, information
words flat: flat, apartment
words substitute: substitute, replacement
words kind: kind, type, sort of
[openings]
chaff: please, can you, could you, would you, will you, can you please, could you please, do you know, do you have
chaff: explain, explain to me, explain what, describe, tell me, tell me about, show me, give me, name, calculate, compute
chaff: i need, i need to, i want, i want to, i would like, i would like to, i'd like, i'd like to, i need to know
chaff: i want to know, i would like to know, let me know, find out, may i ask, i have a question, give me a list of
chaff: what is the value of, which city is, which country is, what city is, what country is
asks yesno: is, are, am, do, does, is it true, is it true that, is there, are there
asks+tense yesno+past: was, were
asks+tense yesno+did: did
asks+tense yesno+had: had
asks+tense yesno+have: has, have
asks+tense yesno+future: will, shall
asks+tense yesno+if: would
asks+modality yesno+can: can, is it possible to
asks+modality yesno+could: could
asks+modality yesno+should: should
asks+modality yesno+must: must, do i have to, do we have to, do i need to, do we need to, do i need, do we need
asks+modality yesno+must: is it necessary to
asks+modality yesno+may: may, am i allowed to, are we allowed to
asks+modality yesno+might: might
asks how: explain how, explain how to, tell me how, tell me how to, show me how, show me how to, help me
asks how: i want to know how to, i would like to know how to, do you know how to, guide to, steps to, way to, tips for
asks how: what is the way to, what's the way to, what is the best way to, what's the best way to, what is a good way to
asks how: what is the easiest way to, what are the steps to, what is the process to, what is the procedure to
asks how: what is the method for, what do i need to do to, what can i do to, what should i do to
asks how: what is the command to, what's the command to, command to
asks why: what is the reason, what is the reason that, how come
asks when: at what time, what year, in what year, in which year, which year, on what date
asks where: in which place, at which place
"""

VERBS = """
accelerate accept achieve add! adjust allow analyse analyze answer apply arrange arrive ask assign attach avoid bake
become begin! believe block boil borrow break bring buy call cancel care carry catch change charge check choose
clean clear click climb collect combine come compare compile complete compress compute configure connect contact
contain control convert cook cost count cover crash create cut! dance deal debug! decide declare decline decrease
define delete deliver deploy describe design detect develop disable discuss display divide download drink drive dry
eat edit enable encrypt end enter erase escape estimate execute exit expand expect expire explain explore export
extract face fail fall filter find finish fit! fix fly follow force forget! format! freeze fry generate get! give go
grow handle hang happen hide hire hold hurt identify ignore implement import improve include increase insert install
invest invite join jump keep kill know last launch lead learn leave lend let! listen load lock log! look lose lower
maintain make manage measure merge migrate miss mix modify monitor mount move multiply name negotiate open order
organise organize parse pass pay perform pick plan! plant play post pour prepare prevent print produce program!
protect prove pull push put! quit! raise reach read reduce refuse register reject release remember remove rename
renew rent repair repeat replace reply report request require reset! restart restore return reverse review ride rise
roll run! save scale schedule scroll search select sell send separate serve share shop! show shut! sign sing sit!
skip! sleep solve sort speak spend split! spread start stay steal stop store study submit! subscribe subtract
suggest support swap! swim! switch take talk taste teach tell test thank think throw track transfer translate travel
treat trigger try turn type uninstall unlock update upgrade upload use validate verify view visit vote wait wake
walk want warn waste watch water wear win! wipe wish work worry wrap! write
"""
"""Whose -ing form means the same; an exclamation mark doubles the consonant."""

PLURAL_ONLY = """
news goods arms customs glasses means savings https sales always perhaps aws ios dns css series species windows
"""

ONE_OF_MANY = """
best worst most least first last top main latest newest only one biggest
"""
"""Beside these the plural asks for more than the singular."""

HOMOGRAPHS = """
polish turkey china march august will may apple jordan nice reading bath cologne meta shell target
discover bill mark rose jack frank grant art dean sue rob nick faith hope joy grace word
mercury windows
"""
"""Names with a capital, other words without."""
