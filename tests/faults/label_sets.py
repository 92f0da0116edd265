"""Label sets of training data: sound ones, and ones with a defect that a user should hear of."""

SOUND = {
    "words": ["positive", "negative"],
    "numbers": ["0", "1", "2"],
    "signed": ["-1", "0", "1"],
    "chinese": ["正面", "负面"],
    "hierarchy": ["art/film", "art/music", "sport/football"],
    "phrases": ["and/or", "rock|paper", "one, two"],
    "versions": ["1.1", "1.2"],
}
SUSPICIOUS = {  # labels, and those that a warning names
    "dash": (["a", "b", "-"], ["-"]),
    "question marks": (["a", "b", "???"], ["???"]),
    "nan": (["a", "b", "nan"], ["nan"]),
    "None": (["a", "b", "None"], ["None"]),
    "NULL": (["a", "b", "NULL"], ["NULL"]),
    "unlabelled number": (["0", "1", "2", "-1"], ["-1"]),
    "case": (["Positive", "positive", "negative"], ["Positive", "positive"]),
    "inner white space": (["very good", "very  good", "bad"], ["very good", "very  good"]),
    "leading zero": (["1", "01", "2"], ["1", "01"]),
    "decimal commas": (["1,0", "2,5", "0,5", "1,5"], ["1,0", "2,5", "0,5", "1,5"]),
    "decimals": (["1.5", "1.50", "2"], ["1.5", "1.50"]),
    "lists": (["['sport', 'news']", "['sport']", "['art']"], ["['sport', 'news']"]),
    "full width": (["１", "1", "2"], ["１", "1"]),
    "full width letters": (["ＰＯＳ", "pos", "neg"], ["ＰＯＳ", "pos"]),
    "composed": (["caf\u00e9", "cafe\u0301", "bar"], ["caf\u00e9", "cafe\u0301"]),
    "invisible": (["spam\u200b", "spam", "ham"], ["spam\u200b", "spam"]),
}
for _separator in (",", ", ", "|", ";", " / ", "、"):
    _joined, _reversed = _separator.join(["sport", "news"]), _separator.join(["news", "sport"])
    SUSPICIOUS[f"permuted by {_separator!r}"] = ([_joined, _reversed, "art"], [_joined, _reversed])
    SUSPICIOUS[f"parts by {_separator!r}"] = (["sport", "news", _joined], [_joined])

# What files may have for a label, and the class that it is.
NUMERALS = {"1": "1", "1.0": "1", "1.00": "1", "0.0": "0", "-1.0": "-1", "10.0": "10", "100": "100"}
TEXTS = ["01", "01.0", "1.5", "1.10", "1.", ".0", "v1.0", "1.0.0", "00", "1e0", "+1", "1.0 a"]
