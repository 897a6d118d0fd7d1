"""Texts of any script are found by a part of them, and not by texts about something else."""

import sqlite3
import unicodedata

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.memory.situations.phrases import head_noun, words
from hardwon.runtime.guidance.rendering import Visible

SENTENCES = {
    "Chinese": ("打开厨房的抽屉之前要先找到蓝色的钥匙。", "厨房的抽屉", "今天下午三点在公司开会讨论预算"),
    "traditional": ("伺服器重新啟動後必須清除快取資料", "清除快取資料", "明天的火車票已經賣完了"),
    "Japanese": ("台所の引き出しを開けるには青い鍵が必要です", "引き出しを開ける", "明日の会議は東京で行われる予定だ"),
    "Korean": ("부엌서랍을열려면파란열쇠가필요합니다", "파란열쇠가", "내일 회의는 서울에서 열린다"),
    "Thai": ("ต้องใช้กุญแจสีน้ำเงินเพื่อเปิดลิ้นชักในครัว", "กุญแจสีน้ำเงิน", "พรุ่งนี้มีประชุมที่กรุงเทพ"),
    "Khmer": ("ត្រូវការកូនសោពណ៌ខៀវដើម្បីបើកថតផ្ទះបាយ", "កូនសោពណ៌ខៀវ", "ថ្ងៃស្អែកមានការប្រជុំនៅភ្នំពេញ"),
    "full width": (
        "Ｒｅｓｔａｒｔ ｔｈｅ ｒｏｕｔｅｒ ４２ ｔｗｉｃｅ",
        "restart router 42",
        "water the plants on monday",
    ),
    "glued": ("请用Python运行migrate脚本再重启", "用Python运行migrate", "天气很好去公园散步"),
    "German": ("Die Hauptstraße ist gesperrt", "HAUPTSTRASSE GESPERRT", "der Kuchen schmeckt gut"),
    "capitals of Georgian": ("ᲛᲐᲢᲐᲠᲔᲑᲔᲚᲘ ᲗᲑᲘᲚᲘᲡᲨᲘ ᲒᲕᲘᲐᲜ ᲩᲐᲛᲝᲓᲘᲡ", "გვიან ჩამოდის", "დღეს კარგი ამინდია"),
    "emoji": ("deploy 🚀🔥 worked", "🚀🔥", "🐢🌧"),
    "emoji with joiners": ("family plan 👨‍👩‍👧 chosen", "👨‍👩‍👧", "🏔 🎻"),
    "emoji with a tone": ("approve with 👍🏽 please", "approve 👍", "🏔 🎻"),
    "emoji as text": ("I ❤️ this shop", "I ❤ this", "☎ ✈"),
    "half-width kana": ("ﾌﾟﾘﾝﾀｰを再起動してください", "プリンターを再起動", "明日の会議は東京で行われる予定だ"),
    "Arabic": ("أَعِدْ تشغيل المُوَجِّه قبل الاتصال", "اعد تشغيل الموجه", "الطقس جميل اليوم في المدينة"),
    "Hebrew": ("הַפְעֵל מחדש את הַנַּתָּב", "הפעל את הנתב", "מזג האוויר יפה היום"),
    "Hindi": ("रसोई की दराज़ खोलने से पहले चाबी ढूँढें", "दराज खोलने चाबी", "आज मौसम बहुत अच्छा है"),
    "Bengali": ("রান্নাঘরের ড্রয়ার খোলার আগে চাবি খুঁজুন", "ড্রয়ার খোলার আগে চাবি", "আজ আবহাওয়া খুব সুন্দর"),
    "Tamil": ("சமையலறை டிராயரைத் திறக்கும் முன் சாவியைக் கண்டுபிடி", "முன் சாவியைக் கண்டுபிடி", "இன்று வானிலை நன்றாக உள்ளது"),
    "Turkish": ("Kapıyı AÇMADAN önce IŞIĞI kapat", "açmadan önce ışığı kapat", "bugün hava çok güzel"),
    "Turkish capital": ("İstanbul iline git", "istanbul iline", "bugün hava çok güzel"),
    "decomposed Korean": (
        unicodedata.normalize("NFD", "부엌 서랍을 열려면 열쇠가 필요합니다"),
        "서랍을 열쇠가",
        "내일 회의는 서울에서",
    ),
    "Greek": ("Άνοιξε το συρτάρι με το κλειδί", "ΤΟ ΣΥΡΤΑΡΙ ΜΕ ΚΛΕΙΔΙ", "ο καιρός είναι καλός σήμερα"),
    "Russian yo": ("Заказ отменён, платёж возвращён", "отменен платеж", "сегодня хорошая погода"),
    "Russian": ("Открой ящик синим ключом", "ящик синим КЛЮЧОМ", "сегодня хорошая погода"),
    "Georgian": ("გახსენი უჯრა ლურჯი გასაღებით", "უჯრა ლურჯი", "დღეს კარგი ამინდია"),
    "Amharic": ("መሳቢያውን በሰማያዊ ቁልፍ ክፈት", "በሰማያዊ ቁልፍ", "ዛሬ አየሩ ጥሩ ነው"),
    "Myanmar": ("မီးဖိုချောင်အံဆွဲကိုဖွင့်ရန်သော့လိုသည်", "အံဆွဲကိုဖွင့်ရန်", "ယနေ့ရာသီဥတုကောင်းသည်"),
    "Lao": ("ຕ້ອງໃຊ້ກະແຈສີຟ້າເພື່ອເປີດລິ້ນຊັກ", "ກະແຈສີຟ້າ", "ມື້ນີ້ອາກາດດີຫຼາຍ"),
    "Balinese": ("ᬲᬾᬃᬯᬾᬃ ᬧᬸᬦᬶᬓᬶ", "ᬲᬾᬃᬯᬾᬃ", "ᬢᬫᬦ᭄ ᬩᬕᬸᬲ᭄"),
    "Yi": ("ꆈꌠꁱꂷꉬꌠ", "ꁱꂷꉬ", "ꐎꑆ"),
    "zero-width space in a word": ("flush the ca\u200bche first", "flush cache", "water the plants on monday"),
    "zero-width space in Chinese": ("备份\u200b数据库\u200b以后升级", "备份数据库", "明天去公园散步"),
    "soft hyphens": ("the pay\u00adroll led\u00adger is final", "payroll ledger", "water the plants on monday"),
    "soft hyphen in the query": ("approve the invoice batch", "in\u00advoice ba\u00adtch", "water plants on monday"),
    "byte order mark": ("rotate\ufeff log\ufefffiles weekly", "rotate logfiles", "water the plants on monday"),
    "direction marks": ("\u202bבדוק\u202c \u200fיומן\u200f", "בדוק יומן", "מזג האוויר יפה היום"),
    "final sigma": ("ο οδηγος ανοιξε τους δρομους", "ΟΔΗΓΟΣ ΔΡΟΜΟΥΣ", "καλο καλοκαιρι σε ολες"),
    "keycaps": ("press 1️⃣ then 2️⃣ to confirm", "1️⃣ confirm", "water plants on monday"),
    "flag": ("ship to 🏳️‍🌈 and 🇩🇪", "🇩🇪 🏳️‍🌈", "🏔 🎻"),
    "Arabic with long letters": ("أغلق النافـــذة ثم البـــاب", "اغلق النافذة", "وصل القطار متأخرا أمس"),
    "Arabic endings": ("إلى المستشفى بالسيارة", "الي المستشفي بالسياره", "وصل القطار متأخرا أمس"),
    "Arabic digits": ("أدخل الرمز ٤٢٥٦ ٧٧", "الرمز 4256 77", "وصل القطار متأخرا أمس"),
    "Persian": ("می\u200cخواهم کلید بگیرم", "میخواهم كليد", "هوا امروز خوب است"),
    "Hindi with joiners": ("क्\u200dष पत्र भेजो", "क्ष पत्र भेजो", "आज मौसम बहुत अच्छा है"),
    "Hebrew hyphen": ("בית־ספר סגור מחר", "בית ספר", "מזג האוויר יפה היום"),
    "Thai vowel in parts": ("น้ําดื่มเย็นอยู่ในตู้", "น้ำดื่มเย็นอยู่", "พรุ่งนี้มีประชุมที่กรุงเทพ"),
    "composed": (
        unicodedata.normalize("NFC", "Prüfe die Größe"),
        unicodedata.normalize("NFD", "prüfe größe"),
        "so geht es",
    ),
    "decomposed": (
        unicodedata.normalize("NFD", "Mở ngăn kéo"),
        unicodedata.normalize("NFC", "mở ngăn kéo"),
        "trời đẹp quá",
    ),
    "kana in parts": (unicodedata.normalize("NFD", "デプロイのログ"), "デプロイ", "明日の会議は東京で行われる"),
    "Tibetan": ("སྒམ་ཁ་ཕྱེ་བར་ལྡེ་མིག་དགོས།", "ལྡེ་མིག་དགོས", "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library with all sentences."""
    with ExperienceLibrary.open(tmp_path_factory.mktemp("scripts") / "library.db", "hashing") as library:
        for sentence, _, _ in SENTENCES.values():
            library.add(Item("insight", sentence))
        yield library


@pytest.mark.parametrize("script", SENTENCES)
@pytest.mark.parametrize("how", ["text", "dense"])
def test_a_part_finds_its_sentence(library, script, how):
    sentence, part, _ = SENTENCES[script]
    assert library.search(part, how=how)[0].what.title == sentence


@pytest.mark.parametrize("script", SENTENCES)
def test_a_text_about_something_else_is_not_similar(script):
    sentence, part, other = SENTENCES[script]
    vectors = HashingEmbedder().embed([sentence, part, other])
    assert vectors[0] @ vectors[1] > 0.35
    assert abs(vectors[0] @ vectors[2]) < 0.2


def test_texts_that_were_never_stored_are_not_similar(library):
    """No stored text is near one about something else."""
    others = [other for _, _, other in SENTENCES.values()]
    assert max(library.search(other, how="dense")[0].similarity or 0.0 for other in others) < 0.5


def test_a_task_is_similar_to_one_with_a_part_of_it(tmp_path):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        for task in ("今天下午三点开会讨论预算", "打开厨房的抽屉拿出钥匙", "给客户退款"):
            step = Step(State("", task=task), "wait", State("", task=task), Diagnosis(True), 1.0, 0)
            library.record(Trajectory(task, (step,), success=True, score=1.0))
        hits = library.recall(State("", task="厨房的抽屉"), level="task", k=1).steps
        assert [getattr(hit.what, "pre", State("")).task for hit in hits] == ["打开厨房的抽屉拿出钥匙"]


def test_an_item_beside_the_library_is_found_by_a_part(library):
    """As one in the library is, whose words are indexed."""
    beside = Item("insight", "关上卧室的窗户以后再锁好大门", id="x")
    assert "x" in {hit.what.id for hit in library.recall(State("窗户", task="窗户"), beside=beside).items}


@pytest.mark.parametrize("how", ["text", "dense", "hybrid"])
@pytest.mark.parametrize("query", ["柜", "退", "単", "열"])
def test_one_character_finds_the_runs_that_contain_it(tmp_path, query, how):
    with ExperienceLibrary.open(tmp_path / "library.db", "hashing") as library:
        library.add(Item("insight", "退货前先查订柜"))
        library.add(Item("insight", "簡単な手順"))
        library.add(Item("insight", "서랍을 열려면"))
        best = library.search(query, how=how)[0]
        assert query in getattr(best.what, "title", "")
        assert best.similarity > 0.9


SHORT = {
    "Thai": ("ครัว", "กุญแจ", "น้ำ", "เปิด", "ใช้", "ลิ้น"),
    "Khmer": ("ផ្ទះ", "បាយ", "បើក", "សោព"),
    "Lao": ("ຟ້າ", "ເປີດ", "ຊັກ", "ແຈສີ"),
    "Myanmar": ("ရန်", "ဖွင့်", "ချောင်", "မီး", "သော့"),
}


@pytest.mark.parametrize("script", SHORT)
def test_a_short_word_finds_the_runs_that_contain_it(tmp_path, script):
    """It has fewer letters than what stands for a word there; a word of one letter may be a part of others, too."""
    sentence, _, other = SENTENCES[script]
    with ExperienceLibrary.open(tmp_path / "library.db", "hashing") as library:
        library.add(Item("insight", sentence))
        step = Step(State(sentence, task="t"), "wait", State(sentence, task="t"), Diagnosis(True), 1.0, 0)
        library.record(Trajectory("t", (step,), success=True, score=1.0))
        library.add(Item("insight", other))
        for query in SHORT[script]:
            assert query in sentence
            hits = library.search(query, k=9, how="text")
            assert sentence in [getattr(hit.what, "title", "") for hit in hits]
            assert {type(hit.what) for hit in hits} == {Item, Step}
        assert library.admin.verify() == []


def test_a_hint_shows_a_value_that_is_a_part_of_a_sentence():
    visible = Visible(State("打开厨房的抽屉，然后关灯。", signature="-"))
    assert visible.shows("抽屉")
    assert not visible.shows("窗户")


def test_words_of_scripts_without_spaces_are_pairs_of_characters():
    assert words("用Python打开抽屉 🚀") == ("用", "python", "打开", "开抽", "抽屉", "u1f680")
    assert words("Ｄｏｏｒ １２") == ("door", "12")
    assert words("Straße") == words("STRASSE") == ("strasse",)
    assert head_noun("red STRASSE") == head_noun("red Straße")


def forget_scripts(path, version):
    """Make a library look like one of an older version: without words beside the texts, with vectors of other words."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'keys'", (str(version),))
        connection.execute("UPDATE items_text SET text = substr(text, 1, instr(text, char(10, 31)) - 1)")
        connection.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
    connection.close()


def record(path, sentence):
    with ExperienceLibrary.open(path, "hashing") as library:
        step = Step(State(sentence, task="t"), "等待", State(sentence, task="t"), Diagnosis(True), 1.0, 0)
        library.record(Trajectory("t", (step,), success=True, score=1.0))
        library.add(Item("insight", sentence))
        assert library.search(sentence[:5], how="dense")
        assert library.recall(State(sentence, task="t"))


def test_an_older_library_finds_its_texts(tmp_path):
    """The first opening computes the words and vectors of texts that are not ASCII."""
    path, (sentence, part, _) = tmp_path / "old.db", SENTENCES["Chinese"]
    record(path, sentence)
    forget_scripts(path, 7)
    with ExperienceLibrary.open(path) as library:
        assert getattr(library.search(part, how="text")[0].what, "title", "") == sentence
        assert library.search(part, how="dense")[0].similarity > 0.3
        assert library.admin.verify() == []


@pytest.mark.parametrize("kind", ["items", "states"])
def test_an_older_library_that_is_read_only_is_not_searched_by_its_old_vectors(tmp_path, caplog, kind):
    path, (sentence, part, other) = tmp_path / "old.db", SENTENCES["Chinese"]
    record(path, sentence)
    record(path, "open the drawer with a key")
    forget_scripts(path, 7)
    with sqlite3.connect(path) as connection:  # vectors of the old embedder say that both are about something else
        vector = HashingEmbedder().embed([other])[0].tobytes()
        first = "(SELECT min(ref) FROM vectors AS others WHERE others.kind = vectors.kind)"
        connection.execute(f"UPDATE vectors SET vector = ? WHERE ref = {first}", (vector,))
    connection.close()
    with ExperienceLibrary.open(path, read_only=True) as library:
        index = library._file.search.index(kind)
        embed = HashingEmbedder().embed
        assert index.search(embed([part])[0], 1)[0][1] > 0.3
        assert index.search(embed([other])[0], 1)[0][1] < 0.25
    assert "is read-only: some of its experience is not found" in caplog.text
