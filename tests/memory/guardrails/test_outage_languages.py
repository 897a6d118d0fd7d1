"""Outages in the languages of users; errors of the call in the same languages are none."""

import pytest
from tests.memory.guardrails.test_outage import failed

from hardwon.memory.guardrails.outage import tells_of_outage

OUTAGES = [
    "Zeitüberschreitung bei der Anforderung",
    "Fehler: Der Dienst ist derzeit nicht verfügbar.",
    "Die Verbindung zum Server wurde abgelehnt",
    "Bitte versuchen Sie es später erneut.",
    "Zu viele Anfragen, bitte warten",
    "Délai d'attente dépassé",
    "Le service est temporairement indisponible",
    "Connexion refusée par l'hôte distant",
    "Trop de requêtes. Veuillez réessayer plus tard.",
    "Tiempo de espera agotado",
    "El servicio no está disponible en este momento",
    "Conexión rechazada por el servidor",
    "Demasiadas solicitudes",
    "Tempo limite excedido",
    "O servidor está sobrecarregado",
    "Conexão recusada",
    "Tente novamente mais tarde",
    "Tempo scaduto",
    "Il servizio non è disponibile",
    "Troppe richieste, riprova più tardi",
    "Przekroczono limit czasu żądania",
    "Usługa jest chwilowo niedostępna",
    "Te veel verzoeken",
    "Tjänsten är inte tillgänglig",
    "İstek zaman aşımına uğradı",
    "Sunucu yanıt vermiyor",
    "Превышено время ожидания ответа",
    "Сервис временно недоступен",
    "Соединение разорвано",
    "Слишком много запросов",
    "连接超时",
    "服务暂时不可用，请稍后再试",
    "请求过于频繁",
    "連線逾時",
    "接続がタイムアウトしました",
    "サービスは現在利用できません",
    "リクエストが多すぎます",
    "요청 시간이 초과되었습니다",
    "서비스를 사용할 수 없습니다",
    "연결이 거부되었습니다",
    "انتهت المهلة",
    "الخدمة غير متاحة",
]
ERRORS = [
    "Ungültiges Datum: 31.02.",
    "Zugriff verweigert: keine Berechtigung",
    "Datei nicht gefunden",
    "Der Schrank ist geschlossen.",
    "Date non valide",
    "Fichier introuvable",
    "Le client n'existe pas",
    "Solde insuffisant",
    "La porte est fermée",
    "Fecha inválida",
    "El pedido no existe",
    "Saldo insuficiente",
    "La puerta está cerrada",
    "Pedido não encontrado",
    "Formato non valido",
    "La porta è chiusa",
    "Nieprawidłowy format",
    "Ogiltigt datum",
    "Geçersiz tarih",
    "Неверный формат даты",
    "Заказ не найден",
    "Дверь закрыта",
    "日期格式无效",
    "订单不存在",
    "余额不足",
    "注文が見つかりません",
    "無効な日付です",
    "ドアは閉まっています",
    "잘못된 날짜 형식",
    "주문을 찾을 수 없습니다",
    "잔액이 부족합니다",
    "الطلب غير موجود",
    "Die Anmeldung ist abgelaufen, weil das Passwort ungültig ist",
    "El tiempo es soleado",
    "Le service client est fermé le lundi",
]


@pytest.mark.parametrize("text", OUTAGES)
def test_an_outage_is_recognized_in_other_languages(text):
    assert tells_of_outage(text)


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_of_the_call_is_no_outage_in_other_languages(text):
    assert not tells_of_outage(text)


@pytest.mark.parametrize("text", ["Dienst nicht verfügbar", "服务暂时不可用", "Délai d'attente dépassé"])
def test_an_outage_in_another_language_forbids_nothing(library, episode, text):
    library.record_many(failed(episode, library, text, times=12))
    library.evolve()
    assert library.items.find(["guardrail", "warning"]) == []


def test_a_lasting_refusal_in_another_language_becomes_a_guardrail(library, episode):
    library.record_many(failed(episode, library, "Zugriff verweigert: keine Berechtigung", times=6))
    library.evolve()
    assert not library.check(episode().steps[0].pre, "shake drawer").allowed
