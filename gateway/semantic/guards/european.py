"""German, French and Spanish, as the guards know them; `english.py` explains the lines."""

GERMAN = """
[grammar]
article: der, die, das, den, dem, des, ein, eine, einen, einem, einer, eines, mein, meine, meinen, meinem
article: meiner, meines
chaff: ich
words mich: mich, mir
words: wir, uns
chaff: unser, unsere, man, ist, sind, bin, sein, und, was, welche, welcher
chaff: welches, bitte, danke
chaff: hallo, doch, mal, denn, eigentlich, auch, da, diese, dieser, dieses, gibt, dass, um
label zu: zu, zum, zur
quantifiers: so
label in: im
label an: am
label bei: beim
words: es
words sie: sie, er, ihn, ihm, ihr, ihre
words du: du, dich, dir, dein, deine
asks warum: warum, wieso, weshalb
asks wann: wann
asks wo: wo
asks wohin: wohin
asks woher: woher
asks: wer, wem, wen
asks wie: wie
tense past: war, waren, gewesen
tense hat: hat, habe, haben
tense hatte: hatte, hatten
tense wurde: wurde, wurden
tense future: wird, werden, werde
tense if: würde, würden, wäre, hätte
modality kann: kann, können, könnte
modality muss: muss, müssen, musste
modality soll: soll, sollte, sollen, sollten
modality darf: darf, dürfen, durfte
modality will: will, wollen, möchte
negation: nicht, nie, niemals, ohne, nichts, niemand, weder, noch
negation kein: kein, keine, keinen, keinem, keiner, keines
quantifiers: alle, alles, jeder, jede, jedes, einige, viele, viel, wenige, wenig, manche, mehr, weniger, meisten
quantifiers: nur, oder, immer, oft, selten
quantifiers: mindestens, höchstens, genau, fast, außer, beide, halb, manchmal
label: von, nach, aus, in, an, auf, bei, mit, für, über, unter, vor, gegen, während, als, wegen, bis, seit
label: durch, zwischen, statt
[sense]
chaff: gibt es
label von: vom
label in: ins
label: pro
asks wie: wie kann ich, wie kann man, wie geht das, wie mache ich das
modality muss: benötige ich, benötigt man
words brauchen: brauche, brauchen, braucht, benötige, benötigen, nötig
numbers 0..: null, eins, zwei, drei, vier, fünf, sechs, sieben, acht, neun, zehn, elf, zwölf
numbers 20: zwanzig
numbers 30: dreißig
numbers 100: hundert
numbers 1000: tausend
numbers: million, millionen, milliarde, milliarden
dates: januar, februar, märz, april, mai, juni, juli, august, september, oktober, november, dezember, jetzt
dates: montag, dienstag, mittwoch, donnerstag, freitag, samstag, sonntag, heute, morgen, übermorgen, gestern
dates: nächste, letzte, nächsten, letzten
units %: prozent
opposites: erhöhen, senken, öffnen, schließen, höchste, niedrigste, kaufen, verkaufen, einschalten, ausschalten
opposites: beste, schlechteste
words löschen: löschen, lösche, entferne, entfernen
words auto: auto, wagen
words telefon: handy, mobiltelefon
words foto: foto, bild
words beruf: job, beruf
words schreiben: schreib, schreibe, schreiben, formuliere, verfasse
[openings]
chaff: kannst du mir sagen, können sie mir sagen, sag mir, sagen sie mir, erkläre mir, erkläre, erklär mir
chaff: ich möchte wissen, weißt du
chaff: bitte, kannst du, können sie, könntest du, gib mir, ich möchte, ich brauche, nenne mir, nenne, wie heißt
chaff: welche stadt ist
asks+tense yesno+hat: hat, habe, haben
asks yesno: ist, sind, bin, gibt es, gibt, stimmt es dass
asks+tense yesno+past: war, waren
asks+tense yesno+hatte: hatte
asks+tense yesno+wurde: wurde, wurden
asks+tense yesno+future: wird, werden
asks+modality yesno+kann: kann, können
asks+modality yesno+muss: muss, müssen
asks+modality yesno+soll: soll, sollte, sollten
asks+modality yesno+darf: darf, dürfen
asks wie: bitte hilf mir, hilf mir, was muss ich tun, was kann ich tun, wie geht es
"""

