"""Recognize a short message in another language than English that says that a call failed.

Services answer in the language of their users. A message is a sentence or two; a document about failures is longer, and
one that says that there were none begins otherwise.
"""

import re

_BEGINNINGS = (
    # German
    r"(?:es ist |ein |interner )*(?:unerwarteter )?fehler(?:\s*[:!]| beim | bei | ist | in | aufgetreten|\W*\Z)|"
    r"(?:zugriff|berechtigung|erlaubnis) (?:wurde )?verweigert|keine berechtigung|ungültige?[rs]? |"
    r"(?:\S+ ){1,6}(?:nicht gefunden|fehlgeschlagen|existiert nicht|nicht (?:erlaubt|gestattet|möglich|"
    r"berechtigt))\W*\Z|"
    r"(?:\S+ ){0,5}konnten? nicht ",
    # Spanish and Portuguese
    r"(?:se (?:ha )?(?:producido|produjo) un |ocurrió un |ocorreu um |houve um )?erro?r? ?(?:\s*[:!]|al |ao |"
    r"en |inesperado|\W*\Z)|"
    r"(?:acceso|permiso|acesso) (?:denegado|negad[ao])|permissão negada|(?:la |el |a |o )?(?:\S+ ){0,4}(?:falló|"
    r"falhou)\W*\Z|"
    r"no se (?:pudo|pudieron|encontr|ha podido|puede|permite)|não (?:foi possível|encontrad|é possível|"
    r"autorizad|permitid)|"
    r"falha (?:ao|na|no|em)\b|fallo (?:al|en)\b|(?:\S+ ){1,5}no (?:encontrad[ao]|existe|permitid[ao])\W*\Z",
    # French and Italian
    r"(?:une? |l')?(?:erreur|errore)(?: (?:est survenue|s'est produite|lors d|durante|nel|di |interne))|"
    r"échec (?:de|du|lors)|"
    r"(?:erreur|errore)\s*(?:[:!]|\Z)|(?:accès|permission|autorisation) refusée?|accesso negato|permesso negato|"
    r"impossible d|impossibile |si è verificato un errore|(?:\S+ ){1,5}(?:introuvable|n'existe pas|"
    r"non trovat[aoei]|a échoué)\W*\Z",
    # Dutch, Polish, Turkish
    r"er is een fout|fout\s*:|toegang geweigerd|odmowa dostępu|nie (?:znaleziono|udało się|można)|wystąpił błąd|"
    r"erişim (?:engellendi|reddedildi)|(?:\S+ ){1,4}bulunamadı\W*\Z|(?:bir )?hata (?:oluştu|meydana)",
    # Russian and Ukrainian
    r"(?:произошла |неизвестная |внутренняя )?ошибка(?:\s*[:!]| при |\W*\Z)|помилка(?:\s*[:!]| при )|"
    r"не (?:удалось|найден|вдалося|знайдено)|(?:отказано в доступе|доступ (?:запрещ[её]н|заборонено))|"
    r"(?:\S+ ){1,4}(?:не найден[ао]?|не существует)\W*\Z|невозможно ",
    # Chinese, Japanese, Korean: no spaces between words
    r"(?!没有|沒有|無|无(?:错|失)|\d)[^\s\d]{0,12}(?:失败|失敗|出错|出錯|超时|超時|逾時)(?:\W|了|\Z)|(?:发生|發生)(?:了)?(?:错误|錯誤)|"
    r"(?:权限|權限|余额|餘額)不足|(?:未|没有|沒有)找到|找不到|(?:无法|無法)|(?:拒绝|拒絕)(?:访问|存取)|[^\s\d]{0,8}不存在\W*\Z|"
    r"(?:没有|沒有|无|無)(?:权限|權限)|(?:错误|錯誤)\s*[:：!！]|"
    r"[^\s\d]{0,14}(?:エラーが|に失敗|失敗しました|見つかりません|できません(?:でした)?|許可されていません|拒否されました)|"
    r"(?:\S+ ){0,3}\S{0,10}(?:오류가|실패했|실패하였|찾을 수 없|권한이 없|거부되|할 수 없)",
    # Arabic and Hindi
    r"(?:حدث )?خطأ(?:\s*:| في |\W*\Z)|فشل |تم رفض |غير مصرح|लोड नहीं|त्रुटि|अनुमति (?:नहीं|अस्वीकृत)|विफल",
)
# In lower case: a pattern that ignores case takes six times as long.
_FAILURE = re.compile(rf"[^\w]{{0,12}}(?:{'|'.join(_BEGINNINGS)})")


def is_foreign_failure(text: str) -> bool:
    """Return whether a short message in one of these languages says that a call failed."""
    return _FAILURE.match(text.lower()) is not None
