"""ESC-Eval: judges score whole conversations in seven dimensions, 0 to 4 each, and figures say how sure that is."""

from compeer.evaluate.esc_eval.answers import read_score, read_scores
from compeer.evaluate.esc_eval.figures import (
    EscEvalFigures,
    Figure,
    ScoreRow,
    esc_eval_figures,
    item_scores,
)
from compeer.evaluate.esc_eval.rubric import DIMENSIONS, Conversation, Dimension, rubric_texts
from compeer.evaluate.esc_eval.scoring import JudgeSettings, Scored, read_rows, score_conversations, score_stage

__all__ = [
    "DIMENSIONS",
    "Conversation",
    "Dimension",
    "EscEvalFigures",
    "Figure",
    "JudgeSettings",
    "ScoreRow",
    "Scored",
    "esc_eval_figures",
    "item_scores",
    "read_rows",
    "read_score",
    "read_scores",
    "rubric_texts",
    "score_conversations",
    "score_stage",
]