FRENCH = """
[grammar]
article: le, la, les, l', un, une, des, mon, ma, mes, notre, nos, ce, cet, cette, ces
words me: me, m', moi
words: nous
chaff: je, j', on, c', est, sont, es, suis
tense a: ai, a, ont, avoir
chaff: être, et, que, qu', quel, quelle, quels, quelles, est-ce, y, se, s', svp, bonjour
chaff: merci, ça, quoi, est-il, est-elle
chaff: fait-on, voudrais
words tu: tu, te, t', toi, ton, ta, tes, vous, votre, vos
words: il
words ils: ils, elle, elles, lui, leur, leurs, son, sa, ses
asks pourquoi: pourquoi
asks quand: quand
asks où: où
asks qui: qui
asks comment: comment
asks combien: combien
tense past: était, étaient, fut, été, avait, avaient
tense future: sera, seront, fera, aura, fera-t-il
tense if: serait, aurait
modality peut: peut, peux, peuvent, puis-je, peut-on, pouvoir, pouvons
modality doit: doit, dois, doivent, dois-je, doit-on, faut, faut-il, devoir
modality va: vais, va, vas, vont, vais-je, allons
modality devrait: devrais, devrait
negation: pas, jamais, rien, sans, ni, personne
negation aucun: aucun, aucune
negation ne: ne, n'
negation ne: n'est-il, n'est, n'y, n'a
quantifiers: tous, tout, toute, toutes, chaque, quelques, certains, certaines, plusieurs, peu, beaucoup, plus
quantifiers: moins, seulement, ou, toujours
quantifiers: souvent, parfois, presque, exactement, environ, sauf
label: à, au, aux, en, dans, sur, sous, avec, pour, par, chez, contre, entre, vers, depuis, pendant, avant
label: après, comme, si, jusqu'à, durant
genitive de: de, d', du
[sense]
chaff: il y a, y a-t-il
asks comment: comment faire, comment puis-je, comment peut-on, comment est-ce que je peux, comment faire pour
asks comment: comment fait-on pour
asks+words combien+temps: combien de temps, pendant combien de temps
numbers 0: zéro
numbers 2..: deux, trois, quatre, cinq, six, sept, huit, neuf, dix, onze, douze
numbers 20: vingt
numbers 30: trente
numbers 100: cent
numbers 1000: mille
numbers: million, millions, milliard, milliards
dates: janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre
dates: aujourd'hui, maintenant
dates: lundi, mardi, mercredi, jeudi, vendredi, samedi, dimanche, demain, hier, soir, matin, prochain, prochaine
dates: dernier, dernière
opposites: augmenter, diminuer, ouvrir, fermer, accepter, refuser, acheter, vendre, meilleur, pire, minimum
opposites: maximum
words email: e-mail, mail, courriel, email
words écrire: écris, rédige, écrire, rédiger
words téléphone: téléphone, portable
[openings]
chaff: peux-tu me dire, pouvez-vous me dire, dis-moi, dites-moi, c'est quoi, explique-moi, expliquez-moi
chaff: explique, s'il te plaît, pourrais-tu
chaff: peux-tu, pouvez-vous, donne-moi, donnez-moi, je voudrais, je veux, je voudrais savoir, pourriez-vous
chaff: qu'est-ce que, qu'est-ce qu'
asks yesno: est-ce que, est-ce qu', est-il, est-elle
asks+modality yesno+peut: puis-je, peut-on, est-ce que je peux
asks+modality yesno+doit: dois-je, doit-on, faut-il
asks comment: que dois-je faire pour, que faire pour, que faut-il faire pour
"""

SPANISH = """
[grammar]
article: el, la, los, las, un, una, unos, unas, mi, mis, este, esta, estos, estas, ese, esa
words: me, nos, nosotros, lo
tense está: está, están, estar
tense ha: ha, he, han
tense tiene: tiene
chaff: yo, es, son, soy, ser, hay, y, e
chaff: que, qué, cuál, cual, cuáles, cuales, se, por favor, favor, hola, gracias
words tú: tú, tu, tus, te, usted, su, sus, ellos, ella, él, le, les
asks por-qué: por qué, porqué
asks cuándo: cuándo, cuando
asks dónde: dónde, donde
asks quién: quién, quien, quiénes
asks cómo: cómo, como
asks cuánto: cuánto, cuánta, cuántos, cuántas, cuanto, cuantos
tense past: fue, fueron, era, eran, había, estaba
tense future: será, serán, hará, habrá
tense if: sería, habría
modality puede: puede, puedo, pueden, podemos, poder, podría
modality debe: debe, debo, deben, debería, deberías
modality tiene-que: tengo que, hay que, tiene que
negation: no, nunca, jamás, sin, nada, nadie, tampoco, ni, no más, ya no
negation ningún: ningún, ninguno, ninguna
quantifiers: todos, todo, toda, todas, cada, algunos, algunas, muchos, mucho, pocos, poco, más, menos, solo
quantifiers: sólo, o, siempre, casi, ambos
quantifiers: exactamente, a veces, excepto, salvo, ya
label: a, al, en, con, para, por, desde, hasta, sobre, entre, contra, según, durante, antes, después, hacia
label: bajo, si
genitive de: de, del
[sense]
asks cómo: cómo puedo, cómo se puede, cómo lo hago, cómo hago
numbers 0: cero
numbers 2..: dos, tres, cuatro, cinco, seis, siete, ocho, nueve, diez, once, doce
numbers 20: veinte
numbers 30: treinta
numbers 100: cien, ciento
numbers 1000: mil
numbers: millón, millones
dates: enero, febrero, marzo, abril, mayo, junio, julio, agosto, septiembre, octubre, noviembre, diciembre, hoy
dates: mañana, ayer, ahora
dates: lunes, martes, miércoles, jueves, viernes, sábado, domingo, próximo, próxima, pasado, pasada
opposites: aumentar, reducir, abrir, cerrar, comprar, vender, mejor, peor, mayor, menor, mínimo, máximo
words coche: coche, carro, auto
words teléfono: teléfono, móvil, celular
words ordenador: ordenador, computadora
[openings]
chaff: qué ciudad es, dime, dígame, explícame, explica, puedes decirme, me puedes decir, quiero, quiero saber
chaff: quisiera, dame, por favor, puede decirme
asks cómo: qué hago para, qué puedo hacer para, qué debo hacer para, cómo hago para
"""

