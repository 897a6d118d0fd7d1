"""Secrets typed into a field: the field's name is one argument of a call or an object, and the secret is another."""

import time

import pytest

from hardwon.memory.privacy.redaction import redact

TYPED = [
    'browser_type(element="Password textbox", ref="e12", text="{}")',
    'browser_type(text="{}", ref="e12", element="Password textbox")',
    'fill_form(fields=[{{"name": "Password", "type": "textbox", "value": "{}"}}])',
    'fill(selector="#password", value="{}")',
    'type(into="password field", text="{}")',
    'input_text(element="Password", text="{}")',
    "page.fill('input[type=password]', '{}')",
    "page.locator('#pwd').fill('{}')",
    "page.locator('#pwd').first.fill('{}')",
    "page.getByLabel('Password').fill('{}')",
    "await page.getByRole('textbox', {{ name: 'Password' }}).fill('{}');",
    "driver.find_element(By.ID, 'passwd').send_keys('{}')",
    "driver.findElement(By.id('passwd')).sendKeys('{}')",
    'password_field.send_keys("{}")',
    '{{"tool": "fill", "args": {{"selector": "#pwd", "timeout": 5, "value": "{}"}}}}',
    '{{"arguments": "{{\\"element\\": \\"Password textbox\\", \\"text\\": \\"{}\\"}}"}}',
    '{{"username": "bob", "password": {{"value": "{}"}}}}',
    'set_secret(name="stripe", value="{}")',
    "It's open. fill(selector='#password', value='{}')",
    'click("#go")\nfill(selector="#password",\n     value="{}")',
]
NORMAL = [
    'fill(selector="#name", value="Bob")',
    'fill(selector="#name", value="hunter2hunter")',
    'fill(selector="#search", value="reset password")',
    'fill(selector="#password", value="{{password}}")',
    'fill(selector="#password", value="$PASSWORD")',
    'input_text(element="Password", text="{{ site }}")',
    'press(selector="#password", keys="Enter")',
    'page.locator("#password").send_keys("Control+A")',
    'click(element="Forgot password link", text="Need help?")',
    'fill_form(fields=[{"name": "User", "value": "bob99"}, {"name": "Password", "type": "textbox"}])',
    'page.locator("#password").click(); page.locator("#name").fill("Bob the 2nd")',
    '{"role": "label", "name": "Password", "text": "Enter your password here"}',
    '{"name": "tokens", "text": "take 3 coins"}',
    '{"element": "secret door", "text": "unlock"}',
    '{"title": "Forgot my password again", "content": "bob99"}',
    '{"label": "Password must have 8 characters", "text": "ok99"}',
    '{"name": "password", "text": "Bob is locked out since 9 and asks for help"}',
    'load(id="tokenizer7", value="gpt2xl")',
    'describe(name="password", type="textbox", ref="e12")',
    "don't type(the password) into 'text' or 'value' (see the hint)",
    'type(text="hello world", into="chat")  # not the password field',
]


@pytest.mark.parametrize("line", TYPED)
def test_a_password_typed_into_a_field_is_redacted(line):
    line = line.format("Tr0ub4dor9xyz")
    assert "Tr0ub4dor9xyz" not in redact(line)
    assert redact(redact(line)) == redact(line)


@pytest.mark.parametrize("line", NORMAL)
def test_what_goes_into_other_fields_stays(line):
    assert redact(line) == line


def test_only_the_typed_text_of_a_call_is_redacted():
    line = 'browser_type(element="Password textbox", ref="e12", text="open sesame 7")'
    assert redact(line) == line.replace("open sesame 7", "[redacted:password]")


def test_a_text_that_was_cut_off_is_redacted_as_well():
    assert "Tr0ub" not in redact('fill(selector="#password", value="Tr0ub4dor", timeout=')


@pytest.mark.parametrize(
    "part",
    [
        "fill(",
        '("password", ',
        '"\\"',
        "'password\\' ",
        '{"name": "password", "value": "',
        ").fill('password'",
        'password \\"{value ',
        "a.a.a.a.a.",
        "a.a.a.a.a.a.a.a.a.a.a.a.(",
        'a_a_a_a_a_a_a_a_a_a_a_a="b"',
        "key: " + " " * 50,
    ],
)
def test_a_long_text_of_fields_takes_no_time(part):
    began = time.process_time()
    redact("password value (" + part * (200_000 // len(part)))
    assert time.process_time() - began < 3
