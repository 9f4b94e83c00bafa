"""Which questions may stand for each other, as far as their words tell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from gateway.features.semantic.guards import EDITION, KINDS, LANGUAGES, Facts, Language, facts_of, objection
from tests.bench.semantic import pairs
from tests.rows import rows

SHAPING = {"label", "article", "genitive"}
KNOWN = sorted({word for language in LANGUAGES for word in language.words})
WORDS = [*KNOWN, "Ann", "Bob", "3", "3 km", "x>1", '"a b"']
TEXTS = st.text(max_size=80) | st.lists(st.sampled_from([*WORDS, ".", ",", "?", "\n"]), max_size=12).map(" ".join)


ABOUT_A_WORD = (
    *(
        "Define {}",
        "define the word {}",
        "What is the definition of {}?",
        "What does {} mean?",
        "The meaning of {}, please",
    ),
    *(
        "Give me a synonym of {}",
        "Which words are synonymous with {}?",
        "What is another word for {}?",
        "antonym of {}",
    ),
    *(
        "What rhymes with {}?",
        "How many letters are in {}?",
        "How many syllables does {} have?",
        "What is the plural of {}?",
    ),
    *("Is {} a noun?", "Write {} as an abbreviation", "etymology of {}", "How do you spell {}?", "an anagram of {}"),
)


def objects(a: str, b: str) -> str | None:
    """What keeps two texts apart, in either order."""
    one, other = facts_of(a), facts_of(b)
    assert objection(one, other) == objection(other, one)
    return objection(one, other)


@rows(
    ("a", "b"),
    [
        ("What is the boiling point of lead?", "what is the boiling point of lead"),
        ("What is the boiling point of lead?", "Hello! Can you please tell me the boiling point of lead? Thanks!"),
        ("What is the flag of Peru?", "What is Peru's flag?"),
        ("In Kotlin, how do I parse a date?", "How can I parse a date in Kotlin?"),
        ("What is the way to parse a date?", "how to parse a date"),
        ("I want to leave the club. How do I do that?", "How do I leave the club?"),
        ("What is the difference between tea and coffee?", "What is the difference between coffee and tea?"),
        ("List five uses of 1,000 nails", "List 5 uses of 1000 nails"),
        ("Is ٤٢ even?", "Is 42 even?"),
        ("How far is 3 km?", "How far is 3km?"),
        ("How far are three kilometres?", "How far are 3 kilometers?"),
        ("Is 5 % a lot?", "Is 5 percent a lot?"),
        ("What does buy mean?", "Hello! What does buy mean, please?"),
        ("Why doesn’t it start?", "Why doesn't it start?"),  # noqa: RUF001 - the typographic apostrophe
        ("Which birds don't fly?", "Which birds do not fly?"),
        ("How do I buy stamps for a photo?", "How do I purchase stamps for a picture?"),
        ("How do I disable the alarm?", "How do I switch off the alarm?"),
        ("When did the US join?", "When did the United States join?"),
        ("When did the USA join?", "When did the U.S. join?"),
        ("Wie kann ich ein Bild drucken?", "Wie drucke ich ein Bild?"),
        ("Wie heißt die Hauptstadt von Peru?", "Kannst du mir sagen, was die Hauptstadt von Peru ist?"),
        ("Comment puis-je réparer un vélo ?", "comment réparer un vélo"),
        ("Quel est le prix de l'eau ?", "Dis-moi quel est le prix de l’eau"),  # noqa: RUF001 - as above
        ("¿Cómo puedo reparar una bici?", "¿Cómo reparo una bici?"),
        ("Quoi\u0301 de neuf", "Quo\u00ed de neuf"),
        ("法国的首都是哪里\uff1f", "法国的首都是哪里"),
        ("Почему небо голубое?", "почему небо голубое"),
    ],
)
def test_what_is_only_said_otherwise_agrees(a: str, b: str) -> None:
    """Manners, spelling, contractions, close synonyms and the place of a leading phrase say nothing."""
    assert objects(a, b) is None


@rows(
    ("guard", "a", "b"),
    [
        ("language", "What is Linux?", "Was ist Linux?"),
        ("language", "Qui est Angela Merkel ?", "¿Quién es Angela Merkel?"),
        ("text", "Translate I am here to Polish", "Translate we are here to Polish"),
        ("text", "Correct the grammar of he go to a school", "Correct the grammar of he go to school"),
        ("text", "Make this formal: I am late", "Make this formal: We are late"),
        ("text", "Make this formal\nI am late", "Make this formal\nI'm late"),
        ("text", "¿Cómo se traduce lo tengo?", "¿Cómo se traduce los tengo?"),
        *(("text", *(question.format(word) for word in ("buy", "purchase"))) for question in ABOUT_A_WORD),
        ("text", "Write 3 as a word", "Write three as a word"),
        ("text", "Write 1000 in roman numerals", "Write 1,000 in roman numerals"),
        ("text", "Wie viele Buchstaben hat km?", "Wie viele Buchstaben hat Kilometer?"),
        ("text", "Que signifie km ?", "Que signifie kilomètre ?"),
        ("text", "Sinónimo de km", "Sinónimo de kilómetro"),
        ("quoted", 'Define "bank".', 'Define "Bank".'),
        ("quoted", "Fix `a = 1`", "Fix `a = 2`"),
        ("quoted", "Was heißt „Zug“?", "Was heißt „Flug“?"),
        ("quoted", "Say 'red'", "Say 'blue'"),
        ("quoted", "Explain ```x = 1```", "Explain ```x = 2```"),
        ("text", "Explain ```\nx = 1\n```", "Explain ```\nx = 2\n```"),
        ("numbers", "Give me 3 ideas", "Give me 4 ideas"),
        ("numbers", "Give me three ideas", "Give me thirteen ideas"),
        ("numbers", "Is -5 cold?", "Is 5 cold?"),
        ("numbers", "What is new in 3.1?", "What is new in 3.10?"),
        ("numbers", "Wo steht Kapitel drei?", "Wo steht Kapitel vier?"),
        ("names", "第3章", "第4章"),
        ("words", "法国的首都是哪里?", "德国的首都是哪里?"),
        ("text", "翻译\uff1a我在这里", "翻译\uff1a我们在这里"),
        ("dates", "Is it open on Monday?", "Is it open on Tuesday?"),
        ("dates", "Is it open at 3 am?", "Is it open at 3 pm?"),
        ("dates", "Is it open at 3am?", "Is it open at 3pm?"),
        ("dates", "Quel temps fait-il demain ?", "Quel temps fait-il aujourd'hui ?"),
        ("units", "How far is 3 km?", "How far is 3 miles?"),
        ("units", "Is $5 enough?", "Is €5 enough?"),
        ("units", "Is 200ms slow?", "Is 200s slow?"),
        ("negation", "Which birds fly?", "Which birds don't fly?"),
        ("negation", "Tea with milk", "Tea without milk"),
        ("negation", "Darf ich parken?", "Darf ich nicht parken?"),
        ("negation", "Pourquoi il dort ?", "Pourquoi il ne dort pas ?"),
        ("negation", "¿Por qué duerme?", "¿Por qué no duerme?"),
        ("quantifiers", "Do all birds sing?", "Do some birds sing?"),
        ("quantifiers", "Who owns at least two cats?", "Who owns at most two cats?"),
        ("quantifiers", "Tea or coffee?", "Tea and coffee?"),
        ("opposites", "How do I increase contrast?", "How do I decrease contrast?"),
        ("opposites", "Who has the highest score?", "Who has the lowest score?"),
        ("modality", "Can I pay cash?", "Must I pay cash?"),
        ("modality", "Muss ich zahlen?", "Darf ich zahlen?"),
        ("tense", "Who is the owner?", "Who was the owner?"),
        ("tense", "When will he pay?", "When did he pay?"),
        ("asks", "When did he pay?", "Where did he pay?"),
        ("asks", "Is there a limit?", "What is the limit?"),
        ("asks", "Wer ruft den Hund?", "Wen ruft der Hund?"),
        ("names", "Explain parse_int", "Explain parse_float"),
        ("names", "Mail a@example.com", "Mail b@example.com"),
        ("names", "Open /etc/hosts", "Open /etc/passwd"),
        ("names", "Tell me about IT", "Tell me about it"),
        ("names", "Is vitamin A safe?", "Is vitamin D safe?"),
        ("names", "What is int[] in Java?", "What is int in Java?"),
        ("names", "What is C++?", "What is C#?"),
        ("names", "Compare gpt-4 prices", "Compare gpt-4o prices"),
        ("words", "How do I sort a list?", "How do I reverse a list?"),
        ("words", "Where was Bach born?", "Where was Brahms born?"),
        ("words", "What is the largest city?", "What are the largest cities?"),
        ("words", "What is your name?", "What is my name?"),
        ("words", "Who am I?", "Who are we?"),
        ("words", "What is the train plan?", "What is the training plan?"),
        ("order", "Convert USD to CHF", "Convert CHF to USD"),
        ("order", "Does Ann love Bob?", "Does Bob love Ann?"),
        ("order", "Is Go faster than Rust?", "Is Rust faster than Go?"),
        ("order", "Paint the door red and the gate blue", "Paint the door blue and the gate red"),
        ("order", "the father of the king", "the king of the father"),
        ("order", "From Rome to Nice", "To Rome from Nice"),
        ("order", "Should I vote for Bob?", "Should Bob vote?"),
        ("order", "Sort x. Then reverse y.", "Sort y. Then reverse x."),
        ("order", "When did A win? Why did B win?", "Why did A win? When did B win?"),
        ("order", "Wie komme ich von Köln nach Bonn?", "Wie komme ich von Bonn nach Köln?"),
    ],
)
def test_a_guard_objects_and_says_which_it_is(guard: str, a: str, b: str) -> None:
    """Each kind of fact has its guard."""
    assert objects(a, b) == guard


@rows("a", ["Is x < 5?", "Is x - 5 prime?", "What is 5!?", "What is f'?", "Open .env", "What is 10²?", 'Is 6" long?'])
def test_punctuation_that_says_something_counts(a: str) -> None:
    """Operators, primes, factorials, inches and dots in front belong to what they stand at."""
    plain = a.translate(str.maketrans(dict.fromkeys("<-!'.²\"", None)))

    assert objects(a, plain) is not None


@given(TEXTS)
def test_every_text_agrees_with_itself(text: str) -> None:
    """Also when it was stored in between, whatever it holds."""
    facts = facts_of(text)

    assert objection(facts, facts_of(text)) is None
    assert objection(facts, Facts.from_bytes(facts.to_bytes())) is None
    assert len(facts.to_bytes()) == 8 * len(KINDS)


@given(TEXTS, TEXTS, TEXTS)
def test_agreeing_is_an_equivalence(a: str, b: str, c: str) -> None:
    """Symmetric, and what two agree with they agree in."""
    if objects(a, b) is None and objects(b, c) is None:
        assert objects(a, c) is None


@given(st.lists(st.sampled_from(WORDS), max_size=8), st.integers(0, 10**18), st.integers(0, 10**18))
def test_other_numbers_never_agree(words: list[str], one: int, other: int) -> None:
    """Whatever stands around them."""
    a, b = (" ".join([*words, str(number)]) for number in (one, other))

    assert (objects(a, b) is None) == (one == other)


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), st.sampled_from(["zebra", "Zürich", "日本", "foo_bar"])
)
def test_a_word_that_means_something_is_never_lost(words: list[str], more: str) -> None:
    """A question with one more word is another question."""
    assert objects(" ".join(words), " ".join([*words, more])) is not None


def test_the_prompt_cannot_be_read_from_its_facts() -> None:
    """They lie on disk."""
    raw = facts_of("My password is hunter2 and my card 4929").to_bytes()

    assert not any(word in raw for word in (b"hunter2", b"4929", b"password"))


def test_facts_of_another_edition_are_no_match() -> None:
    """What was stored under other rules or other words cannot be compared."""
    facts = facts_of("Why?")

    assert objection(facts, Facts(bytes(8) + facts.raw[8:])) == "edition"
    assert objection(Facts(b""), facts) == "edition"
    assert facts.raw.startswith(EDITION)


@rows(
    "bait",
    [
        '"',
        "`",
        "“",
        "„",
        "«",
        "'",
        " '",
        "a'",
        "`a ",
        "$",
        "1,",
        "x'",
        "-",
        "\n",
        "of ",
        "how ",
        "not ",
        "日",
        "1 km ",
        "「",
        "can you ",
    ],
)
def test_long_baits_take_no_longer_than_long_texts(bait: str) -> None:
    """100 KB of what a careless pattern would try again and again."""
    text = bait * (100_000 // len(bait))

    assert objection(facts_of(text), facts_of("Why?")) is not None


def test_unpaired_surrogates_and_private_characters_are_text_like_any_other() -> None:
    """JSON may hold them; the sign that stands for a quotation is one."""
    assert objects("a \ud800 b", "a b") is not None
    assert objects("a \ue000 b", 'a "" b') is not None
    assert objects('a \ue000 "x"', 'a \ue000 "x"') is None


def test_every_word_of_the_tables_has_a_guard() -> None:
    """A kind that nobody compares would be a fact lost."""

    def kinds(language: Language) -> set[str]:
        phrases = [*language.phrases.values(), *language.openings.values()]
        meanings = [*language.words.values(), *(meaning for lines in phrases for _, meaning in lines)]
        return {kind for meaning in meanings for kind, _ in meaning}

    assert set().union(*map(kinds, LANGUAGES)) <= set(KINDS) | SHAPING


@cache
def data() -> Sequence[pairs.Pair]:
    """The benchmark's pairs, without those of different questions."""
    return pairs.load(strangers=False)


def test_no_near_miss_of_the_data_agrees() -> None:
    """Neither of the half that the guards were made with, nor of the other."""
    near_misses = [pair for pair in data() if pair.sort == "near miss"]

    assert len(near_misses) > 2000
    assert [(pair.a, pair.b) for pair in near_misses if objects(pair.a, pair.b) is None] == []


@rows(("sort", "least"), [("paraphrase", 0.25), ("manners", 0.95)])
def test_the_guards_let_the_cache_be_of_use(sort: str, least: float) -> None:
    """So many of the data's pairs that mean the same agree."""
    same = [objects(pair.a, pair.b) is None for pair in data() if pair.sort == sort]

    assert sum(same) / len(same) >= least
