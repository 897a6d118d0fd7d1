"""Recognize a short message in another language than English that says that a call failed.

Services answer in the language of their users. What counts are the words of the sentence: one that means failure,
or a negation with one for what was asked. Words that clear the call, such as "fixed", outweigh both. Languages with
spaces share one set of words, without accents and endings; the others have patterns, in which most words for failure
have to end a clause.
"""

import re
import unicodedata

from hardwon.memory.patterns import compile_late


def _fold(text: str) -> str:
    text = text.lower().replace("ß", "ss")
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter)[0] != "M")


def _cut(word: str) -> str:
    """Return a word without its inflection."""
    return word[: 6 if len(word) > 7 else 5]


def _stems(words: str) -> frozenset[str]:
    return frozenset(map(_cut, _fold(words).split()))


_ERRORS = _stems("""
    fehler errores erreur errore erro erros fout fouten błąd błędu hata hatası ошибка ошибки помилка fel feil fejl virhe
    chyba chyby chybě hiba eroare σφάλμα שגיאה خطأ خطا त्रुटि lỗi kesalahan
""")
"""Words for an error: they count at the end of a clause, before a code and beside one of the next set."""
_REPORTED = _stems("""
    aufgetreten producido produjo ocurrido ocurrió survenue produite verificato ocorreu houve opgetreden wystąpił oluştu
    meydana произошла сталася inträffade opstod oppstod tapahtui došlo történt apărut παρουσιάστηκε אירעה حدث xảy
    terjadi unerwarteter inesperado beim bei ist in al ao lors durante nel di interne interno interna inesperado del при
    під podczas przy bij med serwera сервера sunucu
""")
"""Words that stand beside one for an error in a report of it."""
_FAILED = _stems("""
    fehlgeschlagen abgelehnt verweigert gesperrt abgebrochen ungültig ungültige ungültiger schiefgelaufen abgelaufen
    zeitüberschreitung unbekannter fehlende falsches gescheitert falsch fehlt unzureichend denegado negado rechazada
    insuficiente agotado inválido caducado incorrecta incorrecto falla falló fallo falhou falha esgotado expirado
    recusado excedido refusé refusée interdit échec introuvable insuffisant invalide expirée échoué dépassé impossible
    bloqué manquant manque incorrect negato rifiutato insufficiente impossibile scaduto inesistente errata errato
    mancante fallita geweigerd onjuist misgegaan mislukt ongeldig verlopen odmowa odrzucona odrzucono przekroczono
    nieprawidłowy nieudana wygasła niepowodzenie engellendi reddedildi bulunamadı yetersiz başarısız geçersiz yanlış
    yetkiniz ters отказано запрещен недостаточно превышено неверный неверная неправильный отклонён истекла истёк
    невозможно недействителен заборонено недостатньо nekad nægtet nektet estetty odepřen nenalezena neplatný zamítnuto
    megtagadva érvénytelen interzis refuzat ditolak gagal रिजेक्ट अपर्याप्त विफल अस्वीकृत गलत अमान्य فشل فشلت رفض مرفوض
    اشتباه ناموفق נדחתה נכשל נכשלה απορρίφθηκε απέτυχε chối misslyckades mislykkedes
""")
"""Words that mean failure by themselves."""
_NEGATIONS = frozenset(_fold("""
    nicht kein keine keinen keiner nie no sin ne n pas non aucun aucune nenhum nao 0 sem nessun nessuna senza niet geen
    brak bez yok не нет нема немає без inte ingen ikke ei ne neni nem nu δεν לא لا غير ليس نیست नहीं không tidak não
    falta
""").split())  # fmt: skip
_ASKED = _stems("""
    gefunden möglich erlaubt gestattet berechtigt berechtigung existiert genügend ausreichend konnte konnten kann
    verbindung zugriff autorisiert erkannt encontró encontrado encontrada existe pudo pudieron puede podido permite
    permitido permiso autorizado posible responde suficiente acceso trouvé trouvée autorisé autorisation possible répond
    reconnu accès droits trovato trovata trovati esiste risponde riuscita riuscito autorizzato possibile permesso foi
    encontrado autorizado permissão possível existem gevonden bestaat toegestaan verbinding toegang znaleziono udało
    można uprawnień dostępu istnieje poszło izin yetki найден найдена найдено удалось авторизован отвечает существует
    доступа прав выполнена знайдено вдалося пішло так доступу hittades tillåtet fundet tilladt funnet tillatt löytynyt
    nalezen povoleno található găsit βρέθηκε נמצאה מורשה موجود صحيح صحيحة كاف صلاحية مصرح یافت मिला अनुमति tìm thấy đủ
    quyền ditemukan diizinkan valido прошёл parametro parameter разрешено
""")
"""Words for what was asked, with which a negation means failure."""
_PHRASES = tuple(map(_fold, (
    "serverfehler", "thất bại", "salió mal", "deu errado", "andato storto", "anmeldung erforderlich", "inicie sesión",
    "connectez-vous", "ters gitti",
)))  # fmt: skip
_CLEARED = _stems("""
    behoben korrigiert erfolgreich erfolgreiche bestätigt ergebnisse treffer fehlerfrei korrekturen korrektur corregido
    corregida resuelto correctamente confirmada exitosa resultados resuelta éxito corrigée résolue succès confirmée
    résultat résultats corretto risolto successo confermata risultati corrigido resolvido sucesso confirmado opgelost
    resultaten naprawiony wyników sukces düzeltildi sonuç исправлена исправлен успешно подтвержден результатов
    виправлена успішно rättat løst opraveno javítva gelungen résultat berhasil hasil सफल أخطاء
""")
_ENGLISH = frozenset(["the", "to", "are", "been", "you", "your", "they", "this"])
_WORD = compile_late(r"[^\W\d_]+|0")
_END = r"(?:了|啦)?(?=\W|\Z)"
_UNSPACED = compile_late(
    rf"(?:失败|失敗|错误|錯誤|出错|出錯|超时|超時|逾時|不足|不存在|过期|過期|异常|異常|无效|無效|不正确|"
    rf"被拒绝|被拒絕|未授权|"
    rf"未授權|未登录|不可用|被取消|冻结|繁忙){_END}|缺少|"
    r"找不到(?!北)|(?:未|没有|沒有)找到|(?:查|搜)无此|无法|無法|(?:没有|沒有|无|無)(?:权限|權限)|(?:拒绝|拒絕)(?:访问|存取)|(?:错误|錯誤)\s*[:：\d]|"
    r"请先登录|請先登入|(?:稍后|稍後|稍候)(?:再试|再試|重试|重試)|"
    r"見つかりません|見つかりませんでした|できません|に失敗(?!学)|失敗しました|エラー(?:が発生|です|\W|\Z)|"
    r"拒否されました|権限がありません|"
    r"タイムアウト(?:しました|\W|\Z)|不足しています|不正な|ログインが必要|存在しません|存在しない|無効です|"
    r"許可されていません|期限切れ|期限が切れ|正しくありません|該当する\w{1,12}ありません|メンテナンス中|"
    r"오류(?:가 발생|입니다|\W*\Z|\s*[:!])|실패(?:했|하였|\W*\Z)|(?:찾을|할|연결할|처리할) 수 없|권한이 없|거부되|"
    r"초과되|초과했|부족합니다|잘못[된되]|"
    r"존재하지 않|만료되|일치하지 않|누락되|유효하지 않|로그인이 필요|"
    r"ข้อผิดพลาด|ไม่พบ|ไม่มีสิทธิ์|ล้มเหลว|ไม่สามารถ|ไม่ถูกต้อง|หมดอายุ"
)
_UNSPACED_CLEARED = compile_late(
    r"(?:没有|沒有|无|無|未)(?:发现|發現|任何|出现)?(?:错误|錯誤|失败|失敗|异常)|\d ?[个個件]|"
    r"已(?:修复|修復|解决|解決|处理)|成功|结果|結果|指南|日志|"
    r"エラー(?:は|も)?(?:あり|発生して|なし|ログ)|修正|오류[가는도]? ?없|수정되|해결되|성공|결과|ไม่มีข้อผิดพลาด|สำเร็จ"
)
_IS_UNSPACED = compile_late(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def is_foreign_failure(sentence: str) -> bool:
    """Return whether a sentence in one of these languages says that a call failed."""
    if _IS_UNSPACED.search(sentence):
        return _UNSPACED.search(sentence) is not None and _UNSPACED_CLEARED.search(sentence) is None
    folded = sentence.lower() if sentence.isascii() else _fold(sentence)
    words = _WORD.findall(folded)
    stems = list(map(_cut, words))
    if not _ENGLISH.isdisjoint(words) or not _CLEARED.isdisjoint(stems):
        return False
    is_negated = not _NEGATIONS.isdisjoint(words)
    if errors := [word for word, stem in zip(words, stems, strict=True) if stem in _ERRORS]:
        is_english = errors[0] in ("error", "errors")
        if errors[0] in words[:3] and re.search(rf"\b{errors[0]}\s*[:!\d]", folded) and not is_english:
            return True
        is_last = errors[0] == words[-1] and not is_english
        return not is_negated and (is_last or not _REPORTED.isdisjoint(stem for stem in stems if stem != "in"))
    return (
        not _FAILED.isdisjoint(stems)
        or (is_negated and not _ASKED.isdisjoint(stems))
        or any(phrase in folded for phrase in _PHRASES)
    )
