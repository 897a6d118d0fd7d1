"""Patterns for injected instructions in other languages than English, without accents.

`instructions` calls this module for each text, with and without accents. A pattern runs only if one of its word stems
occurs, so English text costs almost nothing.
"""

import re

from hardwon.memory.patterns import compile_late

_GERMAN = {
    "an order to forget orders": (
        r"\b(?:ignorier\w*|missacht\w*|vergiss\w*|vergesst|vergessen\s+sie|ubergeh\w*|umgeh\w*|verwirf\w*|beacht\w*\s+"
        r"(?:nicht|keine))\b.{0,60}?(?:anweisung|instruktion|befehl|vorgabe|richtlinie|vorschrift|\bregel|systemprompt)"
    ),
    "a new role or prompt": (
        r"\bdu\s+bist\s+(?:jetzt|nun|ab\s+(?:jetzt|sofort))\b|\bsie\s+sind\s+(?:jetzt|nun|ab\s+(?:jetzt|sofort))\s+ein"
        r"|\bab\s+(?:jetzt|sofort)\s+(?:bist|musst|sollst|wirst|antworte|handel|befolg)\w*|\bverhalte?\s+dich\s+(?:wie|als)\b"
        r"|\b(?:neue|geheime|aktualisierte)\s+(?:system)?(?:anweisung|instruktion)|\bsystem(?:nachricht|anweisung)\b"
    ),
    "a demand for secrecy": (
        r"\b(?:sag|erzahl|verrat|informier|erwahn|teil)\w*\b.{0,40}\b(?:nutzer|benutzer|anwender|kunde|niemand)\w*\b.{0,30}"
        r"\b(?:nichts|nicht|davon)\b|\b(?:sag|erzahl|verrat|erwahn)\w*\b.{0,20}\bniemand\w*\b"
    ),
    "a demand for secrets": (
        r"\b(?:schick|send|uberweis|ubermitt|weiterleit|leite|kopier|lade)\w*\b.{0,80}(?:passw|zugangsdaten|geheim|"
        r"schlussel|kundendaten|\bgeld\b|guthaben|datenbank|alle\s+daten|token).{0,60}\b(?:an|nach|zu|auf)\b"
    ),
    "an order": (
        r"\b(?:du\s+(?:musst|sollst)|sie\s+mussen)\b.{0,80}\b(?:aufrufen|ausfuhren|senden|schicken|uberweisen|loschen|"
        r"erstatten|weiterleiten|genehmigen|befolgen|gehorchen)\b"
    ),
}
_FRENCH = {
    "an order to forget orders": (
        r"\b(?:ignor|oubli|neglig|contourn|desobe)\w*\b.{0,60}?\b(?:instruction|consigne|regle|directive|ordre)s?\b"
        r"|\bne\s+(?:tiens|tenez)\s+(?:pas|plus|aucun)\b.{0,20}compte\b|\bfai(?:s|tes)\s+abstraction\b"
    ),
    "a new role or prompt": (
        r"\b(?:tu\s+es|vous\s+etes)\s+(?:maintenant|desormais|dorenavant)\b|\b(?:desormais|dorenavant|a\s+partir\s+de\s+"
        r"maintenant)\b.{0,12}\b(?:tu|vous)\b|\b(?:nouvelles?|secretes?)\s+(?:instructions?|consignes?)\b"
        r"|\b(?:comporte-toi|agis|agissez)\s+(?:comme|en\s+tant)\b|\bmessage\s+systeme\b"
    ),
    "a demand for secrecy": (
        r"\bne\s+(?:\w+\s+)?(?:dis|dites|reve|mention|inform|parl|previen|preven|averti)\w*\b.{0,60}\b(?:utilisateur|client|"
        r"personne|humain)\w*|\bsans\s+(?:le\s+dire|prevenir|informer|avertir)\b"
    ),
    "a demand for secrets": (
        r"\b(?:envo|transf|vire|transm|copi)\w*\b.{0,80}\b(?:mots?\s+de\s+passe|identifiants?|jetons?|cles?|secrets?|argent|"
        r"donnees|fonds|solde|base\s+de\s+donnees)\b.{0,60}\b(?:a|vers|au|aux)\b"
    ),
    "an order": (
        r"\b(?:tu\s+dois|vous\s+devez)\b.{0,30}\b(?:appeler|executer|envoyer|virer|transferer|rembourser|supprimer|approuver|"
        r"repondre|obeir)\b"
    ),
}
_SPANISH = {  # and Portuguese, Italian
    "an order to forget orders": (
        r"\b(?:ignor|olvid|descart|desobede|esquec|desconsider|dimentic|trascur)\w*\b.{0,60}?\b(?:instrucc?ion|instruco|regla|regra|"
        r"regol|orden|ordin|indicacion|directri|diretri|direttiv|norma|istruzion)\w*|\bno\s+(?:sigas|hagas\s+caso)\b"
    ),
    "a new role or prompt": (
        r"\b(?:ahora\s+eres|eres\s+ahora|agora\s+voce\s+e|voce\s+agora\s+e|ora\s+sei|adesso\s+sei|sei\s+(?:ora|adesso))\b"
        r"|\b(?:a\s+partir\s+de\s+(?:ahora|agora)|desde\s+ahora|de\s+ahora\s+en\s+adelante|d'ora\s+in\s+poi)\b.{0,30}\b(?:eres|debes|"
        r"respond|actua|tienes|voce|sei|devi)\w*|\b(?:actua|comportate)\s+como\b|\b(?:nuevas?|novas?|nuove?)\s+(?:instruc|istruz)\w+"
        r"|\bmensaje\s+del?\s+sistema\b"
    ),
    "a demand for secrecy": (
        r"\bno\s+(?:se\s+lo\s+|le\s+|les\s+|lo\s+)?(?:dig|inform|mencion|revel|avis|cuent)\w*\b.{0,40}\b(?:usuari|client|nadie|person)\w*"
        r"|\bnao\s+(?:diga|conte|informe|revele)\w*\b.{0,40}\b(?:usuari|client|ningu)\w*"
        r"|\bnon\s+(?:dire|rivelare|informare)\b.{0,40}\b(?:utente|client|nessun)\w*"
    ),
    "a demand for secrets": (
        r"\b(?:envi|mand|transfi|transfer|reenvi|copia|invia)\w*\b.{0,80}\b(?:contrasen|credencial|clave|token|secreto|dinero|"
        r"datos|fondos|base\s+de\s+datos|senha|dinheiro|password)\w*\b.{0,60}\b(?:a|al|hacia|para)\b"
    ),
    "an order": (
        r"\b(?:debes|tienes\s+que|voce\s+deve|devi)\b.{0,30}\b(?:llamar|ejecutar|enviar|transferir|reembolsar|borrar|eliminar|"
        r"aprobar|responder|obedecer|chamar|inviare|eseguire)\b"
    ),
}
_RUSSIAN = {
    "an order to forget orders": (
        r"\b(?:забуд|игнорир|не\s+обраща|отмен|наруш)\w*.{0,50}"
        r"(?:инструкц|правил|указан|приказ)\w*"
    ),
    "a new role or prompt": (
        r"\b(?:ты|вы)\s+теперь\b|\bтеперь\s+(?:ты|вы)\b|\bс\s+этого\s+момента\s+(?:ты|вы)\b|\bновые\s+инструкц"
    ),
    "a demand for secrecy": r"\bне\s+(?:говор|сообща|рассказ|упомин)\w*.{0,40}(?:пользовател|клиент|никому)\w*",
    "a demand for secrets": r"\b(?:отправ|перевед|перешл|скопир)\w*.{0,60}(?:парол|ключ|токен|деньг|данн)\w*",
}
_EAST_ASIAN = {
    "an order to forget orders": (
        r"(?:忽略|忽視|忽视|无视|無視|忘记|忘記|忘掉|不要理会|不要遵|不理会|别管|绕过|繞過|跳过|跳過|违反|違反|推翻).{0,20}"
        r"(?:指令|指示|命令|规则|規則|规定|規定|提示词|提示詞|设定|設定|限制)|(?:指令|指示|命令|规则|規則|提示词).{0,10}(?:作废|作廢|无效|無效)"
        r"|(?:指示|命令|指令|ルール|規則).{0,8}(?:無視|忘れ|従わな)|(?:지시|명령|규칙|지침).{0,10}(?:무시|잊)"
    ),
    "a new role or prompt": (
        r"[你您](?:现在|現在|从现在起|從現在起)(?:是|将|要|必)|(?:从现在|從現在)(?:开始|起|開始).{0,10}[你您]|[你您](?:将|要|来)?扮演"
        r"|(?:新的?|隐藏的?|最新)(?:系统)?(?:指令|提示词|提示詞)|系统(?:提示|消息|指令)[词]?[:：]"
        r"|(?:今|これ)から(?:あなた|君)は|新しい指示|지금부터.{0,6}(?:너는|당신은)|새로운\s*지시"
    ),
    "a demand for secrecy": (
        r"(?:不要|别|別|請勿|请勿|不得|切勿|勿|不能).{0,6}(?:告诉|告訴|告知|透露|通知|提及|提醒).{0,10}(?:用户|用戶|客户|客戶|任何人|他人|对方)"
        r"|(?:ユーザー|顧客).{0,8}(?:言わな|知らせな|伝えな|教えな)|(?:사용자|고객).{0,12}(?:말하지|알리지)"
    ),
    "a demand for secrets": (
        r"(?:发送|發送|转发|轉發|转账|轉帳|汇款|匯款|上传|上傳|泄露|传送|发给|寄给|发到).{0,40}(?:密码|密碼|凭证|憑證|密钥|金鑰|令牌|资金|余额|"
        r"数据库|所有数据|全部数据|客户数据)|(?:把|将).{0,20}(?:密码|密碼|密钥|凭证|数据|资金|余额).{0,12}(?:发|發|转|轉|传|傳|汇|匯)"
    ),
    "an order": (
        r"[你您](?:必须|必須|务必|務必|应当|應當|一定要|需要立即).{0,12}(?:调用|呼叫|执行|執行|运行|发送|發送|退款|批准|删除|刪除|回复|回覆|转账|转发|服从)"
        r"|请?立即(?:调用|执行|发送|转账|退款|删除)"
    ),
}
_STEMS = {
    "ignorier missacht vergiss vergess ubergeh umgeh verwirf beacht": (_GERMAN, "an order to forget orders"),
    "du+bist sie+sind ab+jetzt ab+sofort verhalt neue+ geheime+ aktualisierte+ systemnachricht systemanweisung": (
        _GERMAN, "a new role or prompt"),
    "nutzer anwender kunde niemand": (_GERMAN, "a demand for secrecy"),
    "passw zugangsd geheim schlussel kundendaten geld guthaben datenbank alle+daten token": (
        _GERMAN, "a demand for secrets"),
    "du+musst du+sollst sie+mussen": (_GERMAN, "an order"),
    "ignor oubli neglig contourn desobe ne+tien ne+tenez abstraction": (_FRENCH, "an order to forget orders"),
    "tu+es vous+etes desormais dorenavant a+partir+de+maintenant nouvelle secrete comporte-toi agis message+systeme": (
        _FRENCH, "a new role or prompt"),
    "utilisateur client personne humain sans+": (_FRENCH, "a demand for secrecy"),
    "envo transf vire transm copi": (_FRENCH, "a demand for secrets"),
    "tu+dois vous+devez": (_FRENCH, "an order"),
    "ignor olvid descart desobede esquec desconsider dimentic trascur no+sigas no+hagas": (
        _SPANISH, "an order to forget orders"),
    "ahora agora ora+sei adesso d'ora actua+como comportate nuevas nueva+ nova nuov mensaje+de": (
        _SPANISH, "a new role or prompt"),
    "usuari client nadie ningu utente nessun": (_SPANISH, "a demand for secrecy"),
    "contrasen credencial clave dinero datos fondos senha dinheiro": (_SPANISH, "a demand for secrets"),
    "debes tienes+que voce+deve devi+": (_SPANISH, "an order"),
}  # fmt: skip
"""Stems of which a text must contain one for a pattern to match; a plus stands for a space."""
_LATIN = [
    (tuple(stem.replace("+", " ") for stem in stems.split()), name, compile_late(forms[name], re.I | re.S))
    for stems, (forms, name) in _STEMS.items()
]
_ALL_STEMS = sorted({stem for stems, _, _ in _LATIN for stem in stems})
_CYRILLIC = [(name, compile_late(form, re.I | re.S)) for name, form in _RUSSIAN.items()]
_ASIAN = [(name, compile_late(form, re.S)) for name, form in _EAST_ASIAN.items()]
_CYRILLIC_SIGN, _ASIAN_SIGN = compile_late("[\u0400-\u04ff]"), compile_late("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def may_be_foreign(plain: str) -> bool:
    """Return whether an ASCII text has any of the stems. Without one, no part of it matches a pattern."""
    lowered = " ".join(plain.lower().split())
    return any([stem in lowered for stem in _ALL_STEMS])  # noqa: C419 - as below


def foreign_form_in(plain: str) -> str:
    """Return the kind of instruction that a text in another language contains, or an empty string."""
    # stems and forms may span a line break, so every run of blanks becomes one space
    lowered = " ".join(plain.lower().split())
    for stems, name, form in _LATIN:
        if any([stem in lowered for stem in stems]) and form.search(lowered):  # noqa: C419 - faster
            return name
    if plain.isascii():
        return ""
    for sign, forms in ((_CYRILLIC_SIGN, _CYRILLIC), (_ASIAN_SIGN, _ASIAN)):
        if sign.search(plain):
            for name, form in forms:
                if form.search(plain):
                    return name
    return ""
