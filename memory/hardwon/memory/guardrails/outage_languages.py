"""Outages in other languages than English: services and proxies answer in the language of their users.

The patterns name the same few events as the English ones in `outage`: no answer in time, too many requests, a service
that is unavailable or overloaded, and a connection that failed. A phrase that blames the call itself, such as an
invalid argument, outweighs them.
"""

from hardwon.memory.patterns import compile_late

_OUTAGES = (
    # German
    r"zeit(?:überschreitung|ueberschreitung|limit überschritten)|zeitlimit\b.{0,30}\büberschritten|"
    r"zu viele (?:anfragen|anforderungen|verbindungen)|"
    r"(?:dienst|server|host|dienstleistung)\b.{0,40}\b(?:nicht (?:verfügbar|erreichbar)|überlastet|antwortet nicht)|"
    r"verbindung\b.{0,40}\b(?:abgelehnt|verweigert|zurückgesetzt|unterbrochen|fehlgeschlagen|abgebrochen|getrennt)|"
    r"(?:vorübergehend|zeitweise|derzeit|momentan)\b.{0,30}\b(?:nicht (?:verfügbar|erreichbar)|gestört|überlastet)|"
    r"versuchen sie es\b.{0,30}\b(?:später|erneut)|interner serverfehler|wartungsarbeiten",
    # French
    r"délai\b.{0,40}\b(?:dépassé|expiré|écoulé)|trop de (?:requêtes|connexions|demandes)|"
    r"(?:service|serveur|hôte)\b.{0,40}\b(?:indisponible|injoignable|surchargé|ne répond pas)|"
    r"connexion\b.{0,40}\b(?:refusée|réinitialisée|interrompue|perdue|échoué|fermée)|"
    r"temporairement (?:indisponible|hors service)|"
    r"(?:réessayez|réessayer|veuillez réessayer)\b.{0,30}\b(?:plus tard|ultérieurement|quelques)|"
    r"erreur interne du serveur",
    # Spanish and Portuguese
    r"(?:tiempo|tempo)\b.{0,30}\b(?:agotado|esgotado|excedido|límite)|expirou o tempo|"
    r"demasiadas (?:solicitudes|peticiones|conexiones)|(?:muitas|excesso de) (?:solicitações|requisições|conexões)|"
    r"(?:servi[cç][iç]?o|servidor)\b.{0,40}\b(?:no (?:está )?disponible|indisponível|sobrecarregado|sobrecargado|"
    r"no responde|não responde|fora do ar)|(?:conexión|conexão)\b.{0,40}\b(?:rechazada|recusada|restablecida|"
    r"interrumpida|interrompida|perdida|fallida|encerrada)|temporalmente no disponible|temporariamente indisponível|"
    r"(?:inténtelo|intente|tente|vuelva a intentar)\w{0,12}\b.{0,30}\b(?:más tarde|mais tarde|novamente|de nuevo)|"
    r"error interno del servidor|erro interno do servidor",
    # Italian
    r"tempo (?:scaduto|di attesa\b.{0,20}\b(?:scaduto|superato))|troppe (?:richieste|connessioni)|"
    r"(?:servizio|server)\b.{0,40}\b(?:non (?:è )?(?:disponibile|raggiungibile)|sovraccarico|non risponde)|"
    r"connessione\b.{0,40}\b(?:rifiutata|interrotta|scaduta|persa|reimpostata)|riprova\w{0,12}\b.{0,20}\bpiù tardi|"
    r"errore interno del server",
    # Dutch, Polish, Swedish, Turkish
    r"te veel verzoeken|(?:dienst|service)\b.{0,30}\bniet beschikbaar|verbinding\b.{0,30}\b(?:geweigerd|verbroken)|"
    r"probeer het later|przekroczono (?:limit czasu|czas)|zbyt wiele (?:żądań|połączeń)|"
    r"(?:usługa|serwer)\b.{0,40}\b(?:niedostępn\w{1,12}|przeciążon\w{1,12})|połączeni\w{1,12}\b.{0,30}\b(?:odrzucon\w{1,12}|przerwan\w{1,12})|"
    r"spróbuj ponownie później|för många förfrågningar|tjänsten\b.{0,30}\binte tillgänglig|anslutningen\b.{0,30}\b"
    r"(?:nekades|bröts)|försök igen senare|zaman aşımı|çok fazla istek|"
    r"(?:hizmet|sunucu|servis)\b.{0,40}\b(?:kullanılamıyor|yanıt vermiyor)|bağlantı\b.{0,30}\b(?:reddedildi|kesildi)|"
    r"daha sonra tekrar deneyin",
    # Finnish, Danish and Norwegian, Czech, Indonesian, Vietnamese
    r"aikakatkaisu|liian monta pyyntöä|(?:palvelu|palvelin)\b.{0,30}\bei (?:ole käytettävissä|vastaa)|"
    r"(?:tjenesten|serveren)\b.{0,30}\b(?:ikke tilg(?:æ|j)engelig|utilgængelig|utilgjengelig|svarer ikke)|"
    r"for mange (?:anmodninger|forespørsler)|prøv igen senere|prøv igjen senere|"
    r"časový limit|příliš mnoho (?:požadavků|připojení)|(?:služba|server)\b.{0,30}\b(?:nedostupn\w{1,12}|neodpovídá)|"
    r"zkuste to (?:znovu )?později|waktu habis|terlalu banyak permintaan|layanan\b.{0,30}\btidak tersedia|"
    r"coba lagi nanti|hết thời gian|quá nhiều yêu cầu|dịch vụ\b.{0,30}\bkhông khả dụng|thử lại sau",
    # Russian and Ukrainian
    r"(?:превышен\w{0,12}|истекло|вышло|перевищено)\b.{0,30}\b(?:врем\w{1,12}|ожидани\w{1,12}|таймаут\w{0,12}|час\w{0,12}|очікуван\w{1,12})|"
    r"слишком много (?:запросов|подключений)|забагато запитів|"
    r"(?:сервис|сервер|служба|сервіс)\b.{0,40}\b(?:недоступ\w{1,12}|перегружен\w{0,12}|не отвечает|не відповідає)|"
    r"(?:соединени\w{1,12}|подключени\w{1,12}|з'єднання)\b.{0,40}\b(?:отклонен\w{0,12}|сброшен\w{0,12}|разорван\w{0,12}|прерван\w{0,12}|потерян\w{0,12}|"
    r"відхилено|розірвано)|(?:повторите|попробуйте)\b.{0,30}\bпозже|внутренняя ошибка сервера",
    # Chinese, Japanese, Korean: no spaces between words
    r"(?:连接|連線|请求|請求|操作|响应|服务器?|服務)\S{0,8}(?:超时|逾時|超時)|(?:请求|請求)(?:过于频繁|过多|次数过多|太多)|"
    r"(?:服务器?|服務|系统|系統)\S{0,8}(?:不可用|繁忙|过载|無法使用|暂停)|(?:连接|連線)\S{0,6}(?:被拒绝|被重置|失败|中断|被拒絕)|"
    r"稍后(?:再试|重试)|稍後再試|内部服务器错误|"
    r"タイムアウト|リクエストが多すぎ|(?:サービス|サーバー?)\S{0,14}(?:利用できません|応答しません|応答がありません|混雑|混み合|停止中)|"
    r"接続\S{0,8}(?:拒否|切断|失敗|リセット)|(?:後で|しばらく)\S{0,10}(?:もう一度|再試行|お試し)|"
    r"시간\s?(?:이\s?)?초과|요청이?\s?너무\s?많|(?:서비스|서버)\S{0,4}\s?\S{0,6}\s?(?:사용할 수 없|응답하지 않|과부하)|"
    r"연결\S{0,4}\s?(?:거부|끊|실패|재설정)|나중에 다시",
    # Arabic and Hindi
    r"انتهت (?:المهلة|مهلة)|طلبات كثيرة|الخدمة\b.{0,30}\bغير متاحة|رفض الاتصال|حاول مرة أخرى لاحق\w{0,12}|"
    r"समय समाप्त|बहुत अधिक अनुरोध|सेवा\S{0,12}\s.{0,20}उपलब्ध नहीं|बाद में पुनः प्रयास",
)
# In lower case: a pattern that ignores case takes six times as long.
_OUTAGE = compile_late("|".join(_OUTAGES))
_LASTING = compile_late(
    r"ungültig|unbekannt\w{0,12} (?:argument|parameter|feld|befehl)|nicht gefunden|existiert nicht|berechtigung|"
    r"erforderlich|"
    r"non valide|invalide|introuvable|n'existe pas|autorisation|obligatoire|"
    r"inválid|no encontrad|não encontrad|no existe|não existe|permiso|permissão|obligatori|obrigatóri|"
    r"non valid|non trovat|non esiste|autorizzazion|ongeldig|niet gevonden|nieprawidłow|nie znaleziono|ogiltig|"
    r"geçersiz|"
    r"недопустим|неверн|не найден|не существует|запрещен|无效|無效|不存在|未找到|权限|"
    r"無効|見つかりません|存在しません|権限|"
    r"잘못된|찾을 수 없|존재하지 않|권한|غير صالح|غير موجود|अमान्य",
)


def is_foreign_outage(text: str) -> bool:
    """Return whether the text of an error names an outage in one of these languages, and does not blame the call."""
    lower = text.lower()
    return _OUTAGE.search(lower) is not None and _LASTING.search(lower) is None
