"""SoulChat and SMILE: Chinese counselling dialogues of many turns, without labels.

SoulChat is a JSON array of `{id, topic, messages: [{role, content}]}`, SMILE one `{id, dialog: [{role, content}]}` a
line. Both bring ids of their own. What else stands in an object, as the topic, is kept in `extra`.
"""

from pydantic import AliasChoices, BaseModel, Field

from compeer.corpora.items import Item, Text
from compeer.corpora.labels import SPEAKERS
from compeer.dialogue import Dialogue, Utterance


class _Message(BaseModel, extra="allow"):
    role: str
    content: Text


class _ChatDialogue(BaseModel, extra="allow", coerce_numbers_to_str=True):
    id: str | None = Field(default=None, min_length=1)
    messages: list[_Message] = Field(min_length=1, validation_alias=AliasChoices("messages", "dialog"))


def soulchat_dialogue(source: str, messages: str, item: Item) -> Dialogue:
    """A dialogue of SoulChat or SMILE, whose messages stand in the field `messages`."""
    raw = item.check(_ChatDialogue)
    return Dialogue(
        id=item.id(source, raw.id),
        language="zh",
        source=source,
        utterances=tuple(
            Utterance(
                speaker=item.label(SPEAKERS[source], message.role, "speaker", f"{messages}.{index}.role"),
                text=message.content,
                extra=message.model_extra or {},
            )
            for index, message in enumerate(raw.messages)
        ),
        extra=raw.model_extra or {},
    )
