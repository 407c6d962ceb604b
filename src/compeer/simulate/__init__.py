"""Simulated conversations: agents that play seeker and supporter, and the engine that lets many of them talk."""

from compeer.simulate.agents import Agent, AgentTurn, Ask, Complaint, SeekerAgent, SupporterAgent, chat, mark_of
from compeer.simulate.conversation import Call, Conversation, Outcome, Scenario, Turn, View, read_conversations
from compeer.simulate.engine import run_dialogues
from compeer.simulate.runner import DialogueSettings

__all__ = ["Agent", "AgentTurn", "Ask", "Call", "Complaint", "Conversation", "DialogueSettings", "Outcome", "Scenario"]
__all__ += ["SeekerAgent", "SupporterAgent", "Turn", "View", "chat", "mark_of", "read_conversations", "run_dialogues"]
