"""What is fed before each answer is the chat as the template renders it, whatever the template and the messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template

from compeer.reward.conversation import JudgeQuestion
from compeer.reward.judge import texts_before_answers

SYSTEM = {"role": "system", "content": "You judge."}
TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}",
    "trims": "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}",
    "counts letters": "{% for m in messages %}{{ m.content | length }}:{{ m.content }};{% endfor %}",
    "shouts": "{% for m in messages %}[{{ m.role }}] {{ m.content | upper }}\n{% endfor %}",
}


class Tokenizer:
    """A template and a control token."""

    def __init__(self, template: str) -> None:
        self._template = Template(template)

    def get_added_vocab(self) -> dict[str, int]:
        return {"<|end|>": 1}

    def apply_chat_template(self, messages: list[dict[str, Any]], tokenize: bool) -> str:
        assert not tokenize
        return self._template.render(messages=messages)


def by_template(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """What stands before each answer in the chat that the template renders."""
    messages: list[dict[str, Any]] = [SYSTEM]
    for text in texts:
        messages += [{"role": "user", "content": text.replace("<|end|>", "< |end|>")}]
        messages += [{"role": "assistant", "content": "\u241f"}]
    return tokenizer.apply_chat_template(messages, False).split("\u241f")[: len(texts)]


def questions(texts: list[str]) -> list[JudgeQuestion]:
    return [JudgeQuestion("history", text, ("True", "False")) for text in texts]


@pytest.mark.parametrize("name", TEMPLATES)
@given(chats=st.lists(st.lists(st.sampled_from(["a", "b c", " d ", "e\n", "<|end|>", "é"]), min_size=1, max_size=4)))
def test_a_chat_is_what_the_template_renders(name: str, chats: list[list[str]]) -> None:
    tokenizer = Tokenizer(TEMPLATES[name])
    for texts in chats:
        assert texts_before_answers(tokenizer, SYSTEM, questions(texts)) == by_template(tokenizer, texts)


def test_what_stands_for_an_answer_cannot_be_quoted() -> None:
    tokenizer = Tokenizer(TEMPLATES["plain"])
    (text,) = texts_before_answers(tokenizer, SYSTEM, questions(["one \u241f two"]))
    assert text == by_template(tokenizer, ["one  two"])[0]