UNITS = """
km:kilometer kilometers kilometre kilometres kilómetro kilómetros kilomètre kilomètres
m:meters metres metros mètres
cm:centimeter centimeters centimetre centimetres zentimeter centímetros centimètres
mm:millimeter millimeters millimetre millimetres millimètres milímetros
mile:miles meilen millas
foot:feet
inch:inches
kg:kilogram kilograms kilo kilos kilogramm
g:gram grams gramm gramos grammes
lb:pounds pound lbs
oz:ounce ounces
ton:tons tonne tonnes tonnen toneladas
l:liter liters litre litres litros
ml:milliliter millilitre milliliters millilitres
°c:celsius
°f:fahrenheit
k:kelvin
%:
$:usd
€:eur
£:gbp
¥:yen jpy
ms:millisecond milliseconds
s:seconds
min:minute minutes minuten minutos
h:hour hours hr hrs stunde stunden heures horas
day:days tag tage tagen jour jours día días
week:weeks woche wochen semaine semaines semana semanas
month:months monat monate mois meses
year:years jahr jahre années año años
kb:kilobyte kilobytes
mb:megabyte megabytes
gb:gigabyte gigabytes
tb:terabyte terabytes
hz:
khz:
mhz:
ghz:
w:watt watts
kw:kilowatt
kwh:
v:volt volts
mph:
km/h:kmh kph
"""
"""Of all languages: the name that a unit goes by, and its others."""

WORDING = """
translate translates translating translated translation proofread proofreading rewrite rewriting rephrase rephrasing
paraphrase reword spell spelled spelling misspelled grammar grammatical grammatically punctuation punctuate pronounce
pronunciation say sentence sentences correct corrected correction typo typos english german french spanish italian
portuguese japanese chinese russian latin
übersetze übersetzen übersetzt übersetzung korrigiere korrigieren umformulieren rechtschreibung grammatik satz aussprechen
englisch deutsch französisch spanisch italienisch
traduis traduire traduisez traduction corrige corriger reformule reformuler orthographe grammaire phrase anglais français
allemand espagnol italien
traduce traducir traduzca traducción corrige corregir reformula reformular ortografía gramática frase inglés francés alemán
español italiano
"""
"""Of all languages: in a question with one of these, every letter may matter."""

ABOUT_WORDS = """
define defines defined defining definition definitions synonym synonyms synonymous antonym antonyms opposite rhyme rhymes
rhyming homophone homophones homonym anagram anagrams palindrome syllable syllables letter letters vowel vowels consonant
consonants character characters plural singular noun nouns verb verbs adjective adverb conjugate conjugation declension
etymology acronym abbreviation abbreviations abbreviate numeral numerals roman digits word words term terms mean means meaning
meanings meant stands connotation prefix suffix hyphenate capitalize capitalise uppercase lowercase
definiere definieren definiert synonyme antonym gegenteil reim reime reimt buchstabiere buchstabieren buchstaben silbe silben
mehrzahl einzahl substantiv abkürzung bedeutet bedeuten bedeutung wort wörter begriff
définis définir définissez définition synonyme contraire antonyme rime rimes épelle épeler épelez lettre lettres syllabe
syllabes pluriel singulier nom verbe abréviation signifie signification mot mots terme
definir defina definición sinónimo sinónimos antónimo contrario rima rimas deletrea deletrear letra letras sílaba sílabas
sustantivo verbo abreviatura significa significado palabra palabras término
"""
"""Of all languages: a question with one of these may be about a word itself, and then no other word says the same."""

WRITING = (
    "write writes writing written express expressed schreibe schreibt geschrieben écrire écris écrit escribe escribir"
)
WRITTEN_AS = "as als comme como"
"""With a word of each: a question about how something is written (`write 3 as a word`)."""
